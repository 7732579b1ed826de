"""Why policy answers as it does: every rule and grant against one call, with a reason each.

The answer itself is always that of :func:`turngate.domain.policy.policy.evaluate`; the reasons beside it are read from the same
matchers. Decides nothing and stores nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any, Final

from pydantic import JsonValue

from turngate.domain.origins.origin import Origins
from turngate.domain.policy.always_asked import always_asked
from turngate.domain.policy.facts import CallFacts, Finding
from turngate.domain.policy.grants import Grant, GrantPattern, same_json, with_left_out, without_left_out
from turngate.domain.policy.policy import (
    FactsOf,
    Policy,
    Rule,
    Verdict,
    VerdictKind,
    evaluate,
    grant_answers,
    led_elsewhere,
)
from turngate.domain.policy.totals import grant_owner, rule_owner, text_of_units
from turngate.domain.policy.unattended import unattended
from turngate.domain.requests import UnattendedAsks
from turngate.domain.tools.defaults import Default, Defaults, for_readers
from turngate.domain.tools.known_tools import is_ask_unknown
from turngate.domain.tools.tool import ProcessConfinement, Tool
from turngate.policies.facts import call_facts, params_or_arguments
from turngate.policies.rule_words import in_a_sentence
from turngate.wire.policy import Explanation, GrantFinding, RuleFinding, RuleSource, RuleView

ORDER: Final[tuple[VerdictKind, ...]] = ("deny", "ask", "allow")


@dataclass(frozen=True, kw_only=True)
class PlacedRule:
    """A rule and where it comes from."""

    source: RuleSource
    rule: Rule


@dataclass(frozen=True, kw_only=True)
class AskedCall:
    """The call that is asked about. ``raw_input``: exact argument text. ``params``: decoded, for the tool's own ``ask``.

    ``run_id`` and ``starters``: of a run, where there is one; ``unattended``: how it is answered where no one attends it.
    ``origins``: where its arguments come from; None: not known. ``defaults``: what it leaves out, as far as that is known.
    """

    tool: Tool
    raw_input: str
    agent: str
    params: Any = None
    workspace: str | None = None
    run_id: str = ""
    starters: Collection[str] = ()
    unattended: UnattendedAsks | None = None
    origins: Origins | None = None
    defaults: Defaults = ()

    @property
    def known_params(self) -> Any:
        """What its confinement is judged by: see :func:`params_or_arguments`."""
        return params_or_arguments(self.params, self.raw_input)

    @property
    def confinement(self) -> ProcessConfinement | None:
        """How its processes are confined; None: it starts none, or that isn't known."""
        return None if self.tool.confinement is None else self.tool.confinement(self.known_params)


def in_order(*sources: tuple[RuleSource, Policy]) -> list[PlacedRule]:
    """Return the rules of several policies in the order of evaluation: deny, ask, allow, each first source first."""
    placed = [PlacedRule(source=source, rule=rule) for source, policy in sources for rule in policy.rule]
    return sorted(placed, key=lambda each: ORDER.index(each.rule.verdict))


def rule_views(rules: Sequence[PlacedRule], used: Mapping[str, int] | None = None) -> list[RuleView]:
    """Return rules as they are shown, in the order given. ``used``: meter → units, of totals; None: not known."""
    return [
        RuleView(
            place=place,
            name=each.rule.name,
            verdict=each.rule.verdict,
            source=each.source,
            shadow=each.rule.shadow,
            says=in_a_sentence(each.rule),
            rule=each.rule.model_dump(mode="json", exclude_defaults=True),
            total_used=None if used is None else _used_of(each.rule, used),
        )
        for place, each in enumerate(rules, 1)
    ]


