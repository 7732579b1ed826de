"""What earlier systems learned about providers' codecs, as far as it applies to the chat-completions adapter.

Not taken over: stripping a schema to what one provider takes, and a result's tool name on the wire (chat completions
have the call id alone).
"""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from support.servers.fake_provider import completion

from turngate import tool
from turngate.domain.conversation.messages import (
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turngate.domain.tools.results import Failure, Ok, as_object, wire_text
from turngate.models.openai.request import PROVIDER, request_body
from turngate.models.openai.response import model_response, parse_completion
from turngate.models.port import ModelRequest

OPAQUE: dict[str, Any] = {"z": [1.0, None, {"k": 2**70}], "signature": "CpgB/+==\u2028é😀", "a": ""}
FOREIGN: dict[str, Any] = {"anthropic": {"secret": "foreign"}, "gemini": {"id": "foreign"}}


def wire(*messages: Message) -> Any:
    """Return the messages as the server reads them, each after the store's JSON."""
    stored = [Message.model_validate_json(message.model_dump_json()) for message in messages]
    return json.loads(json.dumps(request_body("m", ModelRequest(messages=stored))["messages"]))


def calling(*calls: tuple[str, str], text: str = "") -> Message:
    parts = [ToolCallPart(tool_call_id=call_id, tool_name="look", input=raw) for call_id, raw in calls]
    return Message(role="assistant", parts=(TextPart(text=text), *parts) if text else tuple(parts))


def result_of(call_id: str, result: Ok | Failure, **options: Any) -> ToolResultPart:
    return ToolResultPart(tool_call_id=call_id, tool_name="look", result=result, **options)


def results(*parts: ToolResultPart) -> Message:
    return Message(role="tool", parts=parts)


def sent_result(result: Ok | Failure, **options: Any) -> Any:
    return wire(calling(("c1", "{}")), results(result_of("c1", result, **options)))[1]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.builds(Ok, value=JSON_VALUES.map(as_object))
    | st.builds(Failure, kind=st.text(), reason=st.text(), fields=st.dictionaries(st.text(), JSON_VALUES, max_size=3)),
    st.none() | JSON_VALUES.map(as_object).map(json.dumps),
)
def test_every_result_is_sent_as_an_object_of_its_one_wire_text(result: Ok | Failure, edited: str | None) -> None:
    """Success, failure, edited or not: the request has ``wire_text``, which is a JSON object."""
    sent = sent_result(result, edited_input=edited)
    assert sent == {"role": "tool", "tool_call_id": "c1", "content": wire_text(result, edited_input=edited)}
    assert isinstance(json.loads(sent["content"]), dict)


# A provider's own fields go back to it, and to no other provider.


def with_options(options: dict[str, Any]) -> list[Message]:
    """One message of each role, with these options wherever the adapter sends a provider's own fields."""
    call = ToolCallPart(tool_call_id="c1", tool_name="look", input="{}", provider_options=options)
    part = TextPart(text="Look.", provider_options=options)
    return [
        Message(role="system", parts=(part,), provider_options=options),
        Message(role="user", parts=(part,), provider_options=options),
        Message(role="assistant", parts=(TextPart(text="Yes."), call), provider_options=options),
        results(result_of("c1", Ok(value={}), provider_options=options)),
    ]


def test_opaque_fields_of_every_role_go_back_byte_for_byte() -> None:
    """Number forms, nulls, key order and every character survive the store, on the message and on its parts."""
    system, user, assistant, result = wire(*with_options({PROVIDER: OPAQUE, **FOREIGN}))
    echoed = (system, system["content"][0], user, user["content"][0], assistant, assistant["tool_calls"][0], result)
    for entry in echoed:
        opaque = {key: value for key, value in entry.items() if key in OPAQUE}
        assert json.dumps(opaque, ensure_ascii=False) == json.dumps(OPAQUE, ensure_ascii=False)
    assert user["content"] == [{"type": "text", "text": "Look.", **OPAQUE}]


def test_an_empty_text_is_not_sent_as_a_block_for_its_options_sake() -> None:
    """Providers refuse an empty text block, and options without text have no meaning."""
    empty = TextPart(text="", provider_options={PROVIDER: OPAQUE})
    assert wire(Message(role="user", parts=(empty,))) == [{"role": "user", "content": ""}]


def test_another_providers_options_change_nothing_that_is_sent() -> None:
    """A conversation that began at another provider is sent without that one's marks."""
    assert wire(*with_options(FOREIGN)) == wire(*with_options({}))
    assert "foreign" not in json.dumps(wire(*with_options({**FOREIGN, PROVIDER: OPAQUE})))


def test_a_signed_thought_without_text_goes_back_unseen() -> None:
    """Reasoning that is only a signature is stored for the provider; there is no text to show."""
    details = [{"type": "reasoning.encrypted", "data": "sig/+=", "id": None}]
    body = completion("Done.", reasoning_details=details)
    message = model_response(parse_completion(json.dumps(body).encode()), model="openai:m").message
    assert not [part for part in message.parts if isinstance(part, ReasoningPart)]
    assert wire(message) == [{"role": "assistant", "content": "Done.", "reasoning_details": details}]


def test_making_a_request_changes_nothing_it_was_made_from() -> None:
    """The request copies opaque values: the stored messages stay unchanged."""
    messages = with_options({PROVIDER: copy.deepcopy(OPAQUE)})
    before = [message.model_dump_json() for message in messages]
    assert request_body("m", ModelRequest(messages=messages)) == request_body("m", ModelRequest(messages=messages))
    assert [message.model_dump_json() for message in messages] == before


class Place(BaseModel):
    city: str


class Trip(BaseModel):
    stops: list[Place]


@tool()
async def plan_trip(params: Trip) -> str:
    """Plan it."""
    return params.stops[0].city


def test_a_schema_is_sent_as_it_was_declared() -> None:
    """Nothing is removed (``$defs`` and ``$ref`` stay): the model gets the schema of the digest and the operator's form."""
    sent = request_body("m", ModelRequest(messages=[], tools=[plan_trip.manifest]))["tools"][0]["function"][
        "parameters"
    ]
    assert sent == plan_trip.manifest.parameters
    assert "$defs" in sent
