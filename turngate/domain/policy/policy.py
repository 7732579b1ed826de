"""Policy: code's answer before any person. It decides; it never executes.

Order: deny rules → ask rules → protected places, which ask → grants → allow rules → the tool's own ``ask`` → default, which is
to ask. Every error on the way (a predicate that raises, arguments that cannot be read, a matcher that cannot tell) means ask or
deny, never allow.
Whether the app's judge may be asked about a call that would be asked about is part of the verdict; it is asked elsewhere.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from itertools import islice, product
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from turngate.domain.crashes import report_crash
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy import protected
from turngate.domain.policy.facts import LOOK_FAILED, CallFacts, Match
from turngate.domain.policy.grants import Grant, GrantPattern
from turngate.domain.policy.judge import Judgement
from turngate.domain.policy.matchers import Matchers
from turngate.domain.policy.paths import follows_link
from turngate.domain.policy.terms import HIGH_RISK_GRACE_SECONDS, AskTerms, person_of, renamed
from turngate.domain.policy.totals import Share, Total, grant_owner, rule_owner
from turngate.domain.text.suggestions import problems
from turngate.domain.tools.failures import describe_issues
from turngate.domain.tools.known_tools import UnknownAskError
from turngate.domain.tools.tool import Tool

VerdictKind = Literal["allow", "ask", "deny"]
Risk = Literal["low", "medium", "high"]
RISKS: Final[tuple[Risk, ...]] = ("low", "medium", "high")
FactsOf = Callable[[], CallFacts]
"""Makes the facts of a call when a rule first needs them: most policies never parse a command or resolve a path."""

PROTECTED: Final = "protected"
"""The rule of calls that may change a place that other programs obey (:mod:`turngate.domain.policy.protected`)."""

STORED_RULES_UNREADABLE: Final = "stored-rules-unreadable"
"""The rule of all calls while the stored rules can't be read."""

BUILT_IN_ASKS: Final = frozenset({"default", "tool:ask", "tool:ask-error", PROTECTED})
"""The rules of verdicts that ask although no rule of the policy does."""


