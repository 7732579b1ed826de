"""Policy with terms, matchers, grants and shadow rules: the whole order, and what each stage passes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from turngate import Policy, Rule, interaction_tool, tool
from turngate.domain.policy.always_asked import MAY_HAVE_HAPPENED, NETWORK, UNCONFINED, always_asked
from turngate.domain.policy.command_line import Unparsable
from turngate.domain.policy.facts import CallFacts, ResolvedPath
from turngate.domain.policy.grants import Grant, GrantPattern
from turngate.domain.policy.policy import (
    PROTECTED,
    STORED_RULES_UNREADABLE,
    FactsOf,
    ShadowVerdict,
    Verdict,
    evaluate,
    parse_policy,
)
from turngate.domain.policy.terms import PLAIN_TERMS, AskTerms
from turngate.domain.policy.unattended import unattended
from turngate.domain.text.json_pointers import decode_arguments
from turngate.domain.tools.tool import ProcessConfinement, Tool


class Amount(BaseModel):
    cents: int


def paying(ask: Any = None) -> Tool:
    @tool(ask=ask, effect="once", name="pay")
    async def pay(params: Amount) -> None:
        """Pay."""

    return pay


QUESTION = interaction_tool(name="pay", description="Ask.", params=Amount, answer=Amount)
ASKING, OPEN, SILENT = paying(ask=True), paying(ask=False), paying()

OVER = [{"at": "/cents", "op": "gt", "value": 500}]
"""Matches 600, does not match 5, and is unclear for "much"."""
ARGUMENTS = {"yes": '{"cents": 600}', "no": '{"cents": 5}', "unclear": '{"cents": "much"}'}


def facts_of(raw: str) -> FactsOf:
    def facts_of_the_call() -> CallFacts:
        return CallFacts(
            arguments=decode_arguments(raw),
            workspace=None,
            read_command=lambda _line: Unparsable(reason="no shell here"),
            resolve_path=lambda _path, _workspace: ResolvedPath(lexical=None, real=None),
        )

    return facts_of_the_call


def rule(verdict: Any, name: str = "", **options: Any) -> Rule:
    return Rule.model_validate({"name": name or verdict, "verdict": verdict, "tools": ["*"], **options})


def grant(**options: Any) -> Grant:
    return Grant(
        **{
            "id": "g1",
            "pattern": GrantPattern(tool="pay", open=["cents"]),
            "scope": "everyone",
            "run_id": None,
            "agent": None,
            "expires_at": datetime(2100, 1, 1, tzinfo=UTC),
            "max_uses": 1,
            "uses": 0,
            "created_by": "ann",
            **options,
        }
    )


def verdict_of(*rules: Rule, of: Tool = OPEN, raw: str = ARGUMENTS["no"], **options: Any) -> Verdict:
    options.setdefault("facts", facts_of(raw))
    return evaluate(Policy(rule=named(rules)), of, Amount(cents=5), agent="support", **options)


def named(rules: Sequence[Rule]) -> list[Rule]:
    """Give the rules unique names, as a policy requires: a second ``ask`` is ``ask2``."""
    by_name: dict[str, Rule] = {}
    for each in rules:
        name = f"{each.name}2" if each.name in by_name else each.name
        by_name[name] = each.model_copy(update={"name": name})
    return list(by_name.values())


DENY, ASK, GRANTABLE, ALLOW = rule("deny"), rule("ask"), rule("ask", grantable=True), rule("allow")


@pytest.mark.parametrize(
    ("rules", "grants", "of", "answer", "rule_of"),
    [
        pytest.param([DENY, ASK, ALLOW], [grant()], OPEN, "deny", "deny", id="a deny rule before everything"),
        pytest.param([DENY], [grant()], ASKING, "deny", "deny", id="a grant overrides no deny rule"),
        pytest.param([ASK, ALLOW], [grant()], OPEN, "ask", "ask", id="an ask rule before grants and allow rules"),
        pytest.param([GRANTABLE], [grant()], OPEN, "allow", "grant:g1", id="a grant before an ask rule that lets it"),
        pytest.param([GRANTABLE], [], OPEN, "ask", "ask", id="a rule that lets grants answer asks without one"),
        pytest.param([GRANTABLE, ASK], [grant()], OPEN, "ask", "ask", id="of two ask rules both have to let it"),
        pytest.param([ASK, GRANTABLE], [grant()], OPEN, "ask", "ask", id="in either order"),
        pytest.param([ALLOW], [grant()], ASKING, "allow", "grant:g1", id="a grant before an allow rule"),
        pytest.param([], [grant()], ASKING, "allow", "grant:g1", id="a grant before the tool's own ask"),
        pytest.param([], [grant()], SILENT, "allow", "grant:g1", id="a grant before the default"),
        pytest.param([ALLOW], [], ASKING, "allow", "allow", id="an allow rule before the tool's own ask"),
        pytest.param([], [], ASKING, "ask", "tool:ask", id="the tool's own ask before the default"),
        pytest.param([], [], OPEN, "allow", "tool:ask", id="the tool's own no before the default"),
        pytest.param([], [], SILENT, "ask", "default", id="the default"),
        pytest.param([ALLOW], [grant()], QUESTION, "ask", "tool:interaction", id="nothing allows a question"),
    ],
)
def test_the_order_of_evaluation(rules: list[Rule], grants: list[Grant], of: Tool, answer: str, rule_of: str) -> None:
    """Deny rules → ask rules → grants → allow rules → the tool's own ask → the default, which is to ask."""
    verdict = verdict_of(*rules, of=of, grants=grants)
    assert (verdict.answer, verdict.rule) == (answer, rule_of)
    assert verdict.grant_id == ("g1" if rule_of == "grant:g1" else None)


