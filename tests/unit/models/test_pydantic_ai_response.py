"""Recorded responses of the providers, and how they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.servers.fake_provider import FakeProvider
from unit.models.wire.recordings import ANTHROPIC, BEDROCK, GOOGLE, GROQ, MISTRAL, answer, recorded

from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.conversation.messages import (
    Delta,
    FilePart,
    ModelResponse,
    ReasoningPart,
    ToolCallPart,
    Usage,
    user_message,
)
from turngate.domain.errors import ModelError
from turngate.domain.tools.tool import ToolManifest
from turngate.models import ModelRequest, Models
from turngate.models.port import StreamingModel
from turngate.models.pydantic_ai.response import call_input

OPENAI = "openai:some-model"
"""Through the adapter of its own, on a server like Groq's."""
EVENT_STREAM = {"content-type": "text/event-stream"}
BRIEF = ModelOptions(max_output_tokens=900)
"""With no bound, two of the clients stream what they were asked for in one."""
LOOK = ToolManifest(name="look", description="Look.", kind="local", parameters={}, success={}, effect="read")


async def response_of(
    models: Models, spec: str, name: str, server: FakeProvider, *tools: ToolManifest
) -> ModelResponse:
    """Return the recorded response as this spec's model reads it: streamed unless it is one body."""
    server.answer() if name == "" else answer(server, name)
    request, model = ModelRequest([user_message("Go.")], tools, options=BRIEF), models.resolve(spec)
    assert isinstance(model, StreamingModel)
    return await (model.generate(request) if name.endswith(".json") else model.stream(request, lambda _: None))


@pytest.mark.parametrize(
    ("spec", "streamed", "whole", "usage"),
    [
        (
            ANTHROPIC,
            "anthropic-thinking-call.sse",
            "anthropic-thinking-call.json",
            Usage(input_tokens=518, output_tokens=155, cache_read_tokens=100, cache_write_tokens=20),
        ),
        (GOOGLE, "google-signed-calls.sse", "google-signed-calls.json", Usage(input_tokens=29, output_tokens=222)),
        (GOOGLE, "google-thought-answer.sse", "google-thought-answer.json", Usage(input_tokens=55, output_tokens=38)),
        (MISTRAL, "mistral-thinking-call.sse", "mistral-thinking-call.json", Usage(input_tokens=65, output_tokens=16)),
        (
            GROQ,
            "groq-reasoning-call.sse",
            "groq-reasoning-call.json",
            Usage(input_tokens=301, output_tokens=52, cache_read_tokens=256),
        ),
        (
            BEDROCK,
            "bedrock-thinking-call.events",
            "bedrock-thinking-call.json",
            Usage(input_tokens=517, output_tokens=130, cache_read_tokens=100, cache_write_tokens=20),
        ),
    ],
)
async def test_a_streamed_and_an_unstreamed_answer_are_the_same(
    wired: Models, provider: FakeProvider, spec: str, streamed: str, whole: str, usage: Usage
) -> None:
    """Message, opaque fields, finish reason and usage (with cache reads and writes) are equal."""
    first = await response_of(wired, spec, streamed, provider)
    assert first == await response_of(wired, spec, whole, provider)
    assert first.usage == usage
    assert first.model == spec
    assert first.message.calls or first.is_final
    assert all(call.input in ('{"name": "Zoë"}', '{"name":"Zoë"}', "{}") for call in first.message.calls)