class Rule(Matchers, AskTerms):
    """One rule: for these tools (shell-style patterns), agents and arguments, this verdict on these terms.

    ``shadow``: the rule is only written down beside the verdict, as what it would have been; nothing follows from it.
    ``total``: how much the calls that it allows may come to; a call beyond it asks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=100)
    verdict: VerdictKind
    tools: list[str] = Field(min_length=1)
    agents: list[str] = Field(default=["*"], min_length=1)
    reason: str = ""
    risk: Risk | None = None
    shadow: bool = False
    total: Total | None = None

    @model_validator(mode="after")
    def _totals_are_of_an_allow(self) -> Rule:
        if self.total is not None and self.verdict != "allow":
            problem = f"total belongs to a rule with verdict = 'allow', which it limits; this one's is {self.verdict!r}"
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _terms_are_of_an_ask(self) -> Rule:
        """Refuse terms on a rule that asks no one: who wrote them expects someone to be asked."""
        if self.verdict != "ask":
            for name, field in AskTerms.model_fields.items():
                if getattr(self, name) != field.default:
                    raise ValueError(f"{name} belongs to a rule with verdict = 'ask'; this one's is {self.verdict!r}")
        return self

    @model_validator(mode="after")
    def _origins_allow_nothing(self) -> Rule:
        if self.verdict == "allow" and self.from_ is not None:
            problem = f"from = {self.from_!r} is no reason to allow a call: use it in a rule that asks or denies"
            raise ValueError(problem)
        return self

    def with_people(self, ids: Mapping[str, str]) -> Rule:
        """Return the rule with other names of people: name → what to write in its place."""
        if not self.people and not any(rung.people for rung in self.ladder):
            return self
        return self.model_copy(update=renamed(self, ids))

    @property
    def terms(self) -> AskTerms:
        """The terms alone, with the grace that a rule of high risk has by default."""
        values = {name: getattr(self, name) for name in AskTerms.model_fields}
        is_fresh_longer = self.fresh_for_seconds is None or self.fresh_for_seconds > HIGH_RISK_GRACE_SECONDS
        if self.grace_seconds is None and self.risk == "high" and is_fresh_longer:
            values["grace_seconds"] = HIGH_RISK_GRACE_SECONDS
        return AskTerms.model_construct(**values)

    def matches(self, *, tool: str, agent: str, facts: FactsOf | None) -> Match:
        """Tell whether the rule covers this call; ``unclear`` when its matchers cannot tell."""
        if not self.is_about(tool=tool, agent=agent):
            return "no"
        if not (self.args or self.command or self.paths or self.from_ or self.workspaces != ["*"]):
            return "yes"
        return "unclear" if facts is None else self.match(facts(), verdict=self.verdict)

    def is_about(self, *, tool: str, agent: str) -> bool:
        """Tell whether the rule names this tool and agent."""
        named = any(fnmatchcase(tool, pattern) for pattern in self.tools)
        return named and any(fnmatchcase(agent, pattern) for pattern in self.agents)


class Policy(BaseModel):
    """An ordered set of rules. ``version`` is part of every digest: a decision holds for the policy it was made under."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rule: list[Rule] = []

    @model_validator(mode="after")
    def _names_are_unique(self) -> Policy:
        names = [rule.name for rule in self.rule]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two rules are called {twice!r}: a verdict names its rule, so rename one")
        return self

    @cached_property
    def version(self) -> str:
        """Twelve hex digits over the rules; the same rules have the same version everywhere."""
        return framed_sha256(self.model_dump_json(exclude_defaults=True))[:12]

    @property
    def people(self) -> set[str]:
        """Whom the rules name, rungs of their ladders included."""
        names = {name for rule in self.rule for name in rule.people}
        return names | {name for rule in self.rule for rung in rule.ladder for name in rung.people}

    def with_people(self, ids: Mapping[str, str]) -> Policy:
        """Return the policy with other names of people: name → what to write in its place."""
        return Policy(rule=[rule.with_people(ids) for rule in self.rule])

    def needs_origins(self, *, tool: str, agent: str) -> bool:
        """Tell whether a rule about this tool and agent asks where arguments come from."""
        return any(rule.from_ is not None and rule.is_about(tool=tool, agent=agent) for rule in self.rule)

    def joined_with(self, other: Policy) -> Policy:
        """Return this policy's rules, then the other's. Between rules of one verdict the first one's terms count."""
        if not other.rule:
            return self
        if not self.rule:
            return other
        # Names may repeat here: two sources are not meant to know each other's.
        return Policy.model_construct(rule=[*self.rule, *other.rule])


class ShadowVerdict(BaseModel):
    """What a call's answer would be if the shadow rules counted, where that differs."""

    model_config = ConfigDict(frozen=True)

    answer: VerdictKind
    rule: str