@pytest.mark.parametrize(
    ("covered", "granted"),
    [
        pytest.param({}, True, id="everyone"),
        pytest.param({"scope": "agent", "agent": "support"}, True, id="this agent"),
        pytest.param({"scope": "agent", "agent": "sales"}, False, id="another agent"),
        pytest.param({"scope": "run", "run_id": "r1"}, True, id="this run"),
        pytest.param({"scope": "run", "run_id": "r2"}, False, id="another run"),
        pytest.param({"scope": "run", "run_id": ""}, False, id="no run at all"),
        pytest.param({"pattern": GrantPattern(tool="pay_all", open=["cents"])}, False, id="another tool"),
        pytest.param({"pattern": GrantPattern(tool="pay")}, False, id="an argument that it does not name"),
        pytest.param({"pattern": GrantPattern(tool="pay", fixed={"cents": 5})}, True, id="the fixed value"),
        pytest.param({"pattern": GrantPattern(tool="pay", fixed={"cents": "5"})}, False, id="a value of another kind"),
    ],
)
def test_a_grant_covers_its_scope_tool_and_pattern(covered: dict[str, Any], granted: bool) -> None:
    """All three have to match."""
    verdict = verdict_of(of=ASKING, grants=[grant(**covered)], run_id="r1")
    assert (verdict.answer == "allow") is granted


def test_a_grant_needs_to_see_the_arguments() -> None:
    """A provider's own tool shows no arguments, so no pattern matches."""
    assert verdict_of(of=ASKING, grants=[grant()], facts=None).answer == "ask"


@pytest.mark.parametrize(
    ("rules", "match", "answer", "rule_of"),
    [
        pytest.param([rule("deny", args=OVER)], "yes", "deny", "deny", id="deny, of this call"),
        pytest.param([rule("deny", args=OVER)], "no", "allow", "tool:ask", id="deny, of other calls"),
        pytest.param([rule("deny", args=OVER)], "unclear", "ask", "deny", id="deny, which cannot tell"),
        pytest.param([rule("ask", args=OVER)], "unclear", "ask", "ask", id="ask, which cannot tell"),
        pytest.param([rule("allow", args=OVER)], "unclear", "ask", "tool:ask", id="allow, which cannot tell"),
        pytest.param([rule("deny", args=OVER), ALLOW], "unclear", "ask", "deny", id="no allow rule comes between"),
        pytest.param([rule("deny", args=OVER), GRANTABLE], "unclear", "ask", "ask", id="a clear ask rule counts"),
        pytest.param(
            [rule("ask", args=OVER, grantable=True)], "unclear", "ask", "ask", id="no grant where it is unclear"
        ),
        pytest.param([rule("deny", args=OVER), DENY], "unclear", "deny", "deny", id="a clear deny rule counts"),
    ],
)
def test_an_unclear_matcher_asks(rules: list[Rule], match: str, answer: str, rule_of: str) -> None:
    """Unclear on a deny or ask rule asks, before any grant or allow rule; on an allow rule it is no match."""
    grants = [] if match == "no" or rule_of == "tool:ask" else [grant()]
    of = ASKING if rules[0].verdict == "allow" else OPEN
    verdict = verdict_of(*rules, of=of, raw=ARGUMENTS[match], grants=grants)
    assert (verdict.answer, verdict.rule.removesuffix("2")) == (answer, rule_of)
    assert ("cannot tell" in verdict.reason) is (answer == "ask" and rule_of == rules[0].name)