async def test_opaque_fields_are_kept_under_the_provider_that_wrote_them(wired: Models, provider: FakeProvider) -> None:
    """Signatures and redacted thinking are in ``provider_options`` letter for letter, of part and message."""
    content = recorded("anthropic-thinking-call.json")["content"]
    thought = await response_of(wired, ANTHROPIC, "anthropic-thinking-call.sse", provider)
    assert thought.message.parts[0] == ReasoningPart(
        text=content[0]["thinking"],
        provider_options={"anthropic": {"signature": content[0]["signature"], "provider_name": "anthropic"}},
    )
    assert thought.message.provider_options["anthropic"]["provider_response_id"] == "msg_01A"  # type: ignore[index, call-overload]
    redacted = await response_of(wired, ANTHROPIC, "anthropic-redacted-calls.sse", provider)
    kinds = [part.type for part in redacted.message.parts]
    assert kinds == ["reasoning", "reasoning", "text", "tool-call", "tool-call"]
    assert [call.input for call in redacted.message.calls] == ["{}", '{"name": "Bo"}']
    signed = recorded("google-signed-calls.json")["candidates"][0]["content"]["parts"][0]["thoughtSignature"]
    first, second = (await response_of(wired, GOOGLE, "google-signed-calls.sse", provider)).message.calls
    assert first.provider_options["google"]["provider_details"] == {"thought_signature": signed}  # type: ignore[index, call-overload]
    assert second.provider_options == {}


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (GOOGLE, "google-signed-calls.sse"),
        (GOOGLE, "google-signed-calls.json"),
        (MISTRAL, "mistral-call-without-id.json"),
    ],
)
async def test_an_id_that_the_provider_did_not_give_is_left_empty(
    wired: Models, provider: FakeProvider, spec: str, name: str
) -> None:
    """Neither pydantic-ai's invented id nor the text ``null`` that Mistral's client reads counts as one."""
    assert {call.tool_call_id for call in (await response_of(wired, spec, name, provider)).message.calls} == {""}


async def test_an_id_that_came_before_is_left_empty(wired: Models, provider: FakeProvider) -> None:
    """Of two calls with one id the first keeps it; the engine mints the other's."""
    body = recorded("groq-reasoning-call.json")
    body["choices"][0]["message"]["tool_calls"] *= 2
    provider.answer(body)
    got = await wired.resolve(GROQ).generate(ModelRequest([user_message("Go.")]))
    assert [call.tool_call_id[:3] for call in got.message.calls] == ["fc_", ""]


@pytest.mark.parametrize(
    ("spec", "name", "finish", "calls"),
    [
        (ANTHROPIC, "anthropic-cut-call.sse", "length", ['{"name": "Zo']),
        (ANTHROPIC, "anthropic-refusal.sse", "refusal", ['{"name": "Zoë"}']),
        (GOOGLE, "google-empty-max-tokens.json", "length", []),
        (GOOGLE, "google-safety.json", "content_filter", []),
    ],
)
async def test_a_response_that_ended_early_says_so(
    wired: Models, provider: FakeProvider, spec: str, name: str, finish: str, calls: list[str]
) -> None:
    """Its calls are returned unchanged, with the finish reason at which the engine closes them unexecuted."""
    got = await response_of(wired, spec, name, provider)
    assert (got.finish_reason, [call.input for call in got.message.calls]) == (finish, calls)
    assert not got.malformed


async def test_a_call_that_the_provider_could_not_read_is_the_models_mistake(
    wired: Models, provider: FakeProvider
) -> None:
    """Gemini's finish reason and Groq's 400 become a malformed response (I9), or the call itself if it is readable."""
    gemini = await response_of(wired, GOOGLE, "google-malformed-call.json", provider, LOOK)
    assert "malformed_function_call" in gemini.malformed
    request = ModelRequest([user_message("Go.")], [LOOK])
    answer(provider, "groq-call-is-no-call.json", status=400)
    unread = await wired.resolve(GROQ).generate(request)
    assert "tool_use_failed" in unread.malformed
    assert unread.message.text == "look(Zoë"
    answer(provider, "groq-call-does-not-fit.json", status=400)
    unfit = await wired.resolve(GROQ).generate(request)
    assert (unfit.malformed, unfit.finish_reason) == ("", "tool_calls")
    assert unfit.message.calls == [ToolCallPart(tool_call_id="", tool_name="look", input='{"nom": "Zoë"}')]


