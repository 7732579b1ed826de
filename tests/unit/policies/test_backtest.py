"""Backtests: what rules would have answered to past calls."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from turngate import Policy, Rule, tool
from turngate.domain.policy.grants import Grant, GrantPattern
from turngate.domain.policy.judge import Judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.runs.recorded_calls import RecordedCall
from turngate.domain.tools.known_tools import KnownTool
from turngate.policies.backtest import Report, Unjudged, judge


class Amount(BaseModel):
    cents: int


@tool(effect="once", ask=lambda params: params.cents > 5)
async def pay(params: Amount) -> None:
    """Pay."""


def call(answer: str, rule: str, *, cents: Any = 3, call_id: str = "c1", grant_id: str | None = None, **options: Any):
    verdict = Verdict(answer=answer, rule=rule, reason="", risk="low", grant_id=grant_id)
    defaults = {
        "run_id": "run_1",
        "tool": "pay",
        "agent": "support",
        "effect": "once",
        "workspace": None,
        "starter": "ann",
    }
    rest = {"unattended": None, "place": (), "tool_call_id": call_id, "input": f'{{"cents": {cents}}}'}
    return RecordedCall(verdict_json=verdict.model_dump_json(exclude_defaults=True), **{**defaults, **rest, **options})


def rules(*names_and_verdicts: tuple[str, str]) -> Policy:
    return Policy(rule=[Rule(name=name, verdict=verdict, tools=["pay"]) for name, verdict in names_and_verdicts])


BY_JUDGE = Judgement(
    verdict="allow", reason="r", model="m", ms=1, mode="enforce", digest="d", judge="j", asked_by="tool:ask"
)


def test_a_call_that_the_judge_allowed_is_tested_against_what_would_have_asked() -> None:
    """Rules apply without the judge; the tool's own ask from that time is on record, even without the app."""
    was = Verdict(answer="allow", rule="judge", reason="r", risk="low", judged=BY_JUDGE)
    recorded = replace(call("allow", "judge"), verdict_json=was.model_dump_json(exclude_defaults=True))
    now = judge(rules(), recorded, None, None)
    assert isinstance(now, Verdict)
    assert (now.answer, now.rule) == ("ask", "tool:ask")


GRANT = Grant(
    id="grant_1", pattern=GrantPattern(tool="pay", open=["cents"]), scope="everyone", run_id=None, agent=None,
    expires_at=datetime(2000, 1, 1, tzinfo=UTC), max_uses=1, uses=1, created_by="ann",
)  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "policy", "known", "expected"),
    [
        (call("ask", "default"), rules(("no", "deny")), None, ("deny", "no")),
        # The tool's answer from that time is on record, even if its app is not.
        (call("ask", "default"), rules(), None, ("ask", "default")),
        (call("ask", "tool:ask"), rules(), None, ("ask", "tool:ask")),
        (call("allow", "tool:ask"), rules(), None, ("allow", "tool:ask")),
        (call("ask", "tool:interaction"), rules(("yes", "allow")), None, ("ask", "tool:interaction")),
        # A rule decided then, so the tool's own ask did not run.
        (call("allow", "old"), rules(), None, None),
        (call("allow", "old"), rules(), KnownTool(name="pay", own_ask="computed"), None),
        (call("allow", "old"), rules(), KnownTool(name="pay", own_ask="always"), ("ask", "tool:ask")),
        (call("allow", "old"), rules(), pay, ("allow", "tool:ask")),
        (call("allow", "old", cents=9), rules(), pay, ("ask", "tool:ask")),
        (call("allow", "old", cents='"x"'), rules(), pay, None),
        # How the run was attended counts again.
        (call("deny", "unattended", unattended="deny"), rules(("each", "ask")), None, ("deny", "unattended")),
        (call("allow", "old", tool="not a name"), rules(), None, None),
    ],
)
def test_a_call_is_tested_against_its_record_and_else_what_is_known(
    recorded: RecordedCall, policy: Policy, known: Any, expected: tuple[str, str] | None
) -> None:
    """A rule decides alone; the tool's own ask comes from its app, the record, or the published tools."""
    now = judge(policy, recorded, known, None)
    assert (None if isinstance(now, Unjudged) else (now.answer, now.rule)) == expected


def test_a_grant_allows_again_what_it_allowed() -> None:
    """A grant's allow is no change of the rules, unless a rule precedes it."""
    recorded = call("allow", "grant:grant_1", grant_id="grant_1")
    report = Report()
    report.add(recorded, judge(rules(), recorded, None, GRANT))
    report.add(recorded, judge(rules(("each", "ask")), recorded, None, GRANT))
    assert [(change.was_rule, change.now, change.now_rule) for change in report.changes] == [("a grant", "ask", "each")]
    assert report.by_rule == {("allow", "a grant"): 1, ("ask", "each"): 1}


@pytest.mark.exhaustive
def test_a_report_counts_everything_and_keeps_some_calls() -> None:
    """Ten thousand calls: counts by tool and rule, the first few calls of each change, and why some were skipped."""
    report = Report(examples_kept=3)
    policy = rules(("no", "deny"))
    for number in range(10_000):
        recorded = call("ask", "default", call_id=f"c{number}")
        report.add(recorded, judge(policy, recorded, None, None))
    same = call("deny", "older")
    report.add(same, judge(policy, same, None, None))
    unknown = call("allow", "old")
    report.add(unknown, judge(rules(), unknown, None, None))
    (change,) = report.changes
    assert (change.tool, change.was, change.was_rule, change.now, change.now_rule) == (
        "pay",
        "ask",
        "default",
        "deny",
        "no",
    )
    assert (report.looked_at, report.changes[change], report.same_answer) == (10_002, 10_000, 1)
    assert report.examples[change] == [("run_1", "c0"), ("run_1", "c1"), ("run_1", "c2")]
    assert report.answers == {"deny": 10_001}
    assert list(report.unjudged.values()) == [1]
    assert "--app" in next(iter(report.unjudged))