class Verdict(BaseModel):
    """The policy's answer for one call, with the rule that gave it. Evaluated once, stored with the call.

    ``grant_id``: the grant that allows it. ``terms``: on which it is asked for. ``overruled``: the rule that had
    allowed the call when it was planned; set when policy, asked again as it was about to run, asks a person after all.
    ``judged``: what the judge said of it. ``share``: what the call adds to the total of the rule or grant that allows it.
    """

    model_config = ConfigDict(frozen=True)

    answer: VerdictKind
    rule: str
    reason: str
    risk: Risk
    terms: AskTerms = AskTerms()
    grant_id: str | None = None
    shadow: ShadowVerdict | None = None
    overruled: str | None = None
    judged: Judgement | None = None
    # Whether the judge may be asked. The rule's name can't say it: an author's rule may be called "default", too. Never
    # stored nor sent: policy is evaluated again before anything follows from it.
    judgeable: bool = Field(default=False, exclude=True)
    # To be taken at the door. Not stored either.
    share: Share | None = Field(default=None, exclude=True)
    places: dict[str, str] = Field(default={}, exclude=True)
    """Path as a call writes it → the real place that rules saw. Not stored: the door judges again."""

    def stricter_than(self, planned: Verdict, terms: AskTerms) -> str | None:
        """Return in what this verdict on an edited call is stricter, in words for people; None: in nothing.

        ``planned``: the verdict on the call that was shown; ``terms``: its request's after the ladder's rungs so far.
        """
        if self.answer != "ask":
            return None
        if RISKS.index(self.risk) > RISKS.index(planned.risk):
            return f"it is of {self.risk} risk"
        if self.terms == planned.terms:
            return None
        # A rung of the ladder may have let others decide the call that was shown; they may not decide the edited one.
        return self.terms.stricter_than(planned.terms) or self.terms.stricter_than(terms)


_DEFAULT_RISK: dict[str, Risk] = {"read": "low", "idempotent": "medium", "once": "medium"}


def evaluate(
    policy: Policy,
    tool: Tool,
    params: Any,
    *,
    agent: str,
    facts: FactsOf | None = None,
    run_id: str = "",
    grants: Sequence[Grant] = (),
    starters: Collection[str] = (),
    spent: Collection[str] = (),
) -> Verdict:
    """Return the verdict for one call: the first that one of :data:`STAGES` gives, else to ask. Never raises.

    Args:
        policy: the rules in force.
        tool: the tool as declared.
        params: the call's decoded parameters, for the tool's own ``ask`` and for rules; any other value: not known.
        agent: name of the agent that makes the call.
        facts: makes what rules match on; None: nothing is known of the arguments, so a rule about them is unclear.
        run_id: the call's run, for grants of one run.
        grants: those in force now; each is checked again when the call is run.
        starters: who counts as the run's starter, where a rule lets someone else decide.
        spent: meters of totals that this call would exceed; whether it would is known where it is about to start.
    """
    if facts is not None:
        facts = cache(partial(_facts_with, facts, params))
    plain = tuple(rule for rule in policy.rule if not rule.shadow)
    case = _Case(
        rules=plain,
        tool=tool,
        params=params,
        agent=agent,
        facts=facts,
        run_id=run_id,
        grants=grants,
        starters=starters,
        spent=spent,
    )
    verdict = _first_verdict(case)
    if len(plain) == len(policy.rule):
        return verdict
    would_be = _first_verdict(replace(case, rules=tuple(policy.rule)))
    if (would_be.answer, would_be.rule) == (verdict.answer, verdict.rule):
        return verdict
    return verdict.model_copy(update={"shadow": ShadowVerdict(answer=would_be.answer, rule=would_be.rule)})


