"""Totals of rules: what a call adds, in which window, and what can't be counted."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from turngate import Policy, Rule, tool
from turngate.domain.policy.policy import Verdict, evaluate, parse_policy
from turngate.domain.policy.totals import MAX_MOST, UNITS, Total, text_of_units, units_of
from turngate.policies.facts import call_facts


class Amount(BaseModel):
    cents: Any = None


@tool(effect="once", ask=False)
async def pay(params: Amount) -> None:
    """Pay."""


class Read(BaseModel):
    cents: Decimal


@tool(effect="once", name="pay")
async def read_pay(params: Read) -> None:
    """Pay."""


SMALL = parse_policy(
    '[[rule]]\nname = "small"\nverdict = "allow"\ntools = ["pay"]\ntotal = { at = "/cents", most = 500.5, per = "day" }',
    source="a test",
)


def verdict(raw: str, policy: Policy = SMALL, **options: Any) -> Verdict:
    return evaluate(policy, pay, None, agent="a", facts=lambda: call_facts(raw, None), **options)


COUNTED = [
    ("0", 0),
    ("1", UNITS),
    ("500.5", 500_500_000),
    ("5.005e2", 500_500_000),
    ('"12.50"', 12_500_000),
    ("0.000001", 1),
    ("1.0000000000000", UNITS),
]
NOT_COUNTED = [
    "-1", "-0.01", '"-1"', "0.0000001", "1.0000000000000000000000000000000000000000001", "1e-999999999", "1e99999", "1e999999999",
    "null", "true", '"1e2"', '"1,5"', '"5 "', '""', "[1]", '{"value": 1}', "NaN", "Infinity", '"\\uff15"', "9" * 400,
    "1000000000001", '1, "cents": 2', "5" * 5_000, "0." + "1" * 5_000,
]  # fmt: skip


@pytest.mark.parametrize(("cents", "units"), COUNTED)
def test_what_a_call_adds_is_exact(cents: str, units: int) -> None:
    """Numbers and plain decimals in texts are counted in millionths, none of them rounded."""
    allowed = verdict(f'{{"cents": {cents}}}')
    assert (allowed.answer, allowed.rule) == ("allow", "small")
    assert allowed.share is not None
    assert (allowed.share.meter, allowed.share.units) == ("rule:small day /cents", units)


@pytest.mark.parametrize("cents", NOT_COUNTED, ids=range(len(NOT_COUNTED)))
def test_i2_an_amount_that_cannot_be_counted_asks(cents: str) -> None:
    """I2: unclear, negative, too fine or too large: a person is asked, though the tool itself never asks."""
    beyond = verdict(f'{{"cents": {cents}}}')
    assert (beyond.answer, beyond.rule, beyond.share, beyond.judgeable) == ("ask", "small", None, False)
    assert verdict("{}").answer == "ask"
    assert evaluate(SMALL, pay, None, agent="a").answer == "ask"


def test_i2_a_call_that_the_total_has_no_room_for_asks() -> None:
    """I2: more than the total by itself, or found to exceed it at the door: neither another rule nor the tool lets it run."""
    wide = Policy(rule=[*SMALL.rule, Rule(name="all", verdict="allow", tools=["*"])])
    for policy in (SMALL, wide):
        assert verdict('{"cents": 500.6}', policy).answer == "ask"
        spent = verdict('{"cents": 1}', policy, spent={"rule:small day /cents"})
        assert (spent.answer, spent.rule, spent.terms.grantable) == ("ask", "small", True)
        assert "a total of 500.5 at /cents per day (UTC)" in spent.reason
        assert verdict('{"cents": 1}', policy, spent={"rule:other day /cents"}).answer == "allow"


def test_i2_an_amount_that_the_tool_reads_otherwise_asks() -> None:
    """I2: what is counted is what is written and what runs; if they differ, a person is asked."""
    for raw, answer in (('{"cents": "5.0"}', "allow"), ('{"cents": 5}', "ask")):
        params = Read(cents=Decimal(50)) if answer == "ask" else Read(cents=Decimal(5))
        judged = evaluate(SMALL, read_pay, params, agent="a", facts=lambda raw=raw: call_facts(raw, None))
        assert judged.answer == answer


def test_only_rules_that_allow_have_a_total_and_shadow_rules_count_nothing() -> None:
    """A total on a rule that asks or denies is refused; a shadow rule's is not part of the verdict."""
    total = {"at": "/cents", "most": 5, "per": "day"}
    with pytest.raises(ValidationError, match="total belongs to a rule with verdict = 'allow'"):
        Rule(name="no", verdict="ask", tools=["pay"], total=total)
    shadow = Policy(rule=[Rule(name="soon", verdict="allow", tools=["pay"], total=total, shadow=True)])
    assert verdict('{"cents": 1}', shadow).share is None


@pytest.mark.parametrize(
    ("total", "problem"),
    [
        ({"most": 0}, "more than 0"),
        ({"most": -1}, "more than 0"),
        ({"most": 0.0000001}, "six decimals"),
        ({"most": MAX_MOST + 1}, "1,000,000,000,000"),
        ({"most": float("nan")}, "six decimals"),
        ({"most": True}, "should be a valid"),
        ({"most": "5"}, "should be a valid"),
        ({"per": "month"}, "should be 'hour', 'day' or 'week'"),
        ({"at": "cents"}, "JSON pointer"),
        ({"at": ""}, "at least 1"),
        ({"at": "/" + "a" * 100}, "at most 100"),
    ],
)
def test_a_total_that_cannot_be_counted_is_refused(total: dict[str, Any], problem: str) -> None:
    """When the rule is read, with what it may be."""
    with pytest.raises(ValidationError, match=problem):
        Total.model_validate({"at": "/cents", "most": 5, "per": "day", **total})


@pytest.mark.parametrize(
    ("per", "begins", "ends"),
    [
        ("hour", "2026-11-26T23:00:00+00:00", "2026-11-27T00:00:00+00:00"),
        ("day", "2026-11-26T00:00:00+00:00", "2026-11-27T00:00:00+00:00"),
        ("week", "2026-11-23T00:00:00+00:00", "2026-11-30T00:00:00+00:00"),
    ],
)
def test_windows_are_utc_hours_days_and_weeks_from_monday(per: Any, begins: str, ends: str) -> None:
    """Whatever the zone of the instant that asks."""
    at = datetime.fromisoformat("2026-11-27T00:30:00.5+01:00")
    window = Total(at="/cents", most=5, per=per).window(at)
    assert [each.isoformat() for each in window] == [begins, ends]
    assert Total(at="/cents", most=5, per=per).window(window[0].astimezone(UTC)) == window


@given(st.decimals(min_value=0, max_value=MAX_MOST, allow_nan=False, places=6))
def test_units_are_the_amount_and_back(amount: Decimal) -> None:
    """For any amount with six decimals: its units are exact, and their text is the amount."""
    units = units_of(amount)
    assert units is not None
    assert Decimal(units) == amount * UNITS
    assert Decimal(text_of_units(units)) == amount
