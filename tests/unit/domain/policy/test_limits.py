"""Limits of grants: ranges, lists and beginnings cover what they certainly mean, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from unit.domain.policy.test_grants import grant

from turngate import Policy, tool
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.grants import GrantPattern, exact_pattern
from turngate.domain.policy.limits import ValueLimit, parse_limit, parse_total
from turngate.domain.policy.policy import evaluate
from turngate.domain.policy.totals import Total
from turngate.domain.text.json_pointers import decode_arguments
from turngate.domain.tools.tool import ProcessConfinement
from turngate.policies.explain import in_words, why_not
from turngate.policies.facts import call_facts


def limited(op: str, value: Any) -> GrantPattern:
    """Return a pattern with one limited argument, as read back from the store."""
    pattern = GrantPattern(tool="pay", within={"x": ValueLimit(op=op, value=value)})  # type: ignore[arg-type]
    return GrantPattern.model_validate_json(pattern.model_dump_json())


COVERED = [
    (("between", [1, 500]), "1"),
    (("between", [1, 500]), '"500.00"'),
    (("between", [0.1, 0.3]), "0.3"),
    (("le", 500), "-3"),
    (("ge", 500), "1e99999"),
    (("between", ["2026-01-01", "2026-12-31"]), '"2026-02-28"'),
    (("le", "2026-12-31T12:00:00Z"), '"2026-12-31T13:00:00+01:00"'),
    (("in", ["EUR", "USD"]), '"USD"'),
    (("in", [5, 7.5]), "7.50"),
    (("starts_with", "reports/"), '"reports/2026/q1.csv"'),
    (("starts_with", "reports/"), '"reports/"'),
    (("starts_with", "Re: "), '"Re: your order of 3.5 kg"'),
    (("starts_with", "https://shop.example/"), '"https://shop.example/a?b=c#d"'),
]
OUTSIDE = [
    (("between", [1, 500]), '"5e2"'),
    (("between", [1, 500]), "500.0000000000000000000000001"),
    (("between", [1, 500]), '"\\uff15"'),
    (("between", [1, 500]), "true"),
    (("between", [1, 500]), "null"),
    (("between", [1, 500]), "[1]"),
    (("between", [1, 500]), '1, "x": 600'),
    (("le", 500), '"-0"'),
    (("between", ["2026-01-01", "2026-12-31"]), '"2026-02-30"'),
    (("between", ["2026-01-01", "2026-12-31"]), '"2026-06-01T00:00:00Z"'),
    (("le", "2026-12-31T12:00:00Z"), '"2026-12-31T11:00:00"'),
    (("in", ["EUR", "USD"]), '"usd"'),
    (("in", ["EUR", "USD"]), '"USD "'),
    (("in", [5]), '"5"'),
    (("starts_with", "reports/"), '"Reports/a"'),
    (("starts_with", "reports/"), '["reports/a"]'),
    (("starts_with", "reports/"), '"reports/../.env"'),
    (("starts_with", "reports/."), '"reports/./../.env"'),
    (("starts_with", "reports/."), '"reports/../.env"'),
    (("starts_with", "reports/"), '"reports/%2e%2e/.env"'),
    (("starts_with", "reports/"), '"reports/%252e%252e/.env"'),
    (("starts_with", "reports/%"), '"reports/%2E%2E/.env"'),
    (("starts_with", "reports/"), '"reports/\\uff0e\\uff0e/.env"'),
    (("starts_with", "reports/"), '"reports/\\u2025/.env"'),
    (("starts_with", "reports/"), '"reports/a\\\\b"'),
    (("starts_with", "git status"), '"git status\\nrm -rf x"'),
    (("starts_with", "Re: "), '"Re: \\u202egpj.exe"'),
    (("starts_with", "Re: "), '"Re: a\\u0000b"'),
    (("starts_with", "Re: "), '"Re: a\\u2028b"'),
    (("starts_with", "Re: "), '"Re: \\ud800"'),
]


@pytest.mark.parametrize(
    ("limit", "value", "covered"), [*((*each, True) for each in COVERED), *((*each, False) for each in OUTSIDE)]
)
def test_i2_a_limit_covers_what_it_certainly_means(limit: tuple[str, Any], value: str, covered: bool) -> None:
    """I2: whatever readers may take in two ways, and whatever leads out of a beginning, is outside; words and answer agree."""
    pattern = limited(*limit)
    arguments = decode_arguments(f'{{"x": {value}}}')
    assert pattern.fits("pay", arguments) is covered
    assert (why_not(pattern, "pay", arguments) is None) is covered


def test_a_limited_argument_has_to_be_there_and_an_unnamed_one_may_not() -> None:
    """As with fixed ones: nothing that the pattern doesn't name is let through."""
    pattern = limited("le", 5)
    assert not pattern.fits("pay", {})
    assert not pattern.fits("pay", {"x": 5, "y": 1})
    assert not pattern.fits("refund", {"x": 5})


