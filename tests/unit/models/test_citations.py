"""A response with citations keeps its ids, signatures and citations for the provider's next request."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs
from support.servers.fake_provider import FakeProvider
from unit.models.wire.recordings import ANTHROPIC, GOOGLE, RESPONSES, recorded

from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.conversation.messages import Message, ProviderOptions, TextPart, user_message
from turngate.models import ModelRequest, Models

BRIEF = ModelOptions(max_output_tokens=900)
"""Without a bound Anthropic's client would ask for a stream."""
GO = user_message("Is the harbour open?")
PAGE = "https://harbour.example/hours"
TEXT = f"It is open ([hours]({PAGE}))."
"""Anthropic and Bedrock cite a whole text, OpenAI the link in it."""
URL_CITATION = {
    "type": "url_citation",
    "url": PAGE,
    "title": "Hours",
    "start_index": TEXT.index("(["),
    "end_index": len(TEXT) - 1,
}
SEARCH_CITATION = {
    "type": "web_search_result_location",
    "url": PAGE,
    "title": "Hours",
    "cited_text": "open daily",
    "encrypted_index": "Eo8BCioIAhgBIiQ5",
}


def of_responses() -> dict[str, Any]:
    """A reasoning item, which OpenAI refuses without the item that it belongs to, and a cited message."""
    body: dict[str, Any] = recorded("openai-responses-call.json")
    text = {"type": "output_text", "text": TEXT, "annotations": [URL_CITATION]}
    message = {
        "id": "msg_0c71d6d8aa01",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [text],
    }
    return {**body, "output": [body["output"][0], message]}


def of_anthropic() -> dict[str, Any]:
    body: dict[str, Any] = recorded("anthropic-thinking-call.json")
    text = {"type": "text", "text": TEXT, "citations": [SEARCH_CITATION]}
    return {**body, "content": [body["content"][0], text], "stop_reason": "end_turn"}


def of_google() -> dict[str, Any]:
    """Gemini signs the text itself, and names its sources beside the parts."""
    body: dict[str, Any] = recorded("google-thought-answer.json")
    signature = recorded("google-signed-calls.json")["candidates"][0]["content"]["parts"][0]["thoughtSignature"]
    candidate = body["candidates"][0]
    candidate["content"]["parts"] = [{"text": TEXT, "thoughtSignature": signature}]
    candidate["groundingMetadata"] = {
        "groundingChunks": [{"web": {"uri": PAGE, "title": "Hours"}}],
        "groundingSupports": [
            {"segment": {"startIndex": 0, "endIndex": 10, "text": TEXT[:10]}, "groundingChunkIndices": [0]}
        ],
    }
    return body


async def answered(models: Models, server: FakeProvider, spec: str, body: dict[str, Any]) -> Message:
    """Return the response's message after it was stored and read again."""
    server.answer(body)
    message = (await models.resolve(spec).generate(ModelRequest([GO], options=BRIEF))).message
    return Message.model_validate_json(message.model_dump_json())


async def next_request(models: Models, server: FakeProvider, spec: str, message: Message, body: dict[str, Any]) -> Any:
    """Return the body of the request after this message."""
    server.answer(body)
    await models.resolve(spec).generate(ModelRequest([GO, message, user_message("Until when?")], options=BRIEF))
    return server.requests[-1].body


async def test_openai_gets_the_ids_of_a_cited_message_and_its_reasoning(wired: Models, provider: FakeProvider) -> None:
    """The reasoning item and its message go back with their ids; without the message's, every later turn is refused."""
    body = of_responses()
    message = await answered(wired, provider, RESPONSES, body)
    sent = (await next_request(wired, provider, RESPONSES, message, body))["input"]
    reasoning, cited = body["output"]
    assert [(item["id"], item.get("encrypted_content")) for item in sent if "id" in item] == [
        (reasoning["id"], reasoning["encrypted_content"]),
        (cited["id"], None),
    ]
    (returned,) = (item for item in sent if item.get("id") == cited["id"])
    assert returned["content"] == [{**cited["content"][0], "annotations": [URL_CITATION]}]


async def test_anthropic_gets_the_citations_byte_for_byte(wired: Models, provider: FakeProvider) -> None:
    """A cited text goes back with its citation, encrypted index included, after the thinking with its signature."""
    body = of_anthropic()
    message = await answered(wired, provider, ANTHROPIC, body)
    sent = (await next_request(wired, provider, ANTHROPIC, message, body))["messages"][1]["content"]
    assert sent == body["content"]


async def test_gemini_gets_the_signature_of_a_cited_text(wired: Models, provider: FakeProvider) -> None:
    """The signature stays on the text; Gemini takes no citations back."""
    body = of_google()
    message = await answered(wired, provider, GOOGLE, body)
    assert "citations" in message.parts[0].provider_options["google"]  # type: ignore[operator]
    sent = (await next_request(wired, provider, GOOGLE, message, body))["contents"][1]["parts"]
    (part,) = body["candidates"][0]["content"]["parts"]
    assert [each["text"] for each in sent] == [TEXT]
    assert sent[0]["thoughtSignature"].replace("-", "+").replace("_", "/") == part["thoughtSignature"]


async def test_what_cannot_be_read_is_left_out_alone_and_logged(wired: Models, provider: FakeProvider) -> None:
    """Of a part's packed fields only the unreadable one is missing, and the log names it, without its content."""
    body = of_responses()
    message = await answered(wired, provider, RESPONSES, body)
    cited = message.parts[1]
    name = next(iter(cited.provider_options))
    broken: ProviderOptions = {name: {**cited.provider_options[name], "citations": "SECRET"}}  # type: ignore[dict-item]
    message = message.model_copy(
        update={"parts": (message.parts[0], cited.model_copy(update={"provider_options": broken}))}
    )
    with capture_logs() as logs:
        sent = (await next_request(wired, provider, RESPONSES, message, body))["input"]
    assert [item["id"] for item in sent if "id" in item] == [item["id"] for item in body["output"]]
    assert [entry["fields"] for entry in logs] == [["citations"]]
    assert "SECRET" not in str(logs)


async def test_a_part_packed_whole_that_cannot_be_read_is_logged(wired: Models, provider: FakeProvider) -> None:
    """The message is sent without it."""
    lost = TextPart(text="", provider_options={"anthropic": {"part": {"part_kind": "of another version"}}})
    message = Message(role="assistant", parts=(lost, TextPart(text="Open.")))
    with capture_logs() as logs:
        sent = (await next_request(wired, provider, ANTHROPIC, message, of_anthropic()))["messages"]
    assert sent[1]["content"] == [{"type": "text", "text": "Open."}]
    assert [entry["fields"] for entry in logs] == [["part"]]