@pytest.mark.parametrize("verdict", ["deny", "ask"])
def test_a_rule_about_unknown_arguments_is_unclear(verdict: Any) -> None:
    """Without facts, a rule about arguments asks; a rule without matchers still applies."""
    assert verdict_of(rule(verdict, args=OVER), facts=None).answer == "ask"
    assert verdict_of(rule(verdict), facts=None).answer == verdict


def test_an_unclear_rule_asks_with_its_own_terms() -> None:
    """An unclear ask rule asks with its terms; a deny rule has no terms, so the defaults apply."""
    unclear = {"raw": ARGUMENTS["unclear"]}
    assert verdict_of(rule("ask", args=OVER, quorum=2, risk="high"), **unclear).terms == AskTerms(
        quorum=2, grace_seconds=5
    )
    assert verdict_of(rule("deny", args=OVER), **unclear).terms == PLAIN_TERMS


# Shadow rules


@pytest.mark.parametrize(
    ("rules", "answer", "shadow"),
    [
        pytest.param([rule("deny", shadow=True)], "allow", ("deny", "deny"), id="would be denied"),
        pytest.param([rule("ask", shadow=True, quorum=2)], "allow", ("ask", "ask"), id="would be asked"),
        pytest.param([ASK, rule("allow", shadow=True)], "ask", None, id="would be asked all the same"),
        pytest.param([DENY, rule("ask", shadow=True)], "deny", None, id="is denied all the same"),
        pytest.param([rule("deny", shadow=True, args=OVER)], "allow", None, id="matches other calls"),
        pytest.param([rule("ask", "new", shadow=True), ASK], "ask", ("ask", "new"), id="asks by another rule"),
        pytest.param([DENY], "deny", None, id="no shadow rule at all"),
    ],
)
def test_a_shadow_rule_changes_nothing(rules: list[Rule], answer: str, shadow: tuple[str, str] | None) -> None:
    """A shadow rule is recorded next to the verdict where it would change it, and has no effect."""
    verdict = verdict_of(*rules)
    assert verdict.answer == answer
    assert verdict.terms == PLAIN_TERMS
    wanted = None if shadow is None else ShadowVerdict(answer=shadow[0], rule=shadow[1])  # type: ignore[arg-type]
    assert verdict.shadow == wanted


# Terms and names in a policy

TERMS: dict[str, Any] = {
    "expires_after_seconds": 60,
    "on_expiry": "park",
    "fresh_for_seconds": 3600,
    "grace_seconds": 10,
    "starter_may_decide": False,
    "decisions": ["approve"],
    "quorum": 2,
    "roles": ["admin"],
    "people": ["ann"],
    "ladder": [{"after_seconds": 5, "do": "remind"}],
    "grantable": True,
    "judge": "may_allow",
}


@pytest.mark.parametrize("verdict", ["allow", "deny"])
@pytest.mark.parametrize("term", TERMS)
def test_terms_belong_to_a_rule_that_asks(verdict: Any, term: str) -> None:
    """The author of a quorum on an allow rule expects a request, so the rule is refused with the term's name."""
    with pytest.raises(ValidationError, match=f"{term} belongs to a rule with verdict = 'ask'"):
        rule(verdict, **{term: TERMS[term]})
    assert getattr(rule("ask", **{term: TERMS[term]}).terms, term) is not None


