"""Which calls a grant's pattern means, and what a grant never beats."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from turngate import Policy, Rule, interaction_tool, tool
from turngate.domain.errors import InvalidInputError
from turngate.domain.grants import Grant, GrantPattern, exact_pattern
from turngate.domain.json_pointers import decode_arguments
from turngate.domain.policy import evaluate
from turngate.policies.facts import call_facts


class Amount(BaseModel):
    cents: int


@tool(effect="once", ask=True)
async def pay(params: Amount) -> None:
    """Pay."""


question = interaction_tool(name="pay", description="Ask.", params=Amount, answer=Amount)


def fits(pattern: dict[str, Any], raw: str) -> bool:
    return GrantPattern(tool="pay", **pattern).fits("pay", decode_arguments(raw))


@pytest.mark.parametrize(
    ("fixed", "raw", "same"),
    [
        (1, "1", True),
        (1, "true", False),
        (1, "1.0", False),
        (1, '"1"', False),
        (True, "true", True),
        (True, "1", False),
        (1.0, "1.0", True),
        (1.0, "1.00", True),
        (1.0, "1", False),
        (0.1, "0.1", True),
        (0.1, "0.10000000000000001", False),
        (1e22, "1e22", True),
        (10**30, "1000000000000000000000000000000", True),
        (None, "null", True),
        (None, "false", False),
        ("é", '"\\u00e9"', True),
        ("é", '"e\\u0301"', False),
        ([1, {"a": 1}], '[1, {"a": 1}]', True),
        ([1, {"a": 1}], '[1, {"a": true}]', False),
        ([1, 2], "[2, 1]", False),
        ({"a": 1}, '{"a": 1, "b": 2}', False),
        ({"a": 1}, '{"a": 2, "a": 1}', False),
    ],
)
def test_a_fixed_argument_is_the_same_json_value(fixed: Any, raw: str, same: bool) -> None:
    """By type and to the last digit; a key given twice is no value at all."""
    assert fits({"fixed": {"x": fixed}}, f'{{"x": {raw}}}') is same


@pytest.mark.parametrize(
    ("pattern", "raw", "fitting"),
    [
        ({"fixed": {"a": 1}}, '{"a": 1, "b": 2}', False),
        ({"fixed": {"a": 1}, "open": ["b"]}, '{"a": 1, "b": {"any": ["thing"]}}', True),
        ({"fixed": {"a": 1}, "open": ["b"]}, '{"a": 1}', True),
        ({"fixed": {"a": 1}, "open": ["b"]}, '{"b": 1}', False),
        ({"fixed": {"a": 1}}, '{"a": 2, "a": 1}', False),
        ({"open": ["a"]}, '{"a": 1, "A": 1}', False),
        ({}, "{}", True),
        ({}, '{"a": null}', False),
        ({"open": ["a"]}, "[]", False),
    ],
)
def test_a_pattern_names_every_argument(pattern: Any, raw: str, fitting: bool) -> None:
    """An argument it does not name never fits, not even as null; one it leaves open may be missing."""
    assert fits(pattern, raw) is fitting


@pytest.mark.parametrize(
    "pattern",
    [
        {"fixed": {"a": 1}, "open": ["a"]},
        {"open": ["a", "a"]},
        {"fixed": {"a": [float("inf")]}},
        {"fixed": {"a": float("nan")}},
    ],
)
def test_a_pattern_that_contradicts_itself_or_is_no_json_is_refused(pattern: Any) -> None:
    """It would be kept otherwise than it was shown."""
    with pytest.raises(ValidationError):
        GrantPattern(tool="pay", **pattern)


@pytest.mark.parametrize(
    "raw", ['{"a": 1.50, "b": [true, null, 1e-7], "c": 123456789012345678901234567890}', '{"a": {"b": 0.1}}', "{}"]
)
def test_the_exact_pattern_of_a_call_fits_that_call(raw: str) -> None:
    """Fractions, nesting and huge numbers included, also after it was stored."""
    pattern = exact_pattern("pay", decode_arguments(raw))
    stored = GrantPattern.model_validate_json(pattern.model_dump_json())
    assert stored.fits("pay", decode_arguments(raw))


@pytest.mark.parametrize(
    ("raw", "open_arguments", "words"),
    [
        ('{"a": 1, "a": 2}', [], "given twice"),
        ('{"a": [{"b": 1, "b": 1}]}', [], "given twice"),
        ('{"a": 0.10000000000000000001}', [], "to its last digit"),
        ('{"a": 1e999}', [], "to its last digit"),
        ('{"a": 1}', ["b"], "no argument 'b'"),
        ("[1]", [], "JSON object"),
    ],
)
def test_a_call_that_no_pattern_can_say_exactly_is_refused(raw: str, open_arguments: list[str], words: str) -> None:
    """With what to leave open; left open, the same call can be granted."""
    with pytest.raises(InvalidInputError, match=words) as refused:
        exact_pattern("pay", decode_arguments(raw), open_arguments=open_arguments)
    assert refused.value.error_code == "invalid_grant"
    if words != "JSON object" and not open_arguments:
        assert exact_pattern("pay", decode_arguments(raw), open_arguments=["a"]).open == ["a"]


def grant(**options: Any) -> Grant:
    made = {"id": "g", "pattern": GrantPattern(tool="pay", open=["cents"]), "scope": "everyone", "run_id": None}
    rest = {
        "agent": None,
        "max_uses": 1,
        "uses": 0,
        "created_by": "ann",
        "expires_at": datetime(2999, 1, 1, tzinfo=UTC),
    }
    return Grant(**{**made, **rest, **options})


def ask(name: str = "each", **options: Any) -> Rule:
    return Rule(name=name, verdict="ask", tools=["*"], **options)


ADMIN = {"created_by_role": "admin"}


@pytest.mark.parametrize(
    ("rules", "made", "lets_through"),
    [
        ([], {}, True),
        ([Rule(name="no", verdict="deny", tools=["pay"])], {}, False),
        ([Rule(name="no", verdict="deny", tools=["pay"], args=[{"at": "/x", "op": "ne", "value": 1}])], {}, False),
        ([ask()], {}, False),
        ([ask(grantable=True)], {}, True),
        ([ask(grantable=True), ask("strict")], {}, False),
        ([ask(shadow=True)], {}, True),
        ([ask(grantable=True, risk="high")], {}, False),
        ([ask(grantable=True, roles=["admin"])], {}, False),
        ([ask(grantable=True, roles=["admin"])], ADMIN, True),
        ([ask(grantable=True, people=["bea"])], ADMIN, False),
        ([ask(grantable=True, people=["ann"])], {}, True),
        ([ask(grantable=True, starter_may_decide=False)], {}, True),
        ([ask(grantable=True, starter_may_decide=False)], {"created_by": "starter"}, False),
        ([], {"scope": "run", "run_id": "run_1"}, True),
        ([], {"scope": "run", "run_id": "run_2"}, False),
        ([], {"scope": "agent", "agent": "support"}, True),
        ([], {"scope": "agent", "agent": "intern"}, False),
    ],
)
def test_i10_a_grant_beats_neither_a_rule_nor_who_may_decide(rules: list[Rule], made: Any, lets_through: bool) -> None:
    """Deny rules, unclear rules and ask rules stand, unless each of them is grantable and its maker could decide it."""
    verdict = evaluate(
        Policy(rule=rules),
        pay,
        Amount(cents=5),
        agent="support",
        facts=lambda: call_facts('{"cents": 5}', None),
        run_id="run_1",
        grants=[grant(**made)],
        starter="starter",
    )
    assert (verdict.grant_id == "g") is lets_through
    assert (verdict.answer == "allow") is lets_through


def test_nothing_can_be_granted_in_the_place_of_an_answer() -> None:
    """A question has nothing to run: a person answers it, whatever was granted."""
    facts = call_facts('{"cents": 5}', None)
    verdict = evaluate(Policy(), question, None, agent="a", facts=lambda: facts, run_id="r", grants=[grant()])
    assert verdict.answer == "ask"
