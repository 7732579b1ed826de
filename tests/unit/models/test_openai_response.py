from __future__ import annotations

import json

import pytest
from fake_provider import completion, tool_call

from turngate.domain.errors import ModelError
from turngate.domain.messages import Message, ModelResponse, ReasoningPart, TextPart, Usage
from turngate.models.openai_request import request_body
from turngate.models.openai_response import model_response, parse_completion


def read(body: object) -> ModelResponse:
    return model_response(parse_completion(json.dumps(body).encode()), model="openai:m")


def round_trip(body: object) -> dict[str, object]:
    """What the next request says of this answer, after the message went through the store's JSON."""
    stored = Message.model_validate_json(read(body).message.model_dump_json())
    return request_body("m", [stored], [])["messages"][0]


def test_text_usage_and_name():
    """A plain answer: one text part, the provider's counts, our name for people."""
    response = read(completion("Hello"))
    assert response == ModelResponse(
        message=Message(role="assistant", parts=(TextPart(text="Hello"),)),
        finish_reason="stop",
        usage=Usage(input_tokens=11, output_tokens=7),
        model="openai:m",
    )


def test_parallel_calls_keep_their_order_and_raw_input():
    """Calls come in the model's order, with the text it wrote; a missing id is left for the engine to mint."""
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
    ("given", "with_calls", "expected"),
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
def test_finish_reasons(given, with_calls, expected):
    """``stop`` with calls counts as calls; ``length`` and ``content_filter`` stay, so that such calls never run."""
    calls = [tool_call("a", "{}")] if with_calls else None
    assert read(completion("x", calls=calls, finish_reason=given)).finish_reason == expected


OPAQUE_MESSAGE = {
    "reasoning_content": "",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA/+é=", "index": 0, "id": None}],
    "annotations": [],
}
OPAQUE_CALL = {"extra_content": {"google": {"thought_signature": "CpgB/+=="}}, "index": 0}


def test_opaque_fields_make_the_round_trip_byte_for_byte():
    """Unknown keys of message, call and function come back in the same place with the same JSON, nulls included."""
    call = tool_call("a", '{"x":1}', **OPAQUE_CALL)
    call["function"]["vendor"] = {"k": [1, 2.5, None, "ü"]}
    sent = round_trip(completion("Hi", calls=[call], **OPAQUE_MESSAGE))
    assert json.dumps({key: sent[key] for key in OPAQUE_MESSAGE}) == json.dumps(OPAQUE_MESSAGE)
    assert json.dumps(sent["tool_calls"], sort_keys=True) == json.dumps([call], sort_keys=True)
    assert sent["content"] == "Hi"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_shown_and_given_back_once(key):
    """Reasoning text becomes a part for people, and goes back under the key it came in, not as content."""
    body = completion("Answer", **{key: "Let me see."})
    assert read(body).message.parts == (ReasoningPart(text="Let me see."), TextPart(text="Answer"))
    assert round_trip(body) == {"role": "assistant", "content": "Answer", key: "Let me see."}


def test_content_blocks_are_read_and_go_back_as_they_came():
    """Mistral's reasoning models answer in blocks."""
    blocks = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "42"}]
    body = completion()
    body["choices"][0]["message"]["content"] = blocks
    assert read(body).message.text == "42"
    assert round_trip(body)["content"] == blocks


def test_a_refusal_is_readable_and_goes_back_as_one():
    """OpenAI says a refusal apart from content; people read it, and the next request keeps it apart."""
    body = completion(None, refusal="I can't help with that.")
    assert read(body).finish_reason == "refusal"
    assert read(body).message.text == "I can't help with that."
    assert round_trip(body) == {"role": "assistant", "content": None, "refusal": "I can't help with that."}


@pytest.mark.parametrize("usage", [None, "many", {"prompt_tokens": None}, {"prompt_tokens": -1}])
def test_a_strange_usage_does_not_lose_the_answer(usage):
    """Counts that make no sense are 0."""
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
        b'{"choices": [{"message": {"content": 7}}]}',
        b'{"choices": [{"message": {"content": "\\ud83d"}}]}',
    ],
)
def test_what_is_not_a_completion_is_a_bad_response(content):
    """Empty, not JSON, no choices, wrong shapes, half a surrogate pair: retryable, as the next answer may be whole."""
    with pytest.raises(ModelError) as caught:
        model_response(parse_completion(content), model="openai:m")
    assert (caught.value.error_class, caught.value.retryable) == ("bad_response", True)


def test_white_space_before_the_answer_is_fine():
    """Gateways send it to keep a slow connection open."""
    content = b"\n \n" + json.dumps(completion("ok")).encode()
    assert model_response(parse_completion(content), model="openai:m").message.text == "ok"
