"""Which changes of the stored rules certainly don't loosen them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from turngate import Policy, Rule, tool
from turngate.domain.policy.facts import CallFacts
from turngate.domain.policy.looser_rules import loosening
from turngate.domain.policy.policy import RISKS, Verdict, evaluate
from turngate.policies.facts import call_facts

SMALL = {"at": "/cents", "op": "le", "value": 5}
LARGE = {"at": "/cents", "op": "ge", "value": 9}
TOTAL = {"at": "/cents", "most": 6, "per": "day"}


def rule(verdict: str, name: str, **options: Any) -> Rule:
    return Rule.model_validate({"name": name, "verdict": verdict, "tools": ["pay"], **options})


ALLOW, DENY, ASK = rule("allow", "allow"), rule("deny", "deny"), rule("ask", "ask")
SOME = rule("allow", "some", args=[SMALL])
TWO = rule("ask", "two", quorum=2)
DOUBTFUL = rule("ask", "doubtful", quorum=2, args=[LARGE])


def policy(*rules: Rule) -> Policy:
    return Policy(rule=list(rules))


TIGHTENS = {
    "the same": ([ALLOW, ASK, DENY], [ALLOW, ASK, DENY]),
    "another reason": ([DENY], [DENY.model_copy(update={"reason": "because"})]),
    "a new deny rule, first": ([ASK, ALLOW], [DENY, ASK, ALLOW]),
    "a new ask rule": ([ALLOW], [ASK, ALLOW]),
    "a new ask rule, after one of two people": ([TWO], [TWO, ASK]),
    "an allow rule without conditions is removed": ([ALLOW, DENY], [DENY]),
    "a shadow rule that allows is new": ([DENY], [DENY, ALLOW.model_copy(update={"shadow": True})]),
    "a shadow rule is removed": ([DENY.model_copy(update={"shadow": True})], []),
    "a shadow rule that denies counts": ([DENY.model_copy(update={"shadow": True})], [DENY]),
    "a new deny rule with conditions": ([ASK], [rule("deny", "large", args=[LARGE]), ASK]),
}
LOOSENS = {
    "a new allow rule": ([], [ALLOW], "allows calls"),
    "a shadow rule that allows counts": ([ALLOW.model_copy(update={"shadow": True})], [ALLOW], "allows calls"),
    "a deny rule is removed": ([DENY], [], "(deny) is removed"),
    "an ask rule is removed": ([ASK], [], "(ask) is removed"),
    "a deny rule is only recorded": ([DENY], [DENY.model_copy(update={"shadow": True})], "(deny) is removed"),
    "an ask rule asks others": ([ASK], [ASK.model_copy(update={"people": ["bob"]})], "is changed"),
    "an ask rule may be answered by a grant": ([ASK], [ASK.model_copy(update={"grantable": True})], "is changed"),
    "a deny rule asks": ([DENY], [rule("ask", "deny")], "is changed"),
    "an allow rule is wider": ([SOME], [rule("allow", "some")], "is changed"),
    "a total is larger": (
        [rule("allow", "all", total=TOTAL)], [rule("allow", "all", total={**TOTAL, "most": 7})], "is changed"
    ),
    "a rule with a total is removed": ([rule("allow", "all", total=TOTAL), ALLOW], [ALLOW], "beyond its total"),
    "what can't be evaluated keeps a judge away": ([SOME], [], "left to a judge"),
    "pointers say where protected places are": (
        [rule("allow", "some", paths_at=["/file"])], [], "left to a judge"
    ),
    "the order": ([ASK, TWO], [TWO, ASK], "the order"),
    "a new ask rule leaves calls to a judge": ([], [rule("ask", "ask", judge="may_allow")], "lets a judge"),
    "a new ask rule leaves calls to grants": ([], [rule("ask", "ask", grantable=True)], "lets grants"),
    "one person in place of two": ([TWO], [ASK, TWO], "could replace the terms"),
    "one person in place of two, where that can't be evaluated": ([DOUBTFUL], [DOUBTFUL, ASK], "could replace the terms"),
    "one person in place of two, where a deny rule can't be evaluated": (
        [DOUBTFUL], [rule("deny", "large", args=[LARGE]), DOUBTFUL], "could replace the terms"
    ),
    "another risk": ([rule("ask", "high", risk="high")], [ASK, rule("ask", "high", risk="high")], "could replace the terms"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), TIGHTENS.values(), ids=TIGHTENS)
def test_what_only_tightens(before: list[Rule], after: list[Rule]) -> None:
    """New deny and ask rules, reasons, shadow rules, and an allow rule less need no second admin."""
    assert loosening(policy(*before), policy(*after)) is None


@pytest.mark.parametrize(("before", "after", "why"), LOOSENS.values(), ids=LOOSENS)
def test_everything_else_loosens(before: list[Rule], after: list[Rule], why: str) -> None:
    """What is not certain to tighten loosens, with the reason."""
    assert why in (loosening(policy(*before), policy(*after)) or "")


def test_a_new_ask_rule_does_not_replace_the_terms_of_a_files_rule() -> None:
    """The rules of an app's file come after the stored ones, so a stored ask rule comes before each of them."""
    assert loosening(policy(), policy(ASK), files=[policy(), policy(ALLOW, DENY)]) is None
    assert "replace" in (loosening(policy(), policy(ASK), files=[policy(), policy(TWO)]) or "")
    assert loosening(policy(), policy(TWO), files=[policy(TWO.model_copy(update={"name": "b"}))]) is None