@pytest.mark.parametrize("streamed", [True, False])
async def test_i9_a_call_of_a_tool_that_gemini_was_not_offered_is_a_call(
    wired: Models, provider: FakeProvider, *, streamed: bool
) -> None:
    """I9: ``UNEXPECTED_TOOL_CALL`` comes with the call, which planning closes by its name. A malformed call stays malformed."""
    body = recorded("google-signed-calls.json")
    candidate = body["candidates"][0]
    candidate["content"]["parts"] = [{"functionCall": {"name": "lok", "args": {"name": "Zoë"}}}]
    model, request = wired.resolve(GOOGLE), ModelRequest([user_message("Go.")], [LOOK], options=BRIEF)
    assert isinstance(model, StreamingModel)
    for reason, names in (("UNEXPECTED_TOOL_CALL", ["lok"]), ("MALFORMED_FUNCTION_CALL", [])):
        candidate["finishReason"] = reason
        if streamed:
            provider.answer(f"data: {json.dumps(body)}\n\n".encode(), headers=EVENT_STREAM)
            response = await model.stream(request, lambda _: None)
        else:
            provider.answer(body)
            response = await model.generate(request)
        calls = [] if response.malformed else response.message.calls
        assert [call.tool_name for call in calls] == names
        assert response.finish_reason == ("tool_calls" if names else "other")


def in_groqs_stream(error: Any, *texts: str) -> bytes:
    """Groq's stream of these texts that the error ends."""
    head = {
        "id": "chatcmpl-4f39",
        "object": "chat.completion.chunk",
        "created": 1771434740,
        "model": "openai/gpt-oss-120b",
    }
    chunks = [{**head, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts]
    content = b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in chunks)
    return content + f"event: error\ndata: {json.dumps(error)}\n\n".encode()


@pytest.mark.parametrize("spec", [GROQ, OPENAI])
@pytest.mark.parametrize("texts", [(), ("I ", "look.")])
async def test_groqs_unread_call_is_the_models_mistake_in_a_stream_too(
    wired: Models, provider: FakeProvider, spec: str, texts: tuple[str, ...]
) -> None:
    """It is not asked again: the model gets the error, with the text that it had written, or its call with the reason."""
    model = wired.resolve(spec)
    assert isinstance(model, StreamingModel)
    request = ModelRequest([user_message("Go.")], [LOOK])
    unread, unfit = recorded("groq-call-is-no-call.json"), recorded("groq-call-does-not-fit.json")
    for failed, text in (("look(Zoë", "look(Zoë"), ("", "I look." if texts else "")):
        error = {"error": {**unread["error"], "failed_generation": failed}}
        provider.answer(in_groqs_stream(error, *texts), headers=EVENT_STREAM)
        response = await model.stream(request, lambda _: None)
        assert "tool_use_failed" in response.malformed
        assert response.message.text == text
    provider.answer(in_groqs_stream(unfit, *texts), headers=EVENT_STREAM)
    response = await model.stream(request, lambda _: None)
    assert (response.malformed, response.finish_reason) == ("", "tool_calls")
    call = ToolCallPart(tool_call_id="", tool_name="look", input='{"nom": "Zoë"}')
    assert (response.message.text, response.message.calls) == ("".join(texts), [call])
    answer(provider, "groq-call-does-not-fit.json", status=400)
    assert (await model.stream(request, lambda _: None)).message.calls == [call]
    assert len(provider.requests) == 4


async def test_another_error_in_groqs_stream_is_worth_another_request(wired: Models, provider: FakeProvider) -> None:
    """It is the provider's, so the model does not see it."""
    model = wired.resolve(GROQ)
    assert isinstance(model, StreamingModel)
    error = {"error": {"message": "over capacity", "type": "internal_server_error", "code": "internal"}}
    provider.answer(in_groqs_stream(error, "I "), headers=EVENT_STREAM)
    with pytest.raises(ModelError) as caught:
        await model.stream(ModelRequest([user_message("Go.")], [LOOK]), lambda _: None)
    assert caught.value.retryable


async def test_a_paused_search_is_continued(wired: Models, provider: FakeProvider) -> None:
    """After Anthropic's ``pause_turn`` it asks again, and all of it is one response with the usage of both."""
    answer(provider, "anthropic-search-paused.sse", "anthropic-search-done.sse")
    deltas: list[Delta] = []
    model = wired.resolve(ANTHROPIC)
    assert isinstance(model, StreamingModel)
    search = LOOK.model_copy(update={"kind": "provider", "provider": {"anthropic": {"kind": "web_search"}}})
    got = await model.stream(ModelRequest([user_message("Go.")], [search]), deltas.append)
    assert got.is_final
    assert got.message.text == "The harbour is open."
    assert got.usage.output_tokens == 52
    assert [part.type for part in got.message.parts] == ["text", "text", "text"]
    assert {delta.part for delta in deltas} == {2}
    again = provider.requests[1].body["messages"][-1]
    results = [block for block in again["content"] if block["type"] == "web_search_tool_result"]
    assert results[0]["content"][0]["encrypted_content"] in str(got.message.parts[1].provider_options["anthropic"])
    assert provider.requests[0].body["tools"][0]["name"] == "web_search"


