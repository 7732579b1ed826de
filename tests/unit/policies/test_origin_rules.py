"""Rules that look at where arguments come from."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from turngate import Policy, Rule, tool
from turngate.domain.origins.origin import OF_AN_EDIT, Doubt, Origin, Origins, Place
from turngate.domain.policy.facts import Match
from turngate.domain.policy.policy import evaluate, parse_policy
from turngate.domain.runs.recorded_calls import RecordedCall
from turngate.domain.tools.known_tools import KnownTool
from turngate.policies.backtest import Unjudged, judge
from turngate.policies.explain import AskedCall, explain, in_order, rule_views
from turngate.policies.facts import call_facts

TOML = """
[[rule]]
name = "strangers"
verdict = "deny"
tools = ["pay"]
from = "untrusted"
from_at = ["/account"]
"""
STRANGERS = parse_policy(TOML, source="test").rule[0]


class Payment(BaseModel):
    account: str = Field(alias="acct")
    note: str = ""


@tool(effect="once", ask=False)
async def pay(params: Payment) -> None:
    """Pay."""


def origins(complete: bool = True, **doubts: Doubt | None) -> Origins:
    """Origins of the arguments with these names."""
    places = (Place(kind="result", tool="read_mail", untrusted=True),)
    items = tuple(Origin(at=f"/{name}", doubt=doubt, places=places) for name, doubt in doubts.items())
    return Origins(items=items, complete=complete)


def match(rule: Rule, known: Origins | None, raw: str = '{"account": "x", "note": "y"}', params: Any = None) -> Match:
    return rule.matches(tool="pay", agent="a", facts=lambda: call_facts(raw, None, known).read_as(params))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (origins(account="untrusted", note=None), "yes"),
        (origins(account=None, note="untrusted"), "no"),
        (origins(account="nowhere", note=None), "no"),
        (origins(account="contradicts", note=None), "no"),
        (origins(account="untrusted", complete=False), "yes"),
        (origins(account=None, complete=False), "unclear"),
        (OF_AN_EDIT, "no"),
        (None, "unclear"),
    ],
)
def test_a_rule_matches_a_doubt_at_its_pointers(known: Origins | None, expected: Match) -> None:
    """What wasn't compared, or isn't known, is unclear; a doubt that was found is certain."""
    assert match(STRANGERS, known) == expected


def test_without_pointers_every_argument_counts() -> None:
    """Also a value inside a list, and a part of a longer text."""
    anywhere = Rule(name="r", verdict="ask", tools=["pay"], from_="nowhere")
    inside = Origins(items=(Origin(at="/lines/0/account", part="DE12", doubt="nowhere"),))
    assert match(anywhere, inside) == "yes"
    assert match(anywhere, origins(account="untrusted", note="contradicts")) == "no"


@pytest.mark.parametrize(
    ("raw", "known", "expected"),
    [
        ('{"acct": "x"}', origins(acct="untrusted"), "unclear"),
        ('{"acct": "x"}', origins(acct=None), "no"),
        ('{"acct": "x", "account": "y"}', origins(acct="untrusted", account=None), "unclear"),
        ('{"acct": "x", "note": "y"}', origins(acct=None, note="untrusted"), "unclear"),
    ],
)
def test_another_spelling_of_an_argument_hides_no_stranger(raw: str, known: Origins, expected: Match) -> None:
    """Origins are those of what is written; the tool may read the rule's argument under another name."""
    assert match(STRANGERS, known, raw, pay.decode(raw)) == expected


def test_another_spelling_hides_no_stranger_from_a_rule_with_other_conditions() -> None:
    """A condition that only the decoded arguments meet does not make the origin of the written ones count."""
    account = {"at": "/account", "op": "eq", "value": "x"}
    rule = Rule.model_validate({**STRANGERS.model_dump(exclude_defaults=True), "args": [account]})
    raw = '{"acct": "x"}'
    assert match(rule, origins(acct="untrusted"), raw, pay.decode(raw)) == "unclear"


