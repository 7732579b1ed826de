"""Policy: the order of rules, and every doubt asks."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
from pydantic import BaseModel

from turngate import Policy, Rule, interaction_tool, tool
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import evaluate, parse_policy
from turngate.domain.policy.terms import PLAIN_TERMS, AskTerms
from turngate.domain.tools.tool import Tool


class Amount(BaseModel):
    cents: int


def paying(ask: Any = None, effect: Any = "once") -> Tool:
    @tool(ask=ask, effect=effect, name="pay")
    async def pay(params: Amount) -> None:
        """Pay."""

    return pay


QUESTION = interaction_tool(name="ask_person", description="Ask.", params=Amount, answer=Amount)


def rule(verdict: Any, name: str = "", **options: Any) -> Rule:
    return Rule(**{"name": name or verdict, "verdict": verdict, "tools": ["*"], **options})


def verdict_of(*rules: Rule, of: Tool | None = None, cents: int = 5, agent: str = "support"):
    return evaluate(Policy(rule=list(rules)), of or paying(ask=False), Amount(cents=cents), agent=agent)


@pytest.mark.parametrize("order", list(itertools.permutations(["deny", "ask", "allow"])))
def test_deny_precedes_ask_which_precedes_allow(order: tuple[str, ...]) -> None:
    """The file's order does not matter: the strictest verdict applies, and without it the next one."""
    rules = [rule(verdict) for verdict in order]
    assert verdict_of(*rules).rule == "deny"
    assert verdict_of(*(each for each in rules if each.verdict != "deny")).rule == "ask"
    assert verdict_of(rule("allow"), of=paying(ask=True)).answer == "allow"


def test_the_first_of_two_rules_with_one_verdict_is_named() -> None:
    """Within a verdict the file's order decides which rule is named."""
    assert verdict_of(rule("ask", "one"), rule("ask", "two")).rule == "one"


@pytest.mark.parametrize(
    ("ask", "answer", "named"),
    [
        pytest.param(None, "ask", "default", id="a tool without a rule"),
        pytest.param(True, "ask", "tool:ask", id="the tool asks"),
        pytest.param(False, "allow", "tool:ask", id="the tool does not ask"),
        pytest.param(lambda params: params.cents > 3, "ask", "tool:ask", id="its predicate asks"),
        pytest.param(lambda params: params.cents > 9, "allow", "tool:ask", id="its predicate does not"),
        pytest.param(lambda _: None, "ask", "tool:ask", id="a predicate that forgot to return"),
        pytest.param(lambda _: 0, "ask", "tool:ask", id="a predicate that returns something falsy"),
        pytest.param(lambda _: 1 / 0, "ask", "tool:ask-error", id="a predicate that raises"),
        pytest.param(lambda _: sys.exit(1), "ask", "tool:ask-error", id="a predicate that would end the worker"),
        pytest.param(lambda params: params.missing, "ask", "tool:ask-error", id="a predicate with a typing error"),
    ],
)
def test_i2_without_a_rule_only_an_explicit_false_allows_a_call(ask: Any, answer: str, named: str) -> None:
    """I2: without a matching rule the tool's own ask counts, and every doubt asks."""
    verdict = verdict_of(of=paying(ask=ask))
    assert (verdict.answer, verdict.rule) == (answer, named)


def test_i2_a_matching_rule_skips_the_tools_predicate() -> None:
    """A rule's verdict applies without the tool's predicate; without a rule, the verdict names the predicate's error."""
    raising = paying(ask=lambda _: {}["x"])
    assert verdict_of(rule("allow"), of=raising).answer == "allow"
    assert "KeyError" in verdict_of(of=raising).reason


@pytest.mark.parametrize(
    ("options", "matches"),
    [
        ({"tools": ["pay"]}, True),
        ({"tools": ["look", "p*"]}, True),
        ({"tools": ["pa"]}, False),
        ({"tools": ["PAY"]}, False),
        ({"agents": ["support"]}, True),
        ({"agents": ["sup*", "x"]}, True),
        ({"agents": ["sales"]}, False),
    ],
)
def test_a_rule_matches_the_tools_and_agents_it_names(options: dict[str, Any], matches: bool) -> None:
    """Patterns match whole names with ``*``, are case-sensitive, and tool and agent must both match."""
    assert (verdict_of(rule("deny", **options)).answer == "deny") is matches


def test_a_verdict_carries_its_rules_terms() -> None:
    """Risk and terms come from the rule that gave the verdict; without a rule the defaults apply."""
    terms = {"expires_after_seconds": 60, "starter_may_decide": False, "quorum": 2, "roles": ["admin"]}
    verdict = verdict_of(rule("ask", risk="high", reason="Look.", **terms), rule("ask", "later", quorum=3))
    assert (verdict.risk, verdict.reason, verdict.terms) == ("high", "Look.", AskTerms(**terms, grace_seconds=5))
    assert verdict_of(of=paying(ask=True)).terms == verdict_of(rule("ask")).terms == PLAIN_TERMS


