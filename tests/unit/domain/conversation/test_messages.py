"""Messages as stored and sent: opaque provider fields survive byte for byte, and nothing is decoded on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turngate.domain.conversation.messages import (
    FilePart,
    Message,
    ModelResponse,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)
from turngate.domain.tools.results import Failure, Ok

OPAQUE: dict[str, Any] = {
    "z": 1.0,
    "a": 1,
    "big": 2**80,
    "tiny": 1e-7,
    "zero": -0.0,
    "sum": 0.1 + 0.2,
    "signature": "EqoBCkgI+/==\u2028\u0000é😀",
    "nested": [None, True, {"y": [], "x": {}}],
    "": "",
}


def written(options: object) -> str:
    """JSON as a provider's adapter would write it: key order, number forms and characters all count."""
    return json.dumps(options, ensure_ascii=False)


def test_provider_options_round_trip_byte_for_byte() -> None:
    """Key order, 1.0 next to 1, big integers and every character survive, on each kind of part and on the message."""
    parts = (
        TextPart(text="x", provider_options=OPAQUE),
        ReasoningPart(text="x", provider_options=OPAQUE),
        ToolCallPart(tool_call_id="c", tool_name="t", input="{}", provider_options=OPAQUE),
        ToolResultPart(tool_call_id="c", tool_name="t", result=Ok(value=OPAQUE), provider_options=OPAQUE),
        FilePart(type="image", media_type="image/png", content="aGk=", provider_options=OPAQUE),
    )
    message = Message(role="assistant", parts=parts, provider_options=OPAQUE)
    back = Message.model_validate_json(message.model_dump_json())
    assert back == message
    assert [type(part) for part in back.parts] == [type(part) for part in parts]
    for options in (back.provider_options, *(part.provider_options for part in back.parts)):
        assert written(options) == written(OPAQUE)
    result = back.results[0].result
    assert isinstance(result, Ok)
    assert written(result.value) == written(OPAQUE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_any_json_object_round_trips(options: dict[str, Any]) -> None:
    """Storing changes no JSON object that a provider may send."""
    message = user_message("x").model_copy(update={"provider_options": options})
    assert written(Message.model_validate_json(message.model_dump_json()).provider_options) == written(options)


@pytest.mark.parametrize("raw", ['{ "cents" :  5 }', '{"a":1,"a":2}', '{"n": 1.00}', "not json", "", "\x00"])
def test_i7_a_calls_input_is_the_text_the_model_sent(raw: str) -> None:
    """I7: raw input is text even where it looks like JSON: spacing, repeated keys and number forms stay."""
    call = ToolCallPart(tool_call_id="c", tool_name="t", input=raw)
    message = Message(role="assistant", parts=(call,))
    assert Message.model_validate_json(message.model_dump_json()).calls[0].input == raw


def test_a_messages_text_and_calls_are_in_order() -> None:
    """``text`` joins the text parts alone; calls and results keep the model's order."""
    first, second = (ToolCallPart(tool_call_id=call_id, tool_name="t", input="{}") for call_id in "ba")
    parts = (TextPart(text="I "), first, ReasoningPart(text="hidden"), TextPart(text="think"), second)
    message = Message(role="assistant", parts=parts)
    assert message.text == "I think"
    assert message.calls == [first, second]
    assert message.results == []


@pytest.mark.parametrize(
    "changed",
    [{"role": "developer"}, {"parts": [{"type": "video", "text": "x"}]}, {"parts": [{"type": "text"}]}, {"extra": 1}],
)
def test_a_message_of_another_shape_is_refused(changed: dict[str, Any]) -> None:
    """An unknown role, part or field is an error on input, not a surprise at the provider."""
    good = {"role": "user", "parts": [{"type": "text", "text": "x"}]}
    Message.model_validate(good)
    with pytest.raises(ValidationError):
        Message.model_validate({**good, **changed})


def test_messages_cannot_be_changed() -> None:
    """Messages are immutable: history is appended to, never rewritten."""
    with pytest.raises(ValidationError):
        user_message("x").role = "system"  # type: ignore[misc]


def test_a_response_round_trips_with_its_usage() -> None:
    """``call_model`` stores the whole response: message, finish reason, usage, model."""
    failure = Failure(kind="denied", reason="no", fields={"rule": "r"})
    message = Message(role="tool", parts=(ToolResultPart(tool_call_id="c", tool_name="t", result=failure),))
    response = ModelResponse(message=message, finish_reason="length", model="scripted:x")
    assert ModelResponse.model_validate_json(response.model_dump_json()) == response
    assert response.usage.input_tokens == response.usage.output_tokens == 0