def explain(
    rules: Sequence[PlacedRule],
    call: AskedCall,
    *,
    grants: Sequence[Grant] = (),
    notes: Sequence[str] = (),
    used: Mapping[str, int] | None = None,
) -> Explanation:
    """Return the answer to one call with what every rule and every grant for the tool says of it. Never raises.

    ``rules``: as :func:`in_order` gives them. ``notes``: what the caller could not know. ``used``: meter → units, of totals
    in this window; None: not known.
    """
    facts = cache(partial(call_facts, call.raw_input, call.workspace, call.origins, call.defaults))
    # Names may repeat between sources; evaluation by verdict is stable, so the order of ``rules`` is that of the engine.
    policy = Policy.model_construct(rule=[each.rule for each in rules])
    verdict = _verdict(policy, call, facts, grants, used or {})
    depends = is_ask_unknown(call.tool, verdict.rule)
    judged = always_asked(verdict, call.tool, call.known_params)
    effective = judged
    if call.unattended is not None and not depends:
        effective = unattended(judged, call.tool, call.unattended)
    seen = facts().read_as(call.params)
    findings = [(each, examine(each.rule, tool=call.tool.name, agent=call.agent, facts=seen)) for each in rules]
    decisive = _decisive(judged.rule, judged.answer, findings)
    return Explanation(
        tool=call.tool.name,
        agent=call.agent,
        answer="depends" if depends else effective.answer,
        rule="tool:ask" if depends else effective.rule,
        reason="No rule decides; the tool's own ask does, which only its app knows." if depends else effective.reason,
        risk=effective.risk,
        terms=effective.terms if effective.answer == "ask" and not depends else None,
        grant_id=effective.grant_id,
        shadow=effective.shadow,
        unattended=call.unattended,
        defaults=for_readers(call.defaults),
        rules=[
            RuleFinding(
                name=each.rule.name,
                verdict=each.rule.verdict,
                source=each.source,
                shadow=each.rule.shadow,
                match=finding.match,
                why=_why(each.rule, finding, used),
                decides=place == decisive,
            )
            for place, (each, finding) in enumerate(findings)
        ],
        grants=[
            _grant_finding(grant, call, seen, findings, used or {})
            for grant in grants
            if grant.pattern.tool == call.tool.name
        ],
        notes=list(notes),
    )


def _verdict(
    policy: Policy, call: AskedCall, facts: FactsOf, grants: Sequence[Grant], used: Mapping[str, int]
) -> Verdict:
    """Return what the door would, if the call were there now."""
    spent: set[str] = set()
    while True:
        verdict = evaluate(
            policy,
            call.tool,
            call.params,
            agent=call.agent,
            facts=facts,
            run_id=call.run_id,
            grants=grants,
            starters=call.starters,
            spent=spent,
        )
        share = verdict.share
        if share is None or used.get(share.meter, 0) + share.units <= share.total.units:
            return verdict
        spent.add(share.meter)


def _why(rule: Rule, finding: Finding, used: Mapping[str, int] | None) -> str:
    """Return why a rule matches or doesn't, and what it lets run of a total."""
    if rule.total is None or finding.match != "yes":
        return finding.reason
    amount = None if used is None else _used_of(rule, used)
    if amount is None:
        return f"{finding.reason}; it allows {rule.total.words}"
    return f"{finding.reason}; it allows {rule.total.words}, of which {amount} is used"


def _used_of(rule: Rule, used: Mapping[str, int]) -> str | None:
    """Return what is used of a rule's total; None: it has none."""
    if rule.total is None:
        return None
    return text_of_units(used.get(rule.total.meter(rule_owner(rule.name)), 0))


def examine(rule: Rule, *, tool: str, agent: str, facts: CallFacts) -> Finding:
    """Return what :meth:`Rule.matches` answers, with the reason."""
    if not any(fnmatchcase(tool, pattern) for pattern in rule.tools):
        return Finding(match="no", reason=f"it is about the tools {', '.join(rule.tools)}")
    if not any(fnmatchcase(agent, pattern) for pattern in rule.agents):
        return Finding(match="no", reason=f"it is about the agents {', '.join(rule.agents)}")
    return rule.examine(facts, verdict=rule.verdict)


def in_words(pattern: GrantPattern) -> str:
    """Return a pattern as a sentence's part: what it says of every argument, and its total."""
    conditions = pattern.conditions
    if not conditions:
        return f"{pattern.tool} without arguments"
    arguments = ", ".join(f"{name} {words}" if words else f"any {name}" for name, words in conditions)
    total = "" if pattern.total is None else f", up to {pattern.total.words}"
    return f"{pattern.tool} with {arguments}, and no other argument{total}"


def why_not(
    pattern: GrantPattern,
    tool: str,
    arguments: JsonValue,
    decoded: JsonValue = None,
    defaults: Sequence[Default] = (),
) -> str | None:
    """Return why a call does not fit a pattern; None when it does, as :meth:`GrantPattern.fits` says."""
    if tool != pattern.tool:
        return f"it is about the tool {pattern.tool}"
    written = without_left_out(arguments, defaults)
    if not isinstance(arguments, dict) or not isinstance(written, dict):
        return "the arguments are no JSON object"
    unnamed = [name for name in written if name not in {*pattern.fixed, *pattern.within, *pattern.open}]
    if unnamed:
        return f"it does not name the argument {unnamed[0]}"
    if pattern.fits(tool, arguments, decoded, defaults):
        return None
    return _what_differs(pattern, with_left_out(arguments, defaults)) or _why_unclear(pattern)


