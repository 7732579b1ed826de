"""What earlier systems learned about providers' codecs, as far as it applies to the chat-completions adapter.

Not taken over: stripping a schema to what one provider takes, and a result's tool name on the wire (chat completions
have the call id alone).
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from support.servers.fake_provider import completion, tool_call

from turngate import tool
from turngate.domain.conversation.history import close_pending, mint_call_ids, reconcile
from turngate.domain.conversation.messages import (
    FinishReason,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turngate.domain.tools.results import Failure, Ok, as_object, wire_text
from turngate.models.openai.errors import Endpoint, error_in_body, error_of_status
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


# Results are objects.


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("plain text", {"value": "plain text"}),
        ({"a": 1}, {"a": 1}),
        ([1, 2], {"value": [1, 2]}),
        ("[1,2]", {"value": "[1,2]"}),
        ('{"a":1}', {"value": '{"a":1}'}),
        (7, {"value": 7}),
        (None, {"value": None}),
    ],
)
def test_a_result_reaches_the_model_as_an_object(returned: Any, expected: dict[str, Any]) -> None:
    """An object passes as it is and anything else is wrapped.

    Earlier systems take JSON in a result's text for the object itself. DESIGN 5 wraps by the value's
    type, so a text that happens to be JSON stays the text that the tool returned.
    """
    assert json.loads(sent_result(Ok(value=as_object(returned)))["content"]) == expected


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


# Results are directly after the turn they belong to.


def test_results_are_sent_directly_after_their_turn() -> None:
    """Text and calls of one response are one entry; its results follow in call order, and then the next turn."""
    history = [
        results(result_of("b", Ok(value={"early": True}))),
        calling(("a", "{}"), ("b", "{}"), text="Both."),
        results(result_of("b", Ok(value={"n": 2}))),
        results(result_of("a", Ok(value={"n": 1})), result_of("b", Ok(value={"again": True}))),
        Message(role="user", parts=(TextPart(text="and?"),)),
        calling(("c", "{}")),
        Message(role="user", parts=(TextPart(text="never mind"),)),
    ]
    cancelled = Failure(kind="cancelled", reason="moved on")
    assert [
        (entry["role"], entry.get("tool_call_id") or [call["id"] for call in entry.get("tool_calls", [])])
        for entry in wire(*reconcile(history, cancelled))
    ] == [
        ("assistant", ["a", "b"]),
        ("tool", "a"),
        ("tool", "b"),
        ("user", []),
        ("assistant", ["c"]),
        ("tool", "c"),
        ("user", []),
    ]
    contents = [entry["content"] for entry in wire(*reconcile(history, cancelled)) if entry["role"] == "tool"]
    assert contents == ['{"n":1}', '{"n":2}', wire_text(cancelled)]


def test_a_closure_answers_its_call_like_any_result() -> None:
    """A cancelled call is sent with a result that says so."""
    open_ended = [calling(("a", "{}"))]
    closed = [*open_ended, results(*close_pending(open_ended, "moved on"))]
    assert json.loads(wire(*closed)[1]["content"]) == {"error": {"kind": "cancelled", "message": "moved on"}}


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


# What the model sent stays as it was.

MALFORMED = ["{bad", '{"path": "/tm', "[1]", '"x"', "null", '{"n": NaN}', "not json", '{"a":1} trailing']
WELL_FORMED = ['{ "cents" : 5 }', '{"a":1,"a":2}', '{"n":1.00}', '{"s":"\\u00e9é"}', "{}"]


@pytest.mark.parametrize("raw", MALFORMED)
def test_i9_malformed_arguments_are_never_replaced(raw: str) -> None:
    """I9: one earlier codec sends ``{}`` instead, another fails before the request.

    DESIGN overrides both: the run continues, the model reads what it sent inside an object, and the store keeps the bytes.
    """
    message = calling(("c1", raw))
    before = message.model_dump_json()
    sent = wire(message)[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"invalid_json_arguments": raw}
    assert message.model_dump_json() == before
    assert Message.model_validate_json(before).calls[0].input == raw


@pytest.mark.parametrize("raw", WELL_FORMED)
def test_well_formed_arguments_go_back_as_they_came(raw: str) -> None:
    """From the response through the minting of ids, the store and the repair: the same bytes are sent."""
    body = completion(calls=[tool_call("look", raw, call_id=None)])
    answer = model_response(parse_completion(json.dumps(body).encode()), model="openai:m").message
    sent = wire(*reconcile([mint_call_ids(answer, step=1, taken=set())]))
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == raw
    assert sent[0]["tool_calls"][0]["id"] == sent[1]["tool_call_id"] == "call_1_0"


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


# The provider's endings and Turngate's names for them.


@pytest.mark.parametrize(
    ("ended", "options", "expected"),
    [
        ("stop", {}, "stop"),
        ("tool_calls", {}, "tool_calls"),
        ("length", {}, "length"),
        ("stop", {"refusal": "No."}, "refusal"),
        ("content_filter", {}, "content_filter"),
        ("max_tool_calls", {}, "other"),
        ("something_new", {}, "other"),
    ],
)
def test_every_finish_reason_is_translated(ended: str | None, options: dict[str, str], expected: FinishReason) -> None:
    """An unknown reason is ``other``; a response cut off for length differs from a finished one."""
    body = completion(None if options else "x", finish_reason=ended, **options)
    assert model_response(parse_completion(json.dumps(body).encode()), model="openai:m").finish_reason == expected


HERE = Endpoint(url="http://provider", model="m", secret="k")
REFUSALS: dict[str, tuple[int, dict[str, Any], str, bool]] = {
    "rate limited": (429, {"message": "slow down"}, "rate_limited", True),
    "out of quota": (429, {"code": "insufficient_quota"}, "permission", False),
    "unavailable": (503, {"message": "busy"}, "server_error", True),
    "the provider's own timeout": (504, {}, "server_error", True),
    "content filtered": (400, {"code": "content_filter", "message": "filtered"}, "invalid_request", False),
    "context too long": (400, {"code": "context_length_exceeded"}, "context_length", False),
    "invalid request": (400, {"message": "no"}, "invalid_request", False),
    "authentication failed": (401, {}, "authentication", False),
    "not permitted": (403, {}, "permission", False),
}


@pytest.mark.parametrize(("status", "refusal", "error_class", "retryable"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("where", ["status", "body"])
def test_each_refusal_has_a_class_that_says_whether_to_try_again(
    status: int, refusal: dict[str, Any], error_class: str, retryable: bool, where: str
) -> None:
    """The same refusal has the same class as a status and inside a 200; only a passing one is retried."""
    if where == "status":
        error = error_of_status(status, {}, json.dumps({"error": refusal}).encode(), HERE)
    else:
        error = error_in_body({"type": refusal.get("code"), **refusal, "code": status}, HERE)
    assert (error.error_class, error.retryable) == (error_class, retryable)