def test_i2_what_the_tool_reads_has_to_be_within_the_limit_too() -> None:
    """I2: a tool that reads more into a value than is written gets no call by a grant for what is written."""
    assert limited("le", 5).fits("pay", {"x": 5}, {"x": 5})
    assert not limited("le", 5).fits("pay", {"x": 5}, {"x": 500})
    assert (
        why_not(limited("le", 5), "pay", {"x": 5}, {"x": 500}) == "the tool reads a value otherwise than it is written"
    )


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"within": {"x": {"op": "le", "value": "5"}}}, "compares numbers"),
        ({"within": {"x": {"op": "between", "value": [2, 1]}}}, "can never hold"),
        ({"within": {"x": {"op": "in", "value": []}}}, "at least one value"),
        ({"within": {"x": {"op": "in", "value": [1] * 101}}}, "at most 100"),
        ({"within": {"x": {"op": "glob", "value": "*"}}}, "Input should be"),
        ({"within": {"x": {"op": "starts_with", "value": ""}}}, "everything"),
        ({"within": {"x": {"op": "starts_with", "value": "a" * 1_001}}}, "at most 1,000"),
        ({"within": {"x": {"op": "starts_with", "value": "https://shop.example"}}}, "needs the slash"),
        ({"within": {"x": {"op": "starts_with", "value": "https:/"}}}, "needs the slash"),
        ({"within": {"command": {"op": "starts_with", "value": "git status"}}}, "isn't judged by its beginning"),
        ({"within": {"x": {"op": "le", "value": 1}}, "open": ["x"]}, "one of them"),
        ({"within": {"x": {"op": "le", "value": 1}}, "fixed": {"x": 1}}, "one of them"),
        ({"open": ["x"], "total": {"at": "/y", "most": 5, "per": "day"}}, "no such argument"),
    ],
)
def test_a_limit_that_means_nothing_or_too_much_is_refused(members: dict[str, Any], problem: str) -> None:
    """When the grant is made, with what to do instead."""
    with pytest.raises(ValidationError, match=problem):
        GrantPattern.model_validate({"tool": "pay", **members})


CALL = {"cents": 500, "rate": "12.50", "due": "2026-12-31", "to": "reports/a", "currency": "EUR"}


