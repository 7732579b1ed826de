"""Warnings about rules that don't do what they seem to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from turngate import Policy, Rule, interaction_tool, tool
from turngate.domain.policy.arguments import ArgumentMatcher
from turngate.policies.lint import doubts, implies


class Payment(BaseModel):
    amount: int
    note: str = ""


@tool(effect="once")
async def pay(params: Payment) -> None:
    """Pay."""


ask_person = interaction_tool(name="ask_person", description="Ask.", params=Payment, answer=Payment)
TOOLS = {"support": [pay, ask_person], "intern": [ask_person]}


def rule(name: str, verdict: Any = "allow", **options: Any) -> Rule:
    return Rule(**{"name": name, "verdict": verdict, "tools": ["pay"], **options})


def at(op: str, value: Any = None, pointer: str = "/amount") -> dict[str, Any]:
    return {"at": pointer, "op": op} if value is None else {"at": pointer, "op": op, "value": value}


def warnings_of(*rules: Rule, tools: Any = None) -> list[tuple[str, str]]:
    return [(doubt.rule, doubt.message) for doubt in doubts(Policy(rule=list(rules)), tools)]


NEVER = "it can never apply"


def test_a_rule_about_the_engines_own_call_is_in_order() -> None:
    """No app declares ``extend_budget``, and rules say who may extend which budget."""
    budgets = rule("budgets", "ask", tools=["extend_budget"], args=[at("eq", "cost", "/budget")])
    assert warnings_of(budgets, tools=TOOLS) == []
    assert len(warnings_of(rule("typo", tools=["extend_budgte"]), tools=TOOLS)) == 1


@pytest.mark.parametrize(
    ("rules", "covered"),
    [
        ([rule("a"), rule("b")], ["b"]),
        ([rule("a"), rule("b", "ask")], ["a"]),  # ask rules come first wherever they are
        ([rule("a", "ask"), rule("b", "deny")], ["a"]),
        ([rule("a", tools=["*"]), rule("b")], ["b"]),
        ([rule("a", tools=["p*"]), rule("b", tools=["pa*"])], ["b"]),
        ([rule("a", tools=["pa*"]), rule("b", tools=["p*"])], []),
        ([rule("a", tools=["p?y"]), rule("b", tools=["p*"])], []),
        ([rule("a", agents=["support"]), rule("b")], []),
        ([rule("a"), rule("b", agents=["support"])], ["b"]),
        ([rule("a", args=[at("gt", 5)]), rule("b", args=[at("gt", 9)])], ["b"]),
        ([rule("a", args=[at("gt", 9)]), rule("b", args=[at("gt", 5)])], []),
        ([rule("a", args=[at("gt", 5)]), rule("b")], []),
        ([rule("a"), rule("b", args=[at("gt", 5)])], ["b"]),
        ([rule("a", args=[at("gt", 5)]), rule("b", args=[at("eq", 7), at("eq", "x", "/note")])], ["b"]),
        ([rule("a", command=["git *", "ls"]), rule("b", command=["ls"])], ["b"]),
        ([rule("a", command=["ls"]), rule("b", command=["git *", "ls"])], []),
        ([rule("a", command=["ls"], command_at="/x"), rule("b", command=["ls"])], []),
        ([rule("a", paths=["src/**"]), rule("b", paths=["src/**"])], ["b"]),
        ([rule("a", paths=["src/**"], paths_at=["/from"]), rule("b", paths=["src/**"])], []),
        ([rule("a", workspaces=["/srv/**"]), rule("b")], []),
        ([rule("a"), rule("b", workspaces=["/srv/**"])], ["b"]),
        ([rule("a", "ask", from_="nowhere"), rule("b", "ask", from_="nowhere", from_at=["/amount"])], ["b"]),
        ([rule("a", "ask", from_="nowhere", from_at=["/amount"]), rule("b", "ask", from_="nowhere")], []),
        ([rule("a", "ask", from_="nowhere"), rule("b", "ask", from_="untrusted")], []),
        ([rule("a", "ask", from_="nowhere"), rule("b", "ask")], []),
        ([rule("a", shadow=True), rule("b")], []),
        ([rule("a"), rule("b", shadow=True)], ["b"]),
    ],
)
def test_a_rule_after_a_wider_one_can_never_apply(rules: list[Rule], covered: list[str]) -> None:
    """The warning names the wider rule and comes only in certain cases; if any call is left over there is none."""
    warnings = warnings_of(*rules)
    assert [name for name, message in warnings if message.startswith(NEVER)] == covered
    other = {"a": "'b'", "b": "'a'"}
    assert all(other[name] in message for name, message in warnings)


@pytest.mark.parametrize(
    ("had", "wanted", "certain"),
    [
        (at("le", 5), at("lt", 6), True),
        (at("le", 5), at("lt", 5), False),
        (at("lt", 5), at("le", 5), True),
        (at("lt", 5), at("gt", 1), False),
        (at("eq", 5), at("ge", 5), True),
        (at("in", [5, 9]), at("ge", 6), False),
        (at("in", [6, 9]), at("ge", 6), True),
        (at("gt", 5), at("exists"), True),
        (at("ne", 5), at("exists"), False),
        (at("gt", 5), at("gt", 5, "/other"), False),
        (at("eq", "x"), at("starts_with", "x"), True),
        (at("gt", 0.1), at("gt", 0.1), True),
        (at("between", [2, 5]), at("le", 5), True),
        (at("between", [2, 5]), at("lt", 5), False),
        (at("between", [2, 5]), at("between", [1, 6]), True),
        (at("between", [2, 5]), at("between", [3, 6]), False),
        (at("le", 5), at("between", [1, 5]), False),
        (at("eq", 5), at("between", [1, 5]), True),
        (at("between", [2, 5]), at("exists"), True),
        (at("le", "2026-12-31"), at("lt", "2027-01-01"), True),
        (at("le", "2026-12-31"), at("lt", 5), False),
    ],
)
def test_when_one_condition_implies_another(had: Any, wanted: Any, certain: bool) -> None:
    """Bounds, values and presence at the same pointer; never across pointers."""
    assert implies(ArgumentMatcher(**had), ArgumentMatcher(**wanted)) is certain


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decisions": ["reject"]}, "no one can let the call run"),
        ({"decisions": ["edit"]}, None),
        ({"starter_may_decide": False, "people": ["ann"]}, "no one may decide where ann started the run"),
        ({"starter_may_decide": False, "people": ["ann"], "roles": ["admin"]}, None),
        ({"grantable": True, "risk": "high"}, "grantable = true has no effect"),
        ({"on_expiry": "park", "ladder": [{"after_seconds": 9, "do": "remind"}]}, "on_expiry = 'park' counts only"),
        ({"grantable": True}, None),
    ],
)
def test_impossible_terms_give_a_warning(options: dict[str, Any], words: str | None) -> None:
    """A request with them would stay pending forever, or a term would have no effect."""
    warnings = warnings_of(rule("terms", "ask", **options))
    assert [message.startswith(words or "?") for _name, message in warnings] == ([] if words is None else [True])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, None),
        ({"tools": ["pay", "refund"]}, "no agent of the app has a tool that fits 'refund'"),
        ({"agents": ["intern"]}, "no agent called intern has a tool that fits 'pay'"),
        ({"agents": ["boss"]}, "no agent of the app is called boss"),
        ({"tools": ["ask_person"]}, "it can never apply: its tools ask people"),
        ({"args": [at("gt", 5, "/amuont")]}, "none of its tools (pay) has an argument 'amuont'"),
        ({"args": [at("gt", 5)]}, None),
        ({"command": ["ls"]}, "none of its tools (pay) has an argument 'command'"),
    ],
)
def test_rules_that_do_not_fit_the_app_give_a_warning(options: dict[str, Any], words: str | None) -> None:
    """No such tool, no such agent, no such argument: such a rule matches no call."""
    warnings = warnings_of(rule("one", **options), tools=TOOLS)
    assert [message.startswith(words or "?") for _name, message in warnings] == ([] if words is None else [True]), (
        warnings
    )


def test_a_rule_about_strangers_needs_a_tool_that_they_write() -> None:
    """Without a tool that is declared untrusted no value is, so the rule would never apply; any agent's tool counts."""
    strangers = rule("strangers", "ask", from_="untrusted", from_at=["/amuont"])
    never = "it can never apply: no tool of the app is declared with untrusted=True"
    no_argument = "none of its tools (pay) has an argument 'amuont', which it looks at (/amuont)"
    assert warnings_of(strangers, tools=TOOLS) == [("strangers", no_argument), ("strangers", never)]
    with_mail = {**TOOLS, "reader": [replace(pay, name="read_mail", untrusted=True)]}
    assert warnings_of(strangers, tools=with_mail) == [("strangers", no_argument)]
