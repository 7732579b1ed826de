from __future__ import annotations

import json

import pytest
from support.servers.fake_provider import completion, tool_call

from turngate.domain.conversation.messages import Message, ModelResponse, ReasoningPart, TextPart, Usage
from turngate.domain.errors import ModelError
from turngate.models.openai.request import request_body
from turngate.models.openai.response import model_response, parse_completion
from turngate.models.port import ModelRequest


def read(body: object, *, tools_offered: bool = False) -> ModelResponse:
    completed = parse_completion(json.dumps(body).encode())
    return model_response(completed, model="openai:m", tools_offered=tools_offered)


def answer_of(message: object, **choice: object) -> ModelResponse:
    """Return the response for this message, read as if tools had been offered."""
    return read({"choices": [{"finish_reason": "stop", "message": message, **choice}]}, tools_offered=True)


def round_trip(body: object) -> dict[str, object]:
    """Return what the next request has for this message after the store's JSON."""
    stored = Message.model_validate_json(read(body).message.model_dump_json())
    return request_body("m", ModelRequest(messages=[stored]))["messages"][0]


def test_text_usage_and_name():
    """A plain response: one text part, the provider's counts, Turngate's name for the model."""
    response = read(completion("Hello"))
    assert response == ModelResponse(
        message=Message(role="assistant", parts=(TextPart(text="Hello"),)),
        finish_reason="stop",
        usage=Usage(input_tokens=11, output_tokens=7),
        model="openai:m",
    )


def test_parallel_calls_keep_their_order_and_raw_input():
    """Calls keep the model's order and its text; the engine mints a missing id."""
    calls = [
        tool_call("b", '{ "x" : 1 }', call_id="c2"),
        tool_call("a", '{"broken": ', call_id=None),
        tool_call("c", None),
    ]
    parts = read(completion(calls=calls)).message.calls
    assert [(part.tool_call_id, part.tool_name, part.input) for part in parts] == [
        ("c2", "b", '{ "x" : 1 }'),
        ("", "a", '{"broken": '),
        ("c1", "c", ""),
    ]


def test_arguments_given_as_an_object_become_text():
    """Ollama-like servers send the object itself."""
    part = read(completion(calls=[tool_call("a", {"city": "Zürich"})])).message.calls[0]
    assert part.input == '{"city": "Zürich"}'


@pytest.mark.parametrize(
    ("reason", "with_calls", "expected"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("tool_calls", True, "tool_calls"),
        ("function_call", True, "tool_calls"),
        ("length", True, "length"),
        ("content_filter", True, "content_filter"),
        ("something_new", False, "other"),
    ],
)
def test_finish_reasons(reason, with_calls, expected):
    """``stop`` with calls counts as calls; ``length`` and ``content_filter`` stay, so that such calls never run."""
    calls = [tool_call("a", "{}")] if with_calls else None
    assert read(completion("x", calls=calls, finish_reason=reason)).finish_reason == expected


OPAQUE_MESSAGE = {
    "reasoning_content": "",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA/+é=", "index": 0, "id": None}],
    "annotations": [{"type": "url_citation"}],
}
OPAQUE_CALL = {"extra_content": {"google": {"thought_signature": "CpgB/+=="}}}


def test_opaque_fields_make_the_round_trip_byte_for_byte():
    """Unknown keys of message, call and function return in the same place with the same JSON, nulls included."""
    call = tool_call("a", '{"x":1}', **OPAQUE_CALL)
    call["function"]["vendor"] = {"k": [1, 2.5, None, "ü"]}
    sent = round_trip(completion("Hi", calls=[call], **OPAQUE_MESSAGE))
    assert json.dumps({key: sent[key] for key in OPAQUE_MESSAGE}) == json.dumps(OPAQUE_MESSAGE)
    assert json.dumps(sent["tool_calls"], sort_keys=True) == json.dumps([call], sort_keys=True)
    assert sent["content"] == "Hi"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_shown_and_sent_back_once(key):
    """Reasoning text becomes a part for people, and goes back under its original key, not as content."""
    body = completion("Answer", **{key: "Let me see."})
    assert read(body).message.parts == (ReasoningPart(text="Let me see."), TextPart(text="Answer"))
    assert round_trip(body) == {"role": "assistant", "content": "Answer", key: "Let me see."}