def _facts_with(facts: FactsOf, params: object) -> CallFacts:
    return facts().read_as(params)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One call and the rules it is judged by: all that a stage may look at. The fields are as :func:`evaluate` says."""

    rules: Sequence[Rule]
    tool: Tool
    params: Any
    agent: str
    facts: FactsOf | None
    run_id: str
    grants: Sequence[Grant]
    starters: Collection[str]
    spent: Collection[str]

    @cached_property
    def _matching(self) -> Sequence[tuple[Rule, Match]]:
        """The rules that match, or may match, in their order."""
        matches = [(rule, rule.matches(tool=self.tool.name, agent=self.agent, facts=self.facts)) for rule in self.rules]
        return [(rule, match) for rule, match in matches if match != "no"]

    def matching(self, answer: VerdictKind) -> list[Rule]:
        """Return the rules with this verdict that certainly match, in their order."""
        return [rule for rule, match in self._matching if rule.verdict == answer and match == "yes"]

    @property
    def unclear(self) -> Rule | None:
        """The first deny or ask rule that may match."""
        return next((rule for rule, match in self._matching if rule.verdict != "allow" and match == "unclear"), None)

    @property
    def doubtful(self) -> bool:
        """Whether any rule, allow rules included, may match: then the judge is not asked."""
        return any(match == "unclear" for _rule, match in self._matching)

    @property
    def is_question(self) -> bool:
        """Whether the call asks a person something. It has nothing to run, so nothing can allow it."""
        return self.tool.kind == "interaction"

    @cached_property
    def grant(self) -> Grant | None:
        """The first grant that covers the call and overrides every rule that asks; None where a rule is unclear."""
        if self.unclear is not None or self.is_question or self.facts is None:
            return None
        able = [grant for grant in self.grants if self._is_able(grant)]
        if not able:
            return None
        facts, name = self.facts(), self.tool.name
        fitting = (
            grant
            for grant in able
            if grant.pattern.fits(name, facts.arguments, facts.decoded, facts.defaults)
            and led_elsewhere(grant.pattern, self.tool, facts) is None
        )
        return next((grant for grant in fitting if grant.pattern.total is None or self.grant_share(grant)), None)

    def grant_share(self, grant: Grant) -> Share | None:
        """Return what the call adds to a grant's total; None where it has none, or no room for the call."""
        total = grant.pattern.total
        share = None if total is None else self.share(total, grant_owner(grant.id))
        return share if share is not None and share.fits and share.meter not in self.spent else None

    def _is_able(self, grant: Grant) -> bool:
        """Tell whether the grant is for this tool, run and agent and overrides every rule that asks."""
        if grant.pattern.tool != self.tool.name or not grant.covers(run_id=self.run_id, agent=self.agent):
            return False
        if grant.pattern.has_prefix and self.tool.confinement is not None:
            return False  # it starts processes, and a command isn't judged by its beginning (DESIGN §6)
        return all(grant_answers(grant, rule, starters=self.starters) for rule in self.matching("ask"))

    def share(self, total: Total, owner: str) -> Share | None:
        """Return what the call adds to a total; None where its arguments don't say."""
        try:
            facts = None if self.facts is None else self.facts()
        except Exception as error:  # noqa: BLE001 - as for a rule: what can't be judged asks (DESIGN §6)
            report_crash(LOOK_FAILED, error, tool=self.tool.name)
            return None
        return None if facts is None else total.share_of(owner, facts.whole, facts.whole_decoded)

    @property
    def risk(self) -> Risk:
        """The risk of the tool's effect, for verdicts whose rule sets none."""
        return _DEFAULT_RISK[self.tool.effect]


def _deny_rules(case: _Case) -> Verdict | None:
    denying = case.matching("deny")
    if not denying:
        return None
    first = denying[0]
    return Verdict(answer="deny", rule=first.name, reason=first.reason, risk=first.risk or case.risk)


def _unclear_rules(case: _Case) -> Verdict | None:
    """Ask where a deny or ask rule cannot tell whether it is about the call: no grant and no allow rule comes between.

    A rule that certainly asks comes first: its terms are the ones that someone wrote for such a call.
    """
    rule = case.unclear
    if rule is None or case.matching("ask"):
        return None
    reason = f"Rule {rule.name!r} ({rule.verdict}) cannot tell whether it covers this call, so a person is asked."
    terms = rule.terms if rule.verdict == "ask" else AskTerms()
    return Verdict(answer="ask", rule=rule.name, reason=reason, risk=rule.risk or case.risk, terms=terms)


def _ask_rules(case: _Case) -> Verdict | None:
    """Ask, on the first rule's terms, unless a grant overrides every rule that asks."""
    asking = case.matching("ask")
    if not asking or case.grant is not None:
        return None
    first = asking[0]
    return Verdict(
        answer="ask",
        rule=first.name,
        reason=first.reason,
        risk=first.risk or case.risk,
        terms=first.terms,
        # Of several rules that ask, each has to say so, as with grants.
        judgeable=not case.doubtful and not case.is_question and all(rule.judge == "may_allow" for rule in asking),
    )