def test_what_comes_from_strangers_or_nowhere_allows_nothing() -> None:
    """An allow rule with ``from`` is refused when it is read, in shadow, too."""
    for shadow in (False, True):
        with pytest.raises(ValidationError, match="asks or denies"):
            Rule(name="r", verdict="allow", tools=["*"], from_="untrusted", shadow=shadow)
    with pytest.raises(ValidationError, match="Input should be"):
        Rule.model_validate({"name": "r", "verdict": "ask", "tools": ["*"], "from": "task"})


@pytest.mark.parametrize(
    ("verdict", "known", "answer"),
    [
        ("deny", origins(acct="untrusted"), "deny"),
        ("ask", origins(acct="untrusted"), "ask"),
        ("deny", None, "ask"),
        ("ask", None, "ask"),
        ("deny", origins(acct=None), "allow"),
        ("deny", origins(acct=None, complete=False), "ask"),
    ],
)
def test_an_unclear_origin_never_allows(verdict: Literal["deny", "ask"], known: Origins | None, answer: str) -> None:
    """Whatever would allow the call, its tool and another rule, comes after a rule that can't be evaluated."""
    strangers = STRANGERS.model_copy(update={"verdict": verdict, "from_at": ["/acct"]})
    rules = Policy(rule=[strangers, Rule(name="open", verdict="allow", tools=["*"])])
    raw = '{"acct": "x"}'
    facts = partial(call_facts, raw, None, known)
    assert evaluate(rules, pay, pay.decode(raw), agent="a", facts=facts).answer == answer
    assert evaluate(rules, pay, pay.decode(raw), agent="a").answer == "ask"


def test_a_rule_is_shown_and_stored_as_it_is_written() -> None:
    """In TOML, in views and in the store it is ``from``; rules without it keep their version."""
    (view,) = rule_views(in_order(("file", Policy(rule=[STRANGERS]))))
    assert (view.rule["from"], view.rule["from_at"]) == ("untrusted", ["/account"])
    policy = Policy(rule=[STRANGERS])
    assert Policy.model_validate_json(policy.model_dump_json(exclude_defaults=True)) == policy
    plain = Policy(rule=[Rule(name="r", verdict="ask", tools=["*"])])
    assert plain.model_dump_json(exclude_defaults=True) == '{"rule":[{"name":"r","verdict":"ask","tools":["*"]}]}'


def test_an_explanation_says_what_isnt_known_and_what_is() -> None:
    """Outside of a run the rule is unclear, so a person is asked; with origins the reason names argument and place."""
    placed = in_order(("file", Policy(rule=[STRANGERS])))

    def explained(known: Origins | None) -> Any:
        return explain(placed, AskedCall(tool=pay, raw_input='{"account": "x"}', agent="a", origins=known))

    unknown = explained(None)
    assert (unknown.answer, unknown.rules[0].match) == ("ask", "unclear")
    assert unknown.rules[0].why == "where the arguments come from isn't known here"
    assert explained(origins(account="untrusted")).rules[0].why == (
        "/account is only in the result of read_mail, which anyone may have written"
    )


def test_a_backtest_counts_calls_whose_origins_are_recorded() -> None:
    """The others can't be judged, unless a rule that precedes decides."""
    published = KnownTool(name="pay", own_ask="never")

    def judged(known: Origins | None, *rules: Rule) -> str:
        call = RecordedCall(
            run_id="r", tool_call_id="c", tool="pay", agent="a", input='{"account": "x"}',
            verdict_json='{"answer": "allow", "rule": "old", "reason": "", "risk": "low"}', effect="once",
            workspace=None, starter="ann", unattended=None, place=(),
            origins_json=None if known is None else known.model_dump_json(exclude_defaults=True),
        )  # fmt: skip
        now = judge(Policy(rule=[*rules, STRANGERS]), call, published, None)
        return "unjudged" if isinstance(now, Unjudged) else now.answer

    assert judged(origins(account="untrusted")) == "deny"
    assert judged(origins(account=None)) == "allow"
    assert judged(None) == "unjudged"
    assert judged(None, Rule(name="no", verdict="deny", tools=["*"])) == "deny"