@pytest.mark.parametrize(
    ("terms", "grace"),
    [
        pytest.param({}, None, id="medium risk"),
        pytest.param({"risk": "high"}, 5, id="high risk"),
        pytest.param({"risk": "high", "grace_seconds": 0}, 0, id="high risk, none wanted"),
        pytest.param({"risk": "high", "grace_seconds": 60}, 60, id="high risk, its own"),
        pytest.param({"risk": "high", "fresh_for_seconds": 5}, None, id="an approval that would be too old after it"),
        pytest.param({"risk": "high", "fresh_for_seconds": 6}, 5, id="an approval that lasts just long enough"),
        pytest.param({"risk": "low", "grace_seconds": 7}, 7, id="low risk, its own"),
    ],
)
def test_a_rule_of_high_risk_has_a_grace_by_default(terms: dict[str, Any], grace: int | None) -> None:
    """Five seconds unless the rule says otherwise. The default is no part of the rule: its policy keeps its version."""
    asking = rule("ask", **terms)
    assert asking.terms.grace_seconds == grace
    assert asking.model_dump(exclude_defaults=True).get("grace_seconds") == terms.get("grace_seconds")


def test_every_term_has_a_case() -> None:
    """A term that is added later needs a case here."""
    assert set(TERMS) == set(AskTerms.model_fields)


def test_terms_are_read_from_toml() -> None:
    """A ladder is a list of tables in the file."""
    text = """
    [[rule]]
    name = "four-eyes"
    verdict = "ask"
    tools = ["pay"]
    quorum = 2
    roles = ["admin"]
    expires_after_seconds = 3600
    on_expiry = "park"

    [[rule.ladder]]
    after_seconds = 600
    do = "remind"

    [[rule.ladder]]
    after_seconds = 1200
    do = "escalate"
    people = ["ann", "bob"]
    """
    terms = parse_policy(text, source="p.toml").rule[0].terms
    assert [rung.do for rung in terms.ladder] == ["remind", "escalate"]
    assert (terms.quorum, terms.on_expiry, terms.ladder[1].people) == (2, "park", ["ann", "bob"])


def test_rule_names_are_unique_within_one_source() -> None:
    """A verdict names its rule; two sources need not know each other's names, so both rules stay."""
    with pytest.raises(ValidationError, match="two rules are called 'ask'"):
        Policy(rule=[ASK, ASK])
    stored, file = Policy(rule=[rule("ask", quorum=2)]), Policy(rule=[ASK, ALLOW])
    joined = stored.joined_with(file)
    assert [each.verdict for each in joined.rule] == ["ask", "ask", "allow"]
    assert evaluate(joined, OPEN, Amount(cents=5), agent="a").terms.quorum == 2
    assert stored.joined_with(Policy()) is stored
    assert Policy().joined_with(file) is file
    assert len({joined.version, file.joined_with(stored).version, stored.version, file.version}) == 4


# Verdicts as they are stored

STORED = '{"answer": "ask", "rule": "r", "reason": "", "risk": "low"'


@pytest.mark.parametrize(
    ("stored", "terms"),
    [
        pytest.param(STORED + "}", PLAIN_TERMS, id="plain terms"),
        pytest.param(STORED + ', "terms": {"quorum": 2}}', AskTerms(quorum=2), id="terms of its rule"),
    ],
)
def test_a_stored_verdict_keeps_its_terms(stored: str, terms: AskTerms) -> None:
    """A call that was planned before a restart is settled after it with the same terms."""
    read = Verdict.model_validate_json(stored)
    assert read.terms == terms
    assert Verdict.model_validate_json(read.model_dump_json(exclude_defaults=True)) == read


def test_default_terms_are_not_stored() -> None:
    """Fields that a rule leaves out are not stored with each call."""
    assert set(verdict_of(ASK).model_dump(exclude_defaults=True)) == {"answer", "rule", "reason", "risk"}


# Unattended runs

SAYS_RULE = ["No one attends", "rule 'ask' asks", "Change rule 'ask' to allow it"]
SAYS_FIX = ["No one attends", 'verdict = "allow", tools = ["pay"]']