def test_content_blocks_are_read_and_go_back_as_they_came():
    """Mistral's reasoning models answer in blocks; people see the thinking, too."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}, {"type": "image"}]}
    blocks = [thinking, {"type": "text", "text": "42"}]
    body = completion()
    body["choices"][0]["message"]["content"] = blocks
    assert read(body).message.text == "42"
    assert [(part.type, getattr(part, "text", "")) for part in read(body).message.parts] == [
        ("reasoning", "hm"),
        ("text", "42"),
    ]
    assert round_trip(body)["content"] == blocks
    blocks[0]["thinking"] = "hm"
    assert read(body).message.parts[0] == ReasoningPart(text="hm")


def test_a_refusal_is_readable_and_goes_back_as_one():
    """OpenAI separates a refusal from content; people can read it, and the next request keeps it separate."""
    body = completion(None, refusal="I can't help with that.")
    assert read(body).finish_reason == "refusal"
    assert read(body).message.text == "I can't help with that."
    assert round_trip(body) == {"role": "assistant", "content": None, "refusal": "I can't help with that."}


def test_cached_tokens_are_counted_apart() -> None:
    """Tokens that the provider read from its cache are among its input tokens, and known by themselves."""
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 80}}
    counted = Usage(input_tokens=100, output_tokens=5, cache_read_tokens=80)
    assert read({**completion("x"), "usage": usage}).usage == counted


def test_groqs_own_field_counts_if_there_is_no_usage():
    """Groq's servers have sent the counts there alone; ``usage`` takes precedence."""
    counts = {"prompt_tokens": 5, "completion_tokens": 3}
    body = {**completion("x"), "usage": None, "x_groq": {"id": "req_1", "usage": counts}}
    assert read(body).usage == Usage(input_tokens=5, output_tokens=3)
    assert read({**body, "usage": {"prompt_tokens": 7}}).usage == Usage(input_tokens=7)
    assert read({**body, "x_groq": "junk"}).usage == Usage()


@pytest.mark.parametrize("usage", [None, "many", {"prompt_tokens": None}, {"prompt_tokens": -1}])
def test_an_invalid_usage_does_not_lose_the_response(usage):
    """Invalid counts are 0."""
    assert read({**completion("x"), "usage": usage}).usage == Usage()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"  \n ",
        b"<html>busy</html>",
        b"[]",
        b'{"choices": [], "object": "chat.completion"}',
        b"{}",
        b'{"choices": [null]}',
        b'{"choices": {"message": {"content": "x"}}}',
        b'{"choices": [{"message": {"content": "\\ud83d"}}]}',
    ],
)
def test_what_is_not_a_completion_is_a_bad_response(content):
    """Empty, not JSON, no choices, a wrong envelope, half a surrogate pair: retryable, as the next answer may be valid."""
    with pytest.raises(ModelError) as caught:
        model_response(parse_completion(content), model="openai:m")
    assert (caught.value.error_class, caught.value.retryable) == ("bad_response", True)


def test_white_space_before_the_answer_is_fine():
    """Gateways send it to keep a slow connection open."""
    content = b"\n \n" + json.dumps(completion("ok")).encode()
    assert model_response(parse_completion(content), model="openai:m").message.text == "ok"


@pytest.mark.parametrize(
    ("junk", "expected"),
    [
        (None, ("", "", "null")),
        ("look", ("", "", '"look"')),
        ([{"name": "look"}], ("", "", '[{"name": "look"}]')),
        ({}, ("", "", "")),
        ({"id": 7, "type": "function"}, ("", "", "")),
        ({"id": "c9", "function": None}, ("c9", "", "")),
        ({"id": "c9", "function": {"arguments": '{"a":1}'}}, ("c9", "", '{"a":1}')),
        ({"id": "c9", "function": {"name": ["look"], "arguments": "{}"}}, ("c9", "", "{}")),
        ({"id": "c9", "function": {"name": "look", "arguments": 5}}, ("c9", "look", "5")),
        ({"id": "c9", "function": {"name": "look", "arguments": ["x"]}}, ("c9", "look", '["x"]')),
        ({"id": "c9", "name": "look", "arguments": {"a": 1}}, ("c9", "look", '{"a": 1}')),
        ({"id": "c9", "function": "look", "arguments": "{}"}, ("c9", "look", "{}")),
    ],
)
def test_i9_a_broken_call_keeps_what_can_be_read(junk, expected):
    """I9: an invalid entry of tool_calls is still a call, so the model gets a result for it; its neighbours stay whole."""
    good = tool_call("look", '{"a":1}', call_id="c1")
    response = answer_of({"content": None, "tool_calls": [good, junk]}, finish_reason="tool_calls")
    first, second = response.message.calls
    assert (first.tool_call_id, first.tool_name, first.input) == ("c1", "look", '{"a":1}')
    assert (second.tool_call_id, second.tool_name, second.input) == expected
    assert (response.malformed, response.finish_reason) == ("", "tool_calls")
    sent = request_body("m", ModelRequest(messages=[Message.model_validate_json(response.message.model_dump_json())]))
    assert [call["type"] for call in sent["messages"][0]["tool_calls"]] == ["function", "function"]


