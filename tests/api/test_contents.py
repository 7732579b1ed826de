"""The pure parts: exact JSON, schema checks, cursors, and which content fits which request."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api.api_server import ask_person, pay

from turngate.approvals_api.paging import decode_cursor, encode_cursor
from turngate.approvals_api.requests.answer_check import check_content
from turngate.approvals_api.validation.exact_json import member_text, parse_exact
from turngate.approvals_api.validation.json_schema import problems_of
from turngate.domain.errors import InvalidInputError
from turngate.store.requests.requests import Request
from turngate.wire.orders import DecisionOrder

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
REQUEST = Request(
    id="rq_1", run_id="run_1", tool_call_id="c1", kind="approval", status="pending", agent="agent", tool_name="pay",
    manifest=pay.manifest.model_dump_json(), input='{"cents": 5}', digest="d", rule="r", reason="", risk="low",
    agent_words="", preview_kind=None, preview=None, not_by=None, expires_at=None, created_at="2025-01-01T00:00:00+00:00",
    urgent_at="2025-01-01T00:00:00+00:00",
)  # fmt: skip
QUESTION = replace(REQUEST, kind="question", manifest=ask_person.manifest.model_dump_json())
OUTCOME = replace(REQUEST, kind="outcome")


@pytest.mark.exhaustive
@given(members=st.dictionaries(st.text(), JSON), indent=st.sampled_from([None, 0, 3]), ascii_only=st.booleans())
def test_a_members_text_is_found_exactly(members: dict[str, object], indent: int | None, ascii_only: bool) -> None:
    """Whatever surrounds it, the text is the one that was written for this member."""
    body = json.dumps(members, indent=indent, ensure_ascii=ascii_only)
    for name, value in members.items():
        text = member_text(body, name)
        assert text is not None
        assert text in body
        assert json.loads(text) == value
    assert member_text(body, "not there \x00") is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"args":1.0e2}', "1.0e2"),
        ('{"a":{"args":1},"args" : [ 1 ] }', "[ 1 ]"),
        ('{"args":1,"args":2}', "2"),
        ('{"\\u0061rgs":  "x"}', '"x"'),
        (" {} ", None),
        ("[]", None),
    ],
)
def test_members_of_odd_bodies(body: str, text: str | None) -> None:
    """Nested members are not taken; the last of two counts; escapes in names are read."""
    assert member_text(body, "args") == text


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", "[Infinity]", '{"a":1,"a":2}', '{"x":{"a":1,"a":1}}', '"\\ud800"', "[" * 100_000]
)
def test_ambiguous_json_is_refused(text: str) -> None:
    """A text that two readers could read differently, or that no store can hold, is no decision."""
    with pytest.raises(InvalidInputError) as refused:
        parse_exact(text, pointer="/args", code="invalid_edit")
    assert refused.value.error_code == "invalid_edit"
    assert refused.value.details["errors"][0]["pointer"] == "/args"


def test_a_schema_is_never_fetched() -> None:
    """A $ref to elsewhere is a problem, not a request; one within the schema is followed."""
    assert "does not hold" in problems_of({}, {"$ref": "http://127.0.0.1:1/schema.json"}, under="/args")[0]["message"]
    inner = {"$defs": {"n": {"type": "integer"}}, "properties": {"a/b": {"$ref": "#/$defs/n"}}}
    assert problems_of({"a/b": 1}, inner, under="/args") == []
    assert problems_of({"a/b": "x"}, inner, under="/args")[0]["pointer"] == "/args/a~1b"


@pytest.mark.parametrize(
    ("request_", "verb", "content"),
    [
        (REQUEST, "approve", {}),
        (REQUEST, "approve", {"message": "fine"}),
        (REQUEST, "reject", {"message": "no"}),
        (REQUEST, "respond", {"message": "do it by hand"}),
        (REQUEST, "edit", {"args": '{"cents": 1}'}),
        (QUESTION, "respond", {"args": '{"answer": "x"}'}),
        (QUESTION, "reject", {}),
        (OUTCOME, "respond", {"outcome": "happened", "args": '{"paid": 5}'}),
        (OUTCOME, "respond", {"outcome": "happened"}),
        (OUTCOME, "respond", {"outcome": "did_not_happen"}),
        (OUTCOME, "respond", {"outcome": "tell_model", "message": "ask the bank"}),
    ],
)
def test_fitting_content_passes(request_: Request, verb: str, content: dict[str, str]) -> None:
    """Every row of the table of contents."""
    check_content(request_, DecisionOrder.model_validate({"verb": verb, "digest": request_.digest, **content}))


@pytest.mark.parametrize(
    ("request_", "verb", "content", "pointer"),
    [
        (REQUEST, "edit", {}, "/args"),
        (REQUEST, "edit", {"args": '{"cents": 1, "cents": 2}'}, "/args"),
        (REQUEST, "edit", {"args": '{"cents": "x"}'}, "/args/cents"),
        (REQUEST, "edit", {"args": "1" * 1_000_001}, "/args"),
        (REQUEST, "respond", {"message": " "}, "/message"),
        (REQUEST, "approve", {"outcome": "happened"}, "/outcome"),
        (QUESTION, "approve", {}, "/decision"),
        (QUESTION, "respond", {}, "/args"),
        (QUESTION, "respond", {"args": "{}"}, "/args"),
        (OUTCOME, "approve", {}, "/decision"),
        (OUTCOME, "respond", {}, "/outcome"),
        (OUTCOME, "respond", {"outcome": "happened", "args": '{"paid": "x"}'}, "/args/paid"),
        (OUTCOME, "respond", {"outcome": "tell_model", "args": "1"}, "/args"),
    ],
)
def test_content_that_does_not_fit_is_refused(
    request_: Request, verb: str, content: dict[str, str], pointer: str
) -> None:
    """With a pointer to the member that does not fit."""
    with pytest.raises(InvalidInputError) as refused:
        check_content(request_, DecisionOrder.model_validate({"verb": verb, "digest": request_.digest, **content}))
    assert refused.value.details["errors"][0]["pointer"] == pointer


def test_cursors_go_round_trip() -> None:
    """Decoding returns what was encoded; without a cursor there is none."""
    assert decode_cursor(encode_cursor("2025-01-01T00:00:00+00:00", "rq_1")) == ("2025-01-01T00:00:00+00:00", "rq_1")
    assert decode_cursor(None) is None


@given(st.text())
def test_any_other_text_is_a_bad_cursor(text: str) -> None:
    """Never an internal error, whatever is sent."""
    with pytest.raises(InvalidInputError):
        decode_cursor(text)
