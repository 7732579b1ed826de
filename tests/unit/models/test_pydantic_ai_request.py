"""What each provider gets: its own opaque fields, no other provider's, and its own format."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from support.servers.fake_provider import FakeProvider
from unit.models.wire.recordings import (
    ANTHROPIC,
    BEDROCK,
    GOOGLE,
    GROQ,
    MISTRAL,
    RESPONSES,
    SPECS,
    WITHOUT_SCHEMAS,
    answer,
    content_of,
    recorded,
)

from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.conversation.history import mint_call_ids
from turngate.domain.conversation.messages import (
    Delta,
    FilePart,
    Message,
    ModelResponse,
    Part,
    ProviderOptions,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)
from turngate.domain.errors import ModelError
from turngate.domain.tools.results import Failure, Ok, rejected
from turngate.domain.tools.tool import ToolManifest
from turngate.models import ModelRequest, Models
from turngate.models.port import StreamingModel

SAYS = {
    ANTHROPIC: ("anthropic-thinking-call.sse", "anthropic-redacted-calls.sse"),
    GOOGLE: ("google-signed-calls.sse", "google-thought-answer.sse"),
    MISTRAL: ("mistral-thinking-call.sse",),
    GROQ: ("groq-reasoning-call.sse",),
    BEDROCK: ("bedrock-thinking-call.events",),
}
SYSTEM = Message(role="system", parts=(TextPart(text="Be brief."),))
NAME_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def tool(name: str, parameters: dict[str, Any], **more: Any) -> ToolManifest:
    return ToolManifest(
        name=name, description=f"{name}.", kind="local", parameters=parameters, success={}, effect="read", **more
    )


TOOLS = [tool("zebra", {}), tool("look", NAME_SCHEMA), tool("apple", {"type": "object"})]


async def response_of(models: Models, server: FakeProvider, spec: str, name: str) -> ModelResponse:
    answer(server, name)
    model = models.resolve(spec)
    assert isinstance(model, StreamingModel)
    return await model.stream(ModelRequest([user_message("Go.")]), lambda _: None)


async def sent(
    models: Models, server: FakeProvider, spec: str, messages: Sequence[Message], **more: Any
) -> dict[str, Any]:
    """Return the body of the request that these messages give."""
    answer(server, SAYS[spec][-1])
    model = models.resolve(spec)
    assert isinstance(model, StreamingModel)
    await model.stream(ModelRequest(messages, **more), lambda _: None)
    body: dict[str, Any] = server.requests[-1].body
    return body


def answered(message: Message, *results: Ok | Failure) -> Message:
    returned = results or tuple(Ok(value={"seen": "Zoë"}) for _ in message.calls)
    parts = tuple(
        ToolResultPart(tool_call_id=call.tool_call_id, tool_name=call.tool_name, result=result)
        for call, result in zip(message.calls, returned, strict=True)
    )
    return Message(role="tool", parts=parts)


def called(raw_input: str = "{}", *, name: str = "look", call_id: str = "c1", **more: Any) -> Message:
    part = ToolCallPart(tool_call_id=call_id, tool_name=name, input=raw_input, **more)
    return Message(role="assistant", parts=(part,))


def calls_and_results(spec: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a request's calls and results as ``{id, name, input}`` and ``{id, …}``, for any provider's format."""
    calls, results = [], []
    for message in body.get("messages", body.get("contents")):
        if spec in (GROQ, MISTRAL):
            calls += [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", [])]
            results += [message] if message["role"] == "tool" else []
            continue
        for block in message.get("content", message.get("parts")):
            calls += [block] if block.get("type") == "tool_use" else []
            calls += [block[key] for key in ("functionCall", "toolUse") if key in block]
            results += [block] if block.get("type") == "tool_result" else []
            results += [block[key] for key in ("functionResponse", "toolResult") if key in block]
    ids = ("id", "tool_use_id", "tool_call_id", "toolUseId")
    return tuple(
        [{**each, "id": next(each[key] for key in ids if key in each)} for each in group] for group in (calls, results)
    )  # type: ignore[return-value]


async def everybody(models: Models, server: FakeProvider) -> list[Message]:
    """A conversation with messages of every provider, calls included."""
    history, step = [SYSTEM], 0
    for spec, names in SAYS.items():
        for name in names:
            step += 1
            message = mint_call_ids((await response_of(models, server, spec, name)).message, step=step, taken=set())
            history += [user_message(f"question {step}"), message]
            history += [answered(message)] if message.calls else []
    return [*history, user_message("last question")]


def in_bytes(url_safe: str) -> bytes:
    """Google's client writes a signature, which is bytes, in the other alphabet of base64."""
    return base64.urlsafe_b64decode(url_safe)


async def test_each_provider_gets_only_its_own_opaque_fields(wired: Models, provider: FakeProvider) -> None:
    """In a conversation of five providers, signatures and redacted thinking go back to their authors, in place."""
    history = await everybody(wired, provider)
    thinking = recorded("anthropic-thinking-call.json")["content"][0]
    body = await sent(wired, provider, ANTHROPIC, history)
    assistant = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
    assert assistant[0][0] == thinking
    redacted = history[5].parts[0].provider_options["anthropic"]["signature"]  # type: ignore[index, call-overload]
    assert assistant[1][0] == {"type": "redacted_thinking", "data": redacted}
    for other in assistant[2:]:
        assert {block["type"] for block in other} <= {"text", "tool_use"}

    signed, second = recorded("google-signed-calls.json")["candidates"][0]["content"]["parts"]
    model_turns = [
        turn["parts"] for turn in (await sent(wired, provider, GOOGLE, history))["contents"] if turn["role"] == "model"
    ]
    assert in_bytes(model_turns[2][0]["thoughtSignature"]) == base64.b64decode(signed["thoughtSignature"])
    assert "thoughtSignature" not in second
    assert "thoughtSignature" not in model_turns[2][1]
    # Gemini refuses a first call without a signature; Google publishes this one for calls of other models.
    assert in_bytes(model_turns[0][1]["thoughtSignature"]) == b"skip_thought_signature_validator"

    reasoned = recorded("bedrock-thinking-call.json")["output"]["message"]["content"][0]["reasoningContent"]
    bedrock = await sent(wired, provider, BEDROCK, history)
    blocks = [block for message in bedrock["messages"] for block in message["content"]]
    assert [block["reasoningContent"] for block in blocks if "reasoningContent" in block] == [reasoned]

    mistral = await sent(wired, provider, MISTRAL, history)
    texts = [
        block for message in mistral["messages"] if isinstance(message["content"], list) for block in message["content"]
    ]
    assert [block["thinking"] for block in texts if block["type"] == "thinking"] == [
        [{"type": "text", "text": "Look first."}]
    ]

    groq = await sent(wired, provider, GROQ, history)
    assert "Look first" not in json.dumps(groq)
    for spec, foreign in (
        (ANTHROPIC, signed["thoughtSignature"]),
        (GOOGLE, thinking["signature"]),
        (GROQ, "signature"),
    ):
        assert foreign not in json.dumps(await sent(wired, provider, spec, history))


async def test_encrypted_reasoning_goes_back_with_its_item(wired: Models, provider: FakeProvider) -> None:
    """OpenAI's Responses API gets the item, its blob, the item's id and the call id that the result answers."""
    reasoning, call = recorded("openai-responses-call.json")["output"]
    answer(provider, "openai-responses-call.json", "openai-responses-call.json")
    ask = [user_message("Go.")]
    got = (await wired.resolve(RESPONSES).generate(ModelRequest(ask, TOOLS))).message
    assert [part.type for part in got.parts] == ["reasoning", "tool-call"]
    await wired.resolve(RESPONSES).generate(ModelRequest([*ask, got, answered(got)], TOOLS))
    items = provider.requests[-1].body["input"]
    assert [item["encrypted_content"] for item in items if item.get("type") == "reasoning"] == [
        reasoning["encrypted_content"]
    ]
    assert [item["id"] for item in items if item.get("type") in {"reasoning", "function_call"}] == [
        reasoning["id"],
        call["id"],
    ]
    assert {item["call_id"] for item in items if "call_id" in item} == {call["call_id"]}
    assert reasoning["encrypted_content"] not in json.dumps(
        await sent(wired, provider, GROQ, [*ask, got, answered(got)])
    )


@pytest.mark.parametrize("spec", SPECS)
async def test_i1_call_and_result_have_one_id_that_the_provider_accepts(
    wired: Models, provider: FakeProvider, spec: str
) -> None:
    """Any id gets the provider's format: unique, equal for a call and its result, and the same next time."""
    pattern = "[a-zA-Z0-9]{9}" if spec == MISTRAL else "[a-zA-Z0-9_-]{1,64}"
    history = await everybody(wired, provider)
    odd = called(call_id="functions.look:0/ü")
    history = [*history[:-1], user_message("odd"), odd, answered(odd), history[-1]]
    calls, results = calls_and_results(spec, await sent(wired, provider, spec, history))
    ids = [call["id"] for call in calls]
    assert ids == [result["id"] for result in results]
    assert len(set(ids)) == len(ids) == 9
    for each in ids:
        assert re.fullmatch(pattern, each)
    longer = [*history, called(call_id="later"), answered(called(call_id="later"))]
    again, _ = calls_and_results(spec, await sent(wired, provider, spec, longer))
    assert [call["id"] for call in again[:-1]] == ids


@pytest.mark.parametrize("spec", SPECS)
async def test_tools_are_sent_in_order_and_may_have_no_parameters(
    wired: Models, provider: FakeProvider, spec: str
) -> None:
    """The request's order stays, for the prompt cache; without parameters the schema is an empty object."""
    first = await sent(wired, provider, spec, [SYSTEM, user_message("Go.")], tools=TOOLS)
    tools = first.get("tools") or first["toolConfig"]["tools"]
    if spec == GOOGLE:
        tools = tools[0]["functionDeclarations"]
    flat = [each.get("function", each.get("toolSpec", each)) for each in tools]
    assert [each["name"] for each in flat] == ["zebra", "look", "apple"]
    schemas = [each.get("input_schema", each.get("parameters", each.get("parameters_json_schema"))) for each in flat]
    schemas = [each["inputSchema"]["json"] for each in flat] if spec == BEDROCK else schemas
    assert schemas[0] == schemas[2] == {"type": "object", "properties": {}}
    assert schemas[1] == NAME_SCHEMA
    assert await sent(wired, provider, spec, [SYSTEM, user_message("Go.")], tools=TOOLS) == first
    assert provider.requests[-1].content == provider.requests[-2].content


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("raw", ["", '{"a": NaN}'])
async def test_a_past_input_that_is_no_object_becomes_one(
    wired: Models, provider: FakeProvider, spec: str, raw: str
) -> None:
    """It is in the history for good; unchanged, the provider would refuse every later request (I9)."""
    message = called(raw)
    calls, _ = calls_and_results(
        spec, await sent(wired, provider, spec, [user_message("Go."), message, answered(message)])
    )
    sent_input = calls[0].get("input", calls[0].get("args", calls[0].get("arguments")))
    assert (json.loads(sent_input) if isinstance(sent_input, str) else sent_input) == (
        {"invalid_json_arguments": raw} if raw else {}
    )


@pytest.mark.parametrize("spec", SPECS)
async def test_a_name_that_the_model_made_up_is_made_acceptable(
    wired: Models, provider: FakeProvider, spec: str
) -> None:
    """Call and result agree on it, and it begins as Gemini requires."""
    message = called(name="1.functions:look")
    body = await sent(wired, provider, spec, [user_message("Go."), message, answered(message)])
    calls, results = calls_and_results(spec, body)
    assert calls[0]["name"] == "_1_functions_look"
    assert results[0].get("name", "_1_functions_look") == "_1_functions_look"


async def test_results_have_each_providers_form_and_mark_failures(wired: Models, provider: FakeProvider) -> None:
    """Gemini gets an object, the others the text; a failure is marked as an error, a refusal is not (I12)."""
    message = Message(
        role="assistant",
        parts=tuple(ToolCallPart(tool_call_id=f"c{n}", tool_name="look", input="{}") for n in range(3)),
    )
    failure = Failure(kind="execution_error", reason="no")
    outcomes = answered(message, Ok(value={"seen": "Zoë"}), failure, rejected("ada", "not now"))
    history = [user_message("Go."), message, outcomes]
    _, results = calls_and_results(GOOGLE, await sent(wired, provider, GOOGLE, history))
    assert [result["response"] for result in results][:2] == [
        {"seen": "Zoë"},
        {"error": {"kind": "execution_error", "message": "no"}},
    ]
    assert results[2]["response"]["error"]["operator"] == "ada"
    body = await sent(wired, provider, ANTHROPIC, history)
    assert [block["is_error"] for block in body["messages"][2]["content"]] == [False, True, False]
    assert body["messages"][2]["content"][0]["content"] == [{"type": "text", "text": '{"seen":"Zoë"}'}]
    _, results = calls_and_results(BEDROCK, await sent(wired, provider, BEDROCK, history))
    assert [result["status"] for result in results] == ["success", "error", "success"]
    _, results = calls_and_results(GROQ, await sent(wired, provider, GROQ, history))
    assert results[1]["content"] == '{"error":{"kind":"execution_error","message":"no"}}'


@pytest.mark.parametrize("spec", [ANTHROPIC, BEDROCK])
async def test_messages_of_one_side_that_follow_each_other_are_one(
    wired: Models, provider: FakeProvider, spec: str
) -> None:
    """Roles alternate; results are directly after their calls, before what a person sent meanwhile."""
    message = called()
    empty = Message(
        role="assistant", parts=(ReasoningPart(text="?", provider_options={"elsewhere": {"signature": "x"}}),)
    )
    history = [SYSTEM, user_message("a"), user_message("b"), message, answered(message), user_message("c"), empty]
    history += [user_message("d"), Message(role="assistant", parts=(TextPart(text="e"),)), called(call_id="c2")]
    body = await sent(wired, provider, spec, [*history, answered(called(call_id="c2")), user_message("f")])
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    kinds = [
        ["tool_result" if "esult" in json.dumps(block) else "text" for block in turn["content"]]
        for turn in body["messages"]
    ]
    assert kinds[2] == ["tool_result", "text", "text"]
    assert len(body["messages"][3]["content"]) == 2


async def test_a_later_system_message_stays_in_its_place(wired: Models, provider: FakeProvider) -> None:
    """As the provider's own if it has one, else as the user's text; never moved to the front."""
    late = Message(role="system", parts=(TextPart(text="Mind the gap."),))
    answer_ = Message(role="assistant", parts=(TextPart(text="ok"),))
    history = [SYSTEM, user_message("a"), answer_, late, user_message("b")]
    groq = await sent(wired, provider, GROQ, history)
    assert [turn["role"] for turn in groq["messages"]] == ["system", "user", "assistant", "system", "user"]
    google = await sent(wired, provider, GOOGLE, history)
    assert google["systemInstruction"]["parts"] == [{"text": "Be brief."}]
    assert google["contents"][-1]["parts"] == [{"text": "Mind the gap."}, {"text": "b"}]


def cached(text: str, options: ProviderOptions) -> tuple[Part, ...]:
    return (TextPart(text=text, provider_options=options),)


async def test_cache_marks_reach_the_provider_that_they_are_for(wired: Models, provider: FakeProvider) -> None:
    """A mark on the instructions or on a user's text becomes the provider's own mark, and no other provider's."""
    mark: ProviderOptions = {"anthropic": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}}
    history = [Message(role="system", parts=cached("Be brief.", mark)), Message(role="user", parts=cached("Go.", mark))]
    body = await sent(wired, provider, ANTHROPIC, history)
    expected = {"type": "ephemeral", "ttl": "1h"}
    assert body["system"][0]["cache_control"] == expected
    assert body["messages"][0]["content"][0]["cache_control"] == expected
    for spec in (BEDROCK, GOOGLE, GROQ):
        assert "cache" not in json.dumps(await sent(wired, provider, spec, history)).lower()
    bedrock: ProviderOptions = {"bedrock": {"cachePoint": {"type": "default"}}}
    body = await sent(wired, provider, BEDROCK, [Message(role="user", parts=cached("Go.", bedrock))])
    assert body["messages"][0]["content"] == [{"text": "Go."}, {"cachePoint": {"type": "default", "ttl": "5m"}}]