def _questions(case: _Case) -> Verdict | None:
    """Ask a person what the agent wants to know: a rule may deny it or set its terms, but nothing can allow it."""
    if not case.is_question:
        return None
    return Verdict(answer="ask", rule="tool:interaction", reason="The agent asks a person.", risk="low")


def _protected_places(case: _Case) -> Verdict | None:
    """Ask about places that other programs obey, unless an allow rule, or what a grant fixes, names them."""
    if case.tool.effect == "read" or case.facts is None:
        return None
    try:
        touches = protected.touches(case.facts(), case.rules)
    except Exception as error:  # noqa: BLE001 - as for a rule: what can't be judged asks (DESIGN §6)
        report_crash(LOOK_FAILED, error, tool=case.tool.name)
        reason = f"Looking at the call failed ({type(error).__name__}), so a person is asked."
        return Verdict(answer="ask", rule=PROTECTED, reason=reason, risk=case.risk)
    allowing = case.matching("allow")
    if all(any(touch.is_named(rule) for rule in allowing) for touch in touches):
        return None
    places = {touch.place for touch in touches}
    if case.grant is not None and places <= protected.names_in(json.dumps(case.grant.pattern.fixed)):
        return None
    names = ", ".join(sorted(places)[:_MOST_NAMED]) + (" and others" if len(places) > _MOST_NAMED else "")
    remedy = "An allow rule that names it would let it run."
    if protected.HIDDEN in places:
        remedy = "With every path written out, without an expansion, rules could tell."
    reason = f"The call may change {names}, which other programs obey. {remedy}"
    return Verdict(answer="ask", rule=PROTECTED, reason=reason, risk="high")


_MOST_NAMED: Final = 5
"""How many of the places that a call may change its reason names: a pattern may fit a hundred."""


def _grants(case: _Case) -> Verdict | None:
    grant = case.grant
    if grant is None:
        return None
    reason = f"{grant.created_by} granted calls like this."
    return Verdict(
        answer="allow",
        rule=f"grant:{grant.id}",
        reason=reason,
        risk=case.risk,
        grant_id=grant.id,
        share=case.grant_share(grant),
    )


def _allow_rules(case: _Case) -> Verdict | None:
    allowing = case.matching("allow")
    if not allowing:
        return None
    first = allowing[0]
    risk = first.risk or case.risk
    if first.total is None:
        return Verdict(answer="allow", rule=first.name, reason=first.reason, risk=risk)
    share = case.share(first.total, rule_owner(first.name))
    if share is not None and share.fits and share.meter not in case.spent:
        return Verdict(answer="allow", rule=first.name, reason=first.reason, risk=risk, share=share)
    return Verdict(
        answer="ask", rule=first.name, reason=_beyond(first, first.total, share), risk=risk, terms=_GRANTABLE
    )


_GRANTABLE: Final = AskTerms(grantable=True)
"""Of a call that an allow rule doesn't let run: no rule asks about it, so a grant would have come first."""


def _beyond(rule: Rule, total: Total, share: Share | None) -> str:
    """Return why a call that an allow rule matches is asked about all the same."""
    allowed = f"Rule {rule.name!r} allows {total.words}."
    if share is None:
        return (
            f"{allowed} What this call adds isn't written there as a plain number of at least 0 with at most six decimals, "
            "so a person is asked."
        )
    return f"{allowed} With this call it would be more, so a person is asked."