@pytest.mark.parametrize(
    ("rules", "of", "mode", "answer", "says"),
    [
        pytest.param([], OPEN, "deny", "allow", [], id="deny: what runs, runs"),
        pytest.param([DENY], OPEN, "park", "deny", [], id="park: what is denied, is denied"),
        pytest.param([], ASKING, "deny", "deny", SAYS_FIX, id="deny: the tool's ask"),
        pytest.param([], SILENT, "deny", "deny", SAYS_FIX, id="deny: the default"),
        pytest.param([ASK], OPEN, "deny", "deny", SAYS_RULE, id="deny: a rule's ask"),
        pytest.param([], QUESTION, "deny", "deny", ["Nothing but a person may answer"], id="deny: a question"),
        pytest.param([ASK], OPEN, "park", "ask", [], id="park: a rule's ask"),
        pytest.param([], SILENT, "park", "ask", [], id="park: the default"),
        pytest.param([], QUESTION, "park", "ask", [], id="park: a question"),
        pytest.param([ASK], OPEN, "rules", "ask", [], id="rules: a rule's ask"),
        pytest.param([], ASKING, "rules", "deny", SAYS_FIX, id="rules: the tool's ask"),
        pytest.param([], SILENT, "rules", "deny", SAYS_FIX, id="rules: the default"),
        pytest.param([], QUESTION, "rules", "ask", [], id="rules: a question, which only a person answers"),
    ],
)
def test_an_unattended_call_is_parked_asked_or_refused(
    rules: list[Rule], of: Tool, mode: Any, answer: str, says: list[str]
) -> None:
    """``deny`` refuses, ``park`` lets it wait, ``rules`` asks where a rule says so; a refusal says what would allow it."""
    before = verdict_of(*rules, of=of)
    verdict = unattended(before, of, mode)
    assert verdict.answer == answer
    assert all(words in verdict.reason for words in says), verdict.reason
    refused = answer == "deny" and before.answer == "ask"
    assert verdict.rule == ("unattended" if refused else before.rule)


@pytest.mark.parametrize(
    "rule", [UNCONFINED, NETWORK, MAY_HAVE_HAPPENED, PROTECTED, STORED_RULES_UNREADABLE, "default", "tool:ask"]
)
def test_a_refusal_advises_to_change_no_rule_that_no_one_wrote(rule: str) -> None:
    """Where no rule could allow the call, the refusal says why a person is asked and that only a person may let it run."""
    refused = unattended(Verdict(answer="ask", rule=rule, reason="Because.", risk="high"), OPEN, "deny")
    assert f"Change rule {rule!r}" not in refused.reason
    assert ("Because." in refused.reason) == (rule not in {"default", "tool:ask"})
    assert ("No rule can allow it" in refused.reason) == (rule in {UNCONFINED, NETWORK, MAY_HAVE_HAPPENED})
    assert ("run it attended" in refused.reason) != ('verdict = "allow"' in refused.reason)


@pytest.mark.parametrize("judgeable", [True, False])
def test_no_judge_lets_run_what_a_person_is_asked_about_each_time(*, judgeable: bool) -> None:
    """A process without confinement, or a call that may have happened, needs a person, though no rule asks for one."""
    asks = Verdict(answer="ask", rule="tool:ask", reason="", risk="medium", judgeable=judgeable)
    unconfined = replace(OPEN, effect="once", confinement=lambda _: ProcessConfinement(text="Open.", confined=False))
    assert not always_asked(asks, unconfined, None).judgeable
    assert always_asked(asks, OPEN, None) == asks
    repeated = always_asked(asks, unconfined, None, may_have_happened=True)
    assert (repeated.rule, repeated.judgeable) == (MAY_HAVE_HAPPENED if judgeable else "tool:ask", False)


def test_a_parked_call_has_no_ladder() -> None:
    """There is no one to remind; who may decide, and how many must, stays."""
    ladder = [{"after_seconds": 5, "do": "remind"}]
    parked = unattended(verdict_of(rule("ask", quorum=2, roles=["admin"], ladder=ladder)), OPEN, "park")
    assert parked.terms == AskTerms(quorum=2, roles=["admin"])