def _what_differs(pattern: GrantPattern, arguments: Mapping[str, JsonValue]) -> str | None:
    for name in (*pattern.fixed, *pattern.within):
        if name not in arguments:
            return f"it wants the argument {name}, and the call has none"
    for name, value in pattern.fixed.items():
        if not same_json(arguments[name], value):
            return f"it wants {name} to be exactly {_as_json(value)}"
    for name, limit in pattern.within.items():
        if not limit.covers(arguments[name]):
            return f"it wants {name} {limit.words}"
    return None


def _why_unclear(pattern: GrantPattern) -> str:
    if pattern.total is None:
        return "the tool reads a value otherwise than it is written"
    return f"{pattern.total.at} isn't a plain number of at least 0, which its total could count"


def _decisive(name: str, answer: VerdictKind, findings: Sequence[tuple[PlacedRule, Finding]]) -> int | None:
    """Return the place of the rule that gave the answer; None: no rule did."""
    for place, (each, finding) in enumerate(findings):
        if each.rule.name == name and _counts(each.rule, finding) and _may_give(each.rule, finding, answer):
            return place
    return None


def _counts(rule: Rule, finding: Finding) -> bool:
    return not rule.shadow and (finding.match == "yes" or (finding.match == "unclear" and rule.verdict != "allow"))


def _may_give(rule: Rule, finding: Finding, answer: VerdictKind) -> bool:
    if finding.match == "unclear":
        return answer == "ask"
    return answer == rule.verdict or (rule.total is not None and answer == "ask")


def _grant_finding(
    grant: Grant,
    call: AskedCall,
    facts: CallFacts,
    findings: Sequence[tuple[PlacedRule, Finding]],
    used: Mapping[str, int],
) -> GrantFinding:
    why = _out_of_scope(grant, call) or why_not(
        grant.pattern, call.tool.name, facts.arguments, facts.decoded, facts.defaults
    )
    why = why or _by_link(grant, call, facts) or _without_room(grant, facts, used) or _outranked(grant, call, findings)
    return GrantFinding(
        id=grant.id,
        scope=grant.scope,
        created_by=grant.created_by,
        expires_at=grant.expires_at.isoformat(),
        covers=why is None,
        why=why or "the call fits its pattern",
    )


def _out_of_scope(grant: Grant, call: AskedCall) -> str | None:
    if grant.covers(run_id=call.run_id, agent=call.agent):
        return None
    return f"it is for the run {grant.run_id}" if grant.scope == "run" else f"it is for the agent {grant.agent}"


def _by_link(grant: Grant, call: AskedCall, facts: CallFacts) -> str | None:
    name = led_elsewhere(grant.pattern, call.tool, facts)
    return None if name is None else f"a link leads {name} elsewhere than its text says"


def _without_room(grant: Grant, facts: CallFacts, used: Mapping[str, int]) -> str | None:
    """Return why a call that fits a grant's pattern doesn't fit into its total; None if it does."""
    total = grant.pattern.total
    share = None if total is None else total.share_of(grant_owner(grant.id), facts.whole, facts.whole_decoded)
    if total is None or share is None:
        return None
    before = used.get(share.meter, 0)
    if before + share.units <= total.units:
        return None
    return f"it allows {total.words}, of which {text_of_units(before)} is used"


def _outranked(grant: Grant, call: AskedCall, findings: Sequence[tuple[PlacedRule, Finding]]) -> str | None:
    """Return what comes before a grant whose pattern the call fits; None when it lets the call through."""
    if call.tool.kind == "interaction":
        return "a question is answered by a person, whatever was granted"
    for each, finding in findings:
        if each.rule.shadow or each.rule.verdict == "allow" or finding.match == "no":
            continue
        if finding.match == "unclear":
            return f"the rule {each.rule.name!r} cannot tell whether it covers the call, so a person is asked"
        if each.rule.verdict == "deny":
            return f"the rule {each.rule.name!r} denies the call"
        if not grant_answers(grant, each.rule, starters=call.starters):
            return f"it does not answer the rule {each.rule.name!r}, which asks"
    if call.confinement is None:
        return None
    if grant.pattern.has_prefix:
        return "the tool starts processes, and a command isn't judged by its beginning"
    if call.confinement.always_asks:
        return "a call that runs unconfined, or asks for the network, needs a person each time"
    return None


def _as_json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