async def test_files_go_in_the_providers_form(wired: Models, provider: FakeProvider) -> None:
    """Base64 and data addresses inline, other addresses by reference; broken base64 is refused before it is sent."""
    inline = FilePart(type="image", media_type="image/png", content="iVBORw0KGgo=")
    by_url = FilePart(type="image", media_type="image/png", url="https://example.com/a.png")
    paper = FilePart(type="file", media_type="application/pdf", url="data:application/pdf;base64,JVBERi0=")
    history = [Message(role="user", parts=(TextPart(text="See."), inline, by_url, paper))]
    content = (await sent(wired, provider, ANTHROPIC, history))["messages"][0]["content"]
    assert [block["type"] for block in content] == ["text", "image", "image", "document"]
    assert content[1]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert content[2]["source"] == {"type": "url", "url": "https://example.com/a.png"}
    only = [Message(role="user", parts=(TextPart(text="See."), inline))]
    assert (await sent(wired, provider, GOOGLE, only))["contents"][0]["parts"][1]["inlineData"][
        "data"
    ] == "iVBORw0KGgo="
    with pytest.raises(ModelError, match="not base64"):
        await sent(wired, provider, GOOGLE, [Message(role="user", parts=(inline.model_copy(update={"content": "?"}),))])
    with pytest.raises(ModelError) as refused:
        await sent(wired, provider, GROQ, [Message(role="user", parts=(paper,))])
    assert (refused.value.error_class, refused.value.retryable) == ("invalid_request", False)