@pytest.mark.parametrize(("effect", "risk"), [("read", "low"), ("idempotent", "medium"), ("once", "medium")])
def test_without_a_rule_the_effect_gives_the_risk(effect: str, risk: str) -> None:
    """A call that only reads is shown as low risk, one that changes things as medium."""
    assert verdict_of(of=paying(ask=True, effect=effect)).risk == risk
    assert verdict_of(rule("ask"), of=paying(ask=True, effect=effect)).risk == risk


@pytest.mark.parametrize(
    ("rules", "answer", "named"),
    [
        pytest.param([], "ask", "tool:interaction", id="no rule"),
        pytest.param([rule("allow")], "ask", "tool:interaction", id="a rule cannot allow what nothing runs"),
        pytest.param([rule("deny")], "deny", "deny", id="a rule can deny it"),
        pytest.param([rule("ask", expires_after_seconds=60)], "ask", "ask", id="a rule can set its terms"),
    ],
)
def test_an_interaction_asks_unless_it_is_denied(rules: list[Rule], answer: str, named: str) -> None:
    """A question to a person never runs anything: deny and ask rules apply to it, allow rules do not."""
    verdict = verdict_of(*rules, of=QUESTION)
    assert (verdict.answer, verdict.rule) == (answer, named)


GOOD = """
[[rule]]
name = "no-payments"
verdict = "deny"
tools = ["pay"]
reason = "Payments are off."
"""


def test_a_policy_is_read_from_toml() -> None:
    """The file is the policy; a file without rules is a policy too."""
    assert parse_policy(GOOD, source="p.toml").rule[0].reason == "Payments are off."
    assert parse_policy("", source="p.toml") == Policy()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("[[rule]\n", ["p.toml is not TOML", "line 1"], id="not TOML"),
        pytest.param(
            GOOD.replace("deny", "never"), ["rule.0.verdict", "'allow', 'ask' or 'deny'"], id="unknown verdict"
        ),
        pytest.param(
            GOOD + "tool = 1\n", ["rule.0.tool", "there is no such key. Did you mean 'tools'?"], id="a misspelled key"
        ),
        pytest.param(
            GOOD + GOOD.replace("tools", "tooLs"), ["rule.1.tooLs", "Did you mean 'tools'?"], id="in the second rule"
        ),
        pytest.param(GOOD.replace('["pay"]', "[]"), ["rule.0.tools", "at least 1"], id="a rule about no tool"),
        pytest.param(GOOD.replace('["pay"]', '"pay"'), ["rule.0.tools", "list"], id="a bare string of tools"),
        pytest.param(GOOD + "starter_may_decide = 0\n", ["rule.0.starter_may_decide", "boolean"], id="0 is not false"),
        pytest.param(GOOD + "fresh_for_seconds = '4h'\n", ["rule.0.fresh_for_seconds", "integer"], id="fresh for 4h"),
        pytest.param(GOOD + "expires_after_seconds = 0\n", ["rule.0.expires_after_seconds"], id="expires at once"),
        pytest.param(GOOD.replace("[[rule]]", "[[rules]]"), ["rules", "Did you mean 'rule'?"], id="a misspelled table"),
    ],
)
def test_an_error_names_the_file_and_the_place(text: str, says: list[str]) -> None:
    """An invalid policy stops the start and names the file and the place; no policy is read in part."""
    with pytest.raises(ConfigurationError) as refused:
        parse_policy(text, source="p.toml")
    assert all(words in refused.value.message for words in ["policy p.toml", *says]), refused.value.message


def test_i6_the_version_follows_the_rules() -> None:
    """I6: the same rules have one version in every process and spelling; another rule or order has another version."""
    policy = parse_policy(GOOD, source="a.toml")
    respelled = 'rule = [{reason="Payments are off.", tools=["pay"], verdict="deny", name="no-payments"}]'
    assert parse_policy(respelled, source="b.toml").version == policy.version
    assert len(policy.version) == 12
    versions = {
        parse_policy(text, source="c.toml").version
        for text in ["", GOOD, GOOD.replace("off", "on"), GOOD + "risk = 'high'\n", GOOD + GOOD.replace("no-", "not-")]
    }
    assert len(versions) == 5
    # A field that a rule leaves out is not hashed: a key that a later release adds must not change existing versions.
    assert Policy().version == framed_sha256("{}")[:12]
    spelled_out = GOOD + 'agents = ["*"]\nshadow = false\nquorum = 1\n'
    assert parse_policy(spelled_out, source="d.toml").version == policy.version