async def test_an_image_that_the_model_made_is_kept(wired: Models, provider: FakeProvider) -> None:
    """Inline data becomes an image part, as base64."""
    body = recorded("google-thought-answer.json")
    body["candidates"][0]["content"]["parts"] = [{"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]
    provider.answer(body)
    got = await wired.resolve(GOOGLE).generate(ModelRequest([user_message("Go.")]))
    assert got.message.parts == (FilePart(type="image", media_type="image/png", content="iVBORw0KGgo="),)


CUT = [
    (ANTHROPIC, "anthropic-thinking-call.sse", 330),
    (GOOGLE, "google-signed-calls.sse", 500),
    (MISTRAL, "mistral-thinking-call.sse", 450),
    (GROQ, "groq-reasoning-call.sse", 640),
    (BEDROCK, "bedrock-thinking-call.events", 380),
]


@pytest.mark.parametrize(("spec", "name", "cut"), CUT)
async def test_a_stream_that_breaks_off_returns_nothing(
    wired: Models, provider: FakeProvider, spec: str, name: str, cut: int
) -> None:
    """It raises a retryable error even if its calls could be read: truncated arguments may be valid JSON."""
    answer(provider, name, cut=cut)
    model, deltas = wired.resolve(spec), list[Delta]()
    assert isinstance(model, StreamingModel)
    with pytest.raises(ModelError) as caught:
        await model.stream(ModelRequest([user_message("Go.")]), deltas.append)
    assert caught.value.retryable
    assert caught.value.error_class in {"bad_response", "unreachable"}
    assert deltas


@pytest.mark.parametrize("spec", [spec for spec, _, _ in CUT])
@pytest.mark.parametrize("content", [b"", b"{}"])
async def test_an_empty_200_is_no_response(wired: Models, provider: FakeProvider, spec: str, content: bytes) -> None:
    """Neither in one body nor streamed; the same request may succeed later."""
    model = wired.resolve(spec)
    assert isinstance(model, StreamingModel)
    request = ModelRequest([user_message("Go.")], options=BRIEF)
    provider.answer(content)
    with pytest.raises(ModelError) as caught:
        await model.generate(request)
    assert (caught.value.error_class, caught.value.retryable) == ("bad_response", True)
    provider.answer(content)
    with pytest.raises(ModelError) as caught:
        await model.stream(request, lambda _: None)
    assert (caught.value.error_class, caught.value.retryable) == ("bad_response", True)


@pytest.mark.parametrize(
    ("args", "provider_name", "text"),
    [
        ({"b": 1, "a": "ü"}, "google", '{"b": 1, "a": "ü"}'),
        (None, "anthropic", "{}"),
        ('{"a":1}', "anthropic", '{"a": 1}'),
        ('{"a":1}', "groq", '{"a":1}'),
        ("", "groq", ""),
        ('{"cents": 12345678901234567.89}', "anthropic", '{"cents": 12345678901234567.89}'),
        ('{"a":1.50}', "anthropic", '{"a": 1.5}'),
        ('{"a": 1,"a": 2}', "anthropic", '{"a": 1,"a": 2}'),
        ('{"a": 1', "bedrock", '{"a": 1'),
        ("[1]", "bedrock", "[1]"),
        ('{"a": NaN}', "bedrock", '{"a": NaN}'),
    ],
)
def test_a_calls_input_is_one_text_unless_it_would_lose_something(args: Any, provider_name: str, text: str) -> None:
    """An object is written one way, streamed or not; digits, duplicate keys and broken JSON stay."""
    assert call_input(args, provider_name) == text