@pytest.mark.parametrize(
    ("message", "text", "says"),
    [
        (None, "", "message is not an object"),
        ("Just text.", "Just text.", "message is not an object"),
        ([], "", "message is not an object"),
        ({"content": 7}, "", "content is neither text nor"),
        ({"content": {"text": "x"}}, "", "content is neither text nor"),
        ({"content": [{"type": "text", "text": "Half."}, 7]}, "Half.", "a block that is not an object"),
        ({"content": "Well.", "tool_calls": {"name": "look"}}, "Well.", "tool_calls are not a list"),
        ({"content": "Well.", "tool_calls": "look()"}, "Well.", "tool_calls are not a list"),
        ({"content": "Well.", "refusal": {"why": 1}}, "Well.", "refusal is not text"),
    ],
)
def test_i9_a_message_that_cannot_be_read_is_malformed_and_keeps_its_text(message, text, says):
    """I9: the response is paid for, and the model reads what was wrong with it; the provider did not fail."""
    response = answer_of(message)
    assert says in response.malformed
    assert (response.message.text, response.message.calls, response.is_final) == (text, [], False)


def test_i9_a_message_that_nests_too_deep_to_be_stored_is_malformed():
    """I9: what pydantic can write but not read would break the conversation for good; a shallower message is stored."""
    deep: object = 1
    for _ in range(150):
        deep = [deep]
    response = answer_of({"content": "Hi.", "reasoning_details": deep})
    assert "nests too deep" in response.malformed
    assert Message.model_validate_json(response.message.model_dump_json()).text == "Hi."
    for _ in range(60):
        deep = deep[0]
    response = answer_of({"content": "Hi.", "reasoning_details": deep})
    assert response.malformed == ""
    assert Message.model_validate_json(response.message.model_dump_json()) == response.message


@pytest.mark.parametrize(
    "choice",
    [
        {"finish_reason": "malformed_function_call"},
        {"finish_reason": "MALFORMED_FUNCTION_CALL"},
        {"finish_reason": "function_call_filter: MALFORMED_FUNCTION_CALL"},
        {"finish_reason": "error", "native_finish_reason": "MALFORMED_FUNCTION_CALL"},
    ],
)
def test_i9_a_provider_that_could_not_read_the_call_says_so_by_its_reason(choice):
    """I9: it is the model's mistake, whatever text or calls it has; it is not the provider's error."""
    body = {"choices": [{"message": {"content": "I call.", "tool_calls": [tool_call("look", "{}")]}, **choice}]}
    assert parse_completion(json.dumps(body).encode()).any_error is None
    response = read(body)
    assert "could not read the tool call" in response.malformed
    assert response.message.text == "I call."


@pytest.mark.parametrize(
    "choice",
    [
        {"finish_reason": "function_call_filter: UNEXPECTED_TOOL_CALL"},
        {"finish_reason": "error", "native_finish_reason": "UNEXPECTED_TOOL_CALL"},
    ],
)
def test_i9_a_call_of_a_tool_that_was_not_offered_is_a_call(choice):
    """I9: it is whole, so planning closes it by its name; without a call to read, the response is malformed."""
    message = {"content": "I call.", "tool_calls": [tool_call("lok", "{}")]}
    response = read({"choices": [{"message": message, **choice}]}, tools_offered=True)
    assert (response.malformed, response.finish_reason) == ("", "tool_calls")
    assert [call.tool_name for call in response.message.calls] == ["lok"]
    assert "unexpected_tool_call" in read({"choices": [{"message": {"content": None}, **choice}]}).malformed
    broken = {"content": 7, "tool_calls": [tool_call("lok", "{}")]}
    assert "content is neither" in read({"choices": [{"message": broken, **choice}]}).malformed


@pytest.mark.parametrize("reason", [7, {"x": 1}, ["stop"], True])
def test_an_unknown_finish_reason_does_not_lose_the_response(reason):
    """A reason that is not text is ``other``."""
    response = answer_of({"content": "Hi."}, finish_reason=reason)
    assert (response.finish_reason, response.malformed, response.message.text) == ("other", "", "Hi.")