def _tools_own_ask(case: _Case) -> Verdict | None:
    """Answer as the tool's declaration does. Only a real False lets a call through: None, a forgotten return, asks."""
    asks = case.tool.ask
    if asks is None:
        return None
    if callable(asks):
        try:
            asks = asks(case.params)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure of a predicate means ask (DESIGN §13)
            if not isinstance(error, UnknownAskError):
                report_crash("ask predicate failed", error, tool=case.tool.name)
            reason = f"The tool's ask predicate raised {type(error).__name__}, so a person is asked."
            return Verdict(answer="ask", rule="tool:ask-error", reason=reason, risk=case.risk)
    if asks is False:
        return Verdict(answer="allow", rule="tool:ask", reason="The tool does not ask for such a call.", risk=case.risk)
    # A predicate that fails is a doubt, and is not left to the judge; one that returns no bool is as good as failing.
    judgeable = asks is True and not case.doubtful
    reason = "The tool asks for such a call."
    return Verdict(answer="ask", rule="tool:ask", reason=reason, risk=case.risk, judgeable=judgeable)


Stage = Callable[[_Case], Verdict | None]
STAGES: Final[tuple[Stage, ...]] = (
    _deny_rules,
    _unclear_rules,
    _ask_rules,
    _questions,
    _protected_places,
    _grants,
    _allow_rules,
    _tools_own_ask,
)
"""The order of the policy. The first stage with a verdict decides; a call that passes all of them is asked for."""


def _first_verdict(case: _Case) -> Verdict:
    for stage in STAGES:
        verdict = stage(case)
        if verdict is not None:
            return verdict
    reason = "No rule covers this tool; the default is to ask."
    return Verdict(answer="ask", rule="default", reason=reason, risk=case.risk, judgeable=not case.doubtful)


MAX_GRANTED_TEXTS: Final = 256
"""In one argument of a call that a grant covers."""


def led_elsewhere(pattern: GrantPattern, tool: Tool, facts: CallFacts) -> str | None:
    """Return an argument that a link leads elsewhere than what a grant says of its text; None: none is. It covers no such call.

    Arguments of any value can lead anywhere, and those of processes are judged by no path. Of one with more texts than are
    looked at, it isn't known.
    """
    views = [view for view in (facts.whole, facts.whole_decoded) if isinstance(view, dict)]
    if tool.confinement is not None:
        return None
    for name, view in product((*pattern.fixed, *pattern.within), views):
        texts = list(islice(_texts_in(view.get(name)), MAX_GRANTED_TEXTS + 1))
        if len(texts) > MAX_GRANTED_TEXTS or any(follows_link(text, facts) for text in texts):
            return name
    return None


def _texts_in(value: JsonValue) -> Iterator[str]:
    """Yield the texts at any depth of an argument. The names in an object may be paths, too."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            waiting += [*each, *each.values()]


def grant_answers(grant: Grant, asking: Rule, *, starters: Collection[str]) -> bool:
    """Tell whether a grant answers what this rule asks: the rule allows that, and its maker could have approved each call.

    If several rules ask, it must answer each one: otherwise a grantable rule would open those that follow it.
    """
    if not asking.grantable or asking.risk == "high" or asking.quorum > 1:
        return False
    if not asking.starter_may_decide and person_of(grant.created_by) in {person_of(each) for each in starters}:
        return False
    return asking.barred(name=grant.created_by, role=grant.created_by_role, machine=False) is None


def parse_policy(text: str, *, source: str) -> Policy:
    """Read a policy (TOML, ``[[rule]]`` tables). ``source`` names it in errors.

    Raises:
        ConfigurationError: not TOML, or a rule does not fit; the message says where.
    """
    try:
        return Policy.model_validate(
            tomllib.loads(text.removeprefix("\ufeff"))
        )  # a file of a Windows editor, sent as it is
    except ValidationError as error:
        described = describe_issues(problems(error, Policy)).removeprefix("arguments: ")
        if described.startswith("rule: "):
            described = "each rule is a table of its own, which begins with [[rule]]"
        raise ConfigurationError(f"policy {source}: {described}") from None
    except (ValueError, RecursionError) as error:  # not TOML, a number of thousands of digits, brackets in brackets
        problem = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError(f"policy {source} is not TOML: {problem}") from None