@pytest.mark.parametrize(
    ("kind", "name", "text", "words"),
    [
        ("range", "cents", "1..500", "from 1 to 500"),
        ("range", "cents", " ..500.5", "at most 500.5"),
        ("range", "cents", "1..", "at least 1"),
        ("range", "rate", "0.10..12.50", "from 0.1 to 12.5"),
        ("range", "due", "2026-01-01..2026-12-31", 'from "2026-01-01" to "2026-12-31"'),
        ("one_of", "currency", "EUR, €", 'one of "EUR", "€"'),
        ("one_of", "cents", "500,5.5", "one of 500, 5.5"),
        ("prefix", "to", "reports/", 'beginning with "reports/"'),
    ],
)
def test_a_limit_is_written_in_one_line(kind: Any, name: str, text: str, words: str) -> None:
    """As the command line and the terminal UI take it; the pattern says it in words."""
    limit = parse_limit(kind, CALL[name], text)
    pattern = exact_pattern("pay", CALL, within={name: limit}, open_arguments=[each for each in CALL if each != name])
    assert f"{name} {words}" in in_words(pattern)
    assert pattern.fits("pay", CALL)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("range", "cents", "500"),
        ("range", "cents", ".."),
        ("range", "cents", "1..1e9"),
        ("range", "cents", "5..1"),
        ("range", "cents", "2026-01-01.."),
        ("range", "cents", "0.10000000000000000001..5"),
        ("range", "to", "a..b"),
        ("range", "due", "1..2"),
        ("one_of", "cents", "EUR"),
        ("one_of", "currency", " , "),
        ("prefix", "cents", "5"),
        ("prefix", "to", ""),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused(kind: Any, name: str, text: str) -> None:
    """Nothing is guessed. A beginning of a number would be read, and covers no number."""
    if (kind, name) == ("prefix", "cents"):
        assert not parse_limit(kind, CALL[name], text).covers(CALL[name])
        return
    with pytest.raises(InvalidInputError) as refused:
        parse_limit(kind, CALL[name], text)
    assert refused.value.error_code == "invalid_grant"


def test_a_total_is_written_in_one_line() -> None:
    """``ARGUMENT=MOST/WINDOW``; anything else is refused."""
    assert parse_total("a/b=50.5/week") == Total(at="/a~1b", most=50.5, per="week")
    for text in (
        "cents",
        "cents=5",
        "cents=5/month",
        "=5/day",
        "cents=/day",
        "cents=-5/day",
        "cents=1e9/day",
        "cents=0/day",
    ):
        with pytest.raises(InvalidInputError):
            parse_total(text)


class Amount(BaseModel):
    cents: Any = None


@tool(effect="once", ask=True)
async def pay(params: Amount) -> None:
    """Pay."""


start_process = replace(pay, confinement=lambda _params: ProcessConfinement(confined=True, text=""))


def test_i2_a_grant_counts_while_its_total_has_room() -> None:
    """I2: then, and where its amount can't be counted, the call is judged as if the grant did not exist."""
    total = Total(at="/cents", most=100, per="day")
    mine = grant(pattern=GrantPattern(tool="pay", open=["cents"], total=total))
    meter = total.meter("grant:g")
    assert meter == "grant:g day /cents"

    def judged(cents: object, **options: Any) -> tuple[str, int | None]:
        raw = json.dumps({"cents": cents})
        verdict = evaluate(
            Policy(), pay, None, agent="a", facts=lambda: call_facts(raw, None), grants=[mine], **options
        )
        assert (verdict.grant_id is not None) is (verdict.answer == "allow")
        return verdict.answer, None if verdict.share is None else verdict.share.units

    assert judged(100) == ("allow", 100_000_000)
    assert judged("99.5") == ("allow", 99_500_000)
    for unfit in (101, -1, "1e2", None):
        assert judged(unfit) == ("ask", None)
    assert judged(1, spent={meter}) == ("ask", None)


def test_i2_no_grant_judges_a_program_by_a_beginning() -> None:
    """I2: a tool that starts processes isn't let run by the beginning of an argument, whatever its name; by a list it is."""
    for limit, lets_run in (
        (ValueLimit(op="starts_with", value="git "), False),
        (ValueLimit(op="in", value=["git x"]), True),
    ):
        mine = grant(pattern=GrantPattern(tool="pay", within={"cents": limit}))
        answers = [
            evaluate(
                Policy(), of, None, agent="a", facts=lambda: call_facts('{"cents": "git x"}', None), grants=[mine]
            ).answer
            for of in (pay, start_process)
        ]
        assert answers == ["allow", "allow" if lets_run else "ask"]
