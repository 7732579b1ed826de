"""What a grant never overrides, and which patterns are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from turngate import Policy, Rule, interaction_tool, tool
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.grants import Grant, GrantPattern, exact_pattern
from turngate.domain.policy.policy import evaluate
from turngate.domain.text.json_pointers import decode_arguments
from turngate.policies.facts import call_facts


class Amount(BaseModel):
    cents: int


@tool(effect="once", ask=True)
async def pay(params: Amount) -> None:
    """Pay."""


question = interaction_tool(name="pay", description="Ask.", params=Amount, answer=Amount)


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
    """It would be stored differently from what people saw."""
    with pytest.raises(ValidationError):
        GrantPattern(tool="pay", **pattern)


def test_an_inexact_argument_can_be_left_open() -> None:
    """A duplicate key or a number with too many digits prevents a grant only if that argument would be fixed."""
    for raw in ('{"a": 1, "a": 2}', '{"a": 0.10000000000000000001}', '{"a": 1e999}'):
        arguments = decode_arguments(raw)
        with pytest.raises(InvalidInputError, match="leave it open"):
            exact_pattern("pay", arguments)
        assert exact_pattern("pay", arguments, open_arguments=["a"]).fits("pay", arguments)


def grant(**options: Any) -> Grant:
    defaults = {"id": "g", "pattern": GrantPattern(tool="pay", open=["cents"]), "scope": "everyone", "run_id": None}
    rest = {
        "agent": None,
        "max_uses": 1,
        "uses": 0,
        "created_by": "ann",
        "expires_at": datetime(2999, 1, 1, tzinfo=UTC),
    }
    return Grant(**{**defaults, **rest, **options})


def ask(name: str = "each", **options: Any) -> Rule:
    return Rule(name=name, verdict="ask", tools=["*"], **options)


ADMIN = {"created_by_role": "admin"}


@pytest.mark.parametrize(
    ("rules", "fields", "lets_through"),
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
def test_i10_a_grant_overrides_neither_a_rule_nor_who_may_decide(
    rules: list[Rule], fields: Any, lets_through: bool
) -> None:
    """Deny, unclear and ask rules still apply, unless each is grantable and the grant's author could decide it."""
    verdict = evaluate(
        Policy(rule=rules),
        pay,
        Amount(cents=5),
        agent="support",
        facts=lambda: call_facts('{"cents": 5}', None),
        run_id="run_1",
        grants=[grant(**fields)],
        starters=("starter", "sender"),
    )
    assert (verdict.grant_id == "g") is lets_through
    assert (verdict.answer == "allow") is lets_through


def test_a_grant_cannot_answer_a_question() -> None:
    """A question runs nothing: a person answers it, whatever grants exist."""
    facts = call_facts('{"cents": 5}', None)
    verdict = evaluate(Policy(), question, None, agent="a", facts=lambda: facts, run_id="r", grants=[grant()])
    assert verdict.answer == "ask"