class Payment(BaseModel):
    cents: int | str = 0


@tool(name="pay", effect="once")
async def pay(params: Payment) -> None:
    """Pay."""


ARGUMENTS: list[dict[str, Any]] = [{}, {"cents": 3}, {"cents": 10}, {"cents": "much"}]
NAMES = ("a", "b", "c", "d")
CONDITIONS: list[dict[str, Any]] = [{}, {"args": [SMALL]}, {"args": [LARGE]}, {"tools": ["other"]}]
TERMS: list[dict[str, Any]] = [{}, {"quorum": 2}, {"grantable": True}, {"judge": "may_allow"}, {"risk": "high"}]


@st.composite
def rules_of(draw: st.DrawFn) -> Rule:
    verdict = draw(st.sampled_from(["allow", "ask", "deny"]))
    options = dict(draw(st.sampled_from(CONDITIONS)))
    if verdict == "ask":
        options |= draw(st.sampled_from(TERMS))
    if verdict == "allow" and draw(st.booleans()):
        options["total"] = TOTAL
    return rule(verdict, draw(st.sampled_from(NAMES)), shadow=draw(st.integers(0, 4)) == 0, **options)


POLICIES = st.lists(rules_of(), max_size=4, unique_by=lambda each: each.name).map(lambda rules: policy(*rules))


@st.composite
def changes(draw: st.DrawFn) -> tuple[Policy, Policy]:
    """Two policies that share some rules, often all but one."""
    before, other = draw(POLICIES), draw(POLICIES)
    unchanged = [each for each in before.rule if draw(st.integers(0, 4))]
    names = {each.name for each in unchanged}
    new = [each for each in other.rule if each.name not in names][:1]
    place = draw(st.integers(0, len(unchanged)))
    return before, policy(*unchanged[:place], *new, *unchanged[place:])


def _verdict(rules: Policy, arguments: dict[str, Any]) -> Verdict:
    def facts() -> CallFacts:
        return call_facts(json.dumps(arguments), workspace=None)

    return evaluate(rules, pay, Payment(**arguments), agent="agent", facts=facts)


@given(changes(), POLICIES)
@settings(max_examples=200, deadline=None)
def test_i2_what_does_not_loosen_lets_no_call_run_that_asked(change: tuple[Policy, Policy], file: Policy) -> None:
    """I2: a call that asked, or was denied, still is; it isn't left to a judge, nor to fewer people or as a lower risk."""
    before, after = change
    if loosening(before, after, files=[file]) is not None:
        return
    for arguments in ARGUMENTS:
        was, now = (_verdict(each.joined_with(file), arguments) for each in (before, after))
        if was.answer != "allow":
            assert now.answer != "allow", (arguments, was, now)
            assert now.judgeable <= was.judgeable, (arguments, was, now)
        if was.answer == "ask" and now.answer == "ask":
            assert now.terms.quorum >= was.terms.quorum, (arguments, was, now)
            assert RISKS.index(now.risk) >= RISKS.index(was.risk), (arguments, was, now)