async def test_options_are_passed_on_where_the_model_knows_them(wired: Models, provider: FakeProvider) -> None:
    """Bound, temperature and effort have each provider's names; a model that does not think gets no effort."""
    options = ModelOptions(max_output_tokens=500, temperature=0.25, reasoning_effort="low")
    ask = [user_message("Go.")]
    google = (await sent(wired, provider, GOOGLE, ask, options=options))["generationConfig"]
    assert (google["maxOutputTokens"], google["temperature"]) == (500, 0.25)
    assert google["thinkingConfig"]["thinking_level"] == "LOW"
    groq = await sent(wired, provider, GROQ, ask, options=options)
    assert (groq["max_tokens"], groq["temperature"], groq["reasoning_effort"]) == (500, 0.25, "low")
    anthropic = await sent(wired, provider, ANTHROPIC, ask, options=ModelOptions(reasoning_effort="low"))
    assert anthropic["thinking"] == {"type": "adaptive"}
    bedrock = await sent(wired, provider, BEDROCK, ask, options=ModelOptions(max_output_tokens=500, temperature=0.25))
    assert bedrock["inferenceConfig"] == {"maxTokens": 500, "temperature": 0.25}


async def test_a_tool_that_has_to_be_called_is_named_to_every_provider(wired: Models, provider: FakeProvider) -> None:
    """In its own form; a tool that the run goes without is not named."""
    options, ask = ModelOptions(tool_choice="look"), [user_message("Go.")]
    anthropic = await sent(wired, provider, ANTHROPIC, ask, tools=TOOLS, options=options)
    assert (anthropic["tool_choice"]["type"], anthropic["tool_choice"]["name"]) == ("tool", "look")
    google = await sent(wired, provider, GOOGLE, ask, tools=TOOLS, options=options)
    assert "look" in json.dumps(google["toolConfig"])
    groq = await sent(wired, provider, GROQ, ask, tools=TOOLS, options=options)
    assert groq["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    without = await sent(wired, provider, GROQ, ask, tools=TOOLS[:1], options=options)
    assert without["tool_choice"] == "auto"


ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


async def test_a_structured_reply_is_requested_in_the_models_own_way(wired: Models, provider: FakeProvider) -> None:
    """With the provider's schema if it has one, else with a call that is returned as text, streamed or not."""
    ask = [user_message("Which city?")]
    google = await sent(wired, provider, GOOGLE, ask, output=ANSWER_SCHEMA)
    assert google["generationConfig"]["responseMimeType"] == "application/json"
    anthropic = await sent(wired, provider, ANTHROPIC, ask, output=ANSWER_SCHEMA)
    assert anthropic["output_config"]["format"]["schema"]["properties"] == ANSWER_SCHEMA["properties"]
    assert "tools" not in anthropic
    body = recorded("groq-reasoning-call.json")
    function = {"name": "turngate_answer", "arguments": '{"city":"Köln"}'}
    body["choices"][0]["message"]["tool_calls"][0]["function"] = function
    provider.answer(body)
    model = wired.resolve(WITHOUT_SCHEMAS)
    request = ModelRequest(ask, TOOLS, output=ANSWER_SCHEMA)
    got = await model.generate(request)
    assert got.is_final
    assert (got.message.text, got.finish_reason) == ('{"city":"Köln"}', "stop")
    body = provider.requests[-1].body
    assert [each["function"]["name"] for each in body["tools"]] == ["zebra", "look", "apple", "turngate_answer"]
    assert body["tool_choice"] == "required"
    stream = content_of("groq-reasoning-call.sse").replace(b'"name": "look"', b'"name": "turngate_answer"')
    provider.answer(stream, headers={"content-type": "text/event-stream"})
    deltas: list[Delta] = []
    assert isinstance(model, StreamingModel)
    assert (await model.stream(request, deltas.append)).message.text == '{"name":"Zoë"}'
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == '{"name":"Zoë"}'
    assert not [delta for delta in deltas if delta.kind == "tool-call"]


async def test_a_provider_tool_has_to_say_how_this_provider_runs_it(wired: Models, provider: FakeProvider) -> None:
    """Without an entry for it, or with one that pydantic-ai does not know, nothing is sent and the message names the fix."""
    for entries in ({"openai": {"type": "web_search"}}, {"google": {"kind": "no such"}}):
        search = tool("search", {}, provider=entries).model_copy(update={"kind": "provider"})
        with pytest.raises(ModelError, match="'google'") as refused:
            await sent(wired, provider, GOOGLE, [user_message("Go.")], tools=[search])
        assert refused.value.error_class == "configuration"
    assert not provider.requests
    search = tool("search", {}, provider={"google": {"kind": "web_search"}}).model_copy(update={"kind": "provider"})
    body = await sent(wired, provider, GOOGLE, [user_message("Go.")], tools=[search])
    assert body["tools"] == [{"googleSearch": {}}]


async def test_a_lone_surrogate_does_not_end_the_request(wired: Models, provider: FakeProvider) -> None:
    """It has no UTF-8 form; it is sent as the replacement character, and pairs stay unchanged."""
    body = await sent(wired, provider, GROQ, [user_message("a\ud83d b\U0001f600")])
    assert body["messages"][0]["content"] == "a\ufffd b\U0001f600"


async def test_foreign_options_under_the_providers_name_are_left_out(wired: Models, provider: FakeProvider) -> None:
    """An assistant's part whose options are not this adapter's is sent as its text."""
    junk: ProviderOptions = {"anthropic": {"signature": {"not": "text"}}}
    message = Message(role="assistant", parts=(TextPart(text="Hm.", provider_options=junk), *called().parts))
    body = await sent(wired, provider, ANTHROPIC, [user_message("Go."), message, answered(message)])
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use"]
