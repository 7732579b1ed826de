"""What the model reads of a result, by kind (I12: who refused, how, and what to do about it)."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from turngate.domain.tools import results
from turngate.domain.tools.results import TOOL_RESULT, Failure, FailureKind, Ok, as_object, wire_text


def read(result: Ok | Failure, **options: Any) -> Any:
    return json.loads(wire_text(result, **options))


def error_of(result: Failure) -> Any:
    body = read(result)
    assert list(body) == ["error"]
    return body["error"]


RESULTS = {
    "unknown_tool": results.unknown_tool("constructor", ["pay", "look"]),
    "input_validation_error": results.invalid_input("cents: Field required"),
    "denied": results.denied("no-payments", "Payments are off."),
    "rejected": results.rejected("ann", "Too much."),
    "expired": results.expired(),
    "interrupted": results.interrupted("ann", "wrong branch", started=True, partial="half"),
    "unknown": results.outcome_unknown("pay"),
    "diverged": results.diverged("pay"),
}


@pytest.mark.parametrize("kind", list(RESULTS))
def test_i12_each_ending_has_its_own_kind_and_sentence(kind: str) -> None:
    """I12: the kind is the engine's word, and the model reads the reason as the message, unchanged."""
    result = RESULTS[kind]
    error = error_of(result)
    assert kind in get_args(FailureKind)
    assert (error["kind"], error["message"]) == (kind, result.reason)
    assert result.reason.endswith(("." if kind != "input_validation_error" else "required", "branch"))


@pytest.mark.parametrize("words", ["Too much.", ""])
def test_i12_a_rejection_has_the_person_and_their_words(words: str) -> None:
    """I12: the model reads that a person refused, their words or that they gave none, and not to repeat the call."""
    error = error_of(results.rejected("ann", words))
    assert (error["refused_by"], error["operator"], error["operator_message"]) == ("operator", "ann", words)
    assert ("Too much." if words else "gave no reason") in error["message"]
    assert "Do not repeat this call" in error["message"]


def test_i12_a_denial_names_its_rule() -> None:
    """I12: denied by a rule reads differently from rejected by a person."""
    error = error_of(RESULTS["denied"])
    assert (error["refused_by"], error["rule"]) == ("rule", "no-payments")
    assert "'no-payments'" in error["message"]
    assert "Payments are off." in error["message"]


def test_i12_an_expiry_says_that_nothing_ran() -> None:
    """I12: an expiry is a refusal that blames no person."""
    error = error_of(RESULTS["expired"])
    assert error["refused_by"] == "expiry"
    assert "did not run" in error["message"]


@pytest.mark.parametrize("refusal", [RESULTS["rejected"], RESULTS["denied"]])
def test_i12_a_repeat_keeps_who_refused_and_asks_no_one(refusal: Failure) -> None:
    """I12: a repeat of a refused call carries the first refusal whole."""
    error = error_of(results.repeated(refusal))
    assert error["kind"] == refusal.kind
    assert error["repeat"] is True
    assert "no one was asked again" in error["message"]
    assert refusal.reason in error["message"]
    assert {name: error[name] for name in refusal.fields} == refusal.fields


@pytest.mark.parametrize(
    ("started", "partial", "words"), [(True, "half", "effects may be partial"), (False, "", "It did not run")]
)
def test_i12_an_interrupt_says_whether_the_call_had_begun(started: bool, partial: str, words: str) -> None:
    """I12: the model can tell an interrupt before the call from one during it, and gets the partial output."""
    error = error_of(results.interrupted("ann", "", started=started, partial=partial))
    assert error["started"] is started
    assert words in error["message"]
    assert error.get("partial_output", "") == partial
    assert "Reason" not in error["message"]


def test_i9_an_unknown_tools_result_lists_the_known_names() -> None:
    """I9: the model can correct its mistake from what it reads, even when there is no tool at all."""
    assert "pay, look" in error_of(RESULTS["unknown_tool"])["message"]
    assert "'constructor'" in error_of(RESULTS["unknown_tool"])["message"]
    assert "none" in error_of(results.unknown_tool("x", []))["message"]


def test_a_declared_failure_shows_its_own_fields() -> None:
    """An author's failure has the author's kind, and its fields are next to the message."""
    declared = Failure(kind="refund_declined", reason="card expired", fields={"reason": "card expired", "code": 7})
    assert error_of(declared) == {
        "kind": "refund_declined",
        "message": "card expired",
        "reason": "card expired",
        "code": 7,
    }


def test_a_success_is_its_value() -> None:
    """A success is written compactly, characters unescaped, order kept."""
    assert wire_text(Ok(value={"b": "é", "a": 1.0})) == '{"b":"é","a":1.0}'


@pytest.mark.parametrize("result", [Ok(value={"paid": 9}), results.interrupted("ann", "", started=True)])
def test_i6_an_edited_call_says_what_ran(result: Ok | Failure) -> None:
    """I6: the model's own call stays in the history, so the result says which arguments ran, success or not."""
    body = read(result, edited_input='{ "cents" : 9 }')
    assert body["ran_with"] == {"cents": 9}
    assert body["result"] == read(result)
    assert "edited" in body["note"]


def test_i7_edited_arguments_keep_every_digit() -> None:
    """I7: the model reads the edited text as it ran; parsing and writing it again would round a long decimal."""
    assert '"ran_with":{"price": 0.12345678901234567890123}' in wire_text(
        Ok(value={}), edited_input='{"price": 0.12345678901234567890123}'
    )
    assert '"ran_with":{}' in wire_text(Ok(value={}), edited_input=" ")


@pytest.mark.parametrize(
    ("value", "expected"),
    [({"a": 1}, {"a": 1}), ([1], {"value": [1]}), ("[1]", {"value": "[1]"}), (None, {"value": None}), ({}, {})],
)
def test_results_are_objects(value: object, expected: dict[str, object]) -> None:
    """A bare value is wrapped, because providers take objects only; a text stays a text if it happens to be JSON."""
    assert as_object(value) == expected


@pytest.mark.parametrize("result", [Ok(value={"n": 2**70, "f": 1.0, "s": "\x00é"}), *RESULTS.values()])
def test_results_round_trip_as_stored(result: Ok | Failure) -> None:
    """A stored result reads back as the same value, and the model reads the same text."""
    back = TOOL_RESULT.validate_json(result.model_dump_json())
    assert back == result
    assert wire_text(back) == wire_text(result)


def test_a_result_of_no_known_tag_is_refused() -> None:
    """Ok and Failure are the only results."""
    with pytest.raises(ValidationError):
        TOOL_RESULT.validate_python({"tag": "maybe", "value": {}})
