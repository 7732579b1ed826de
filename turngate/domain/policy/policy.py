"""Policy: code's answer before any person. It decides; it never executes.

Order: deny rules → ask rules → grants → allow rules → the tool's own ``ask`` → default, which is to ask. Every error on
the way (a predicate that raises, arguments that cannot be read, a matcher that cannot tell) means ask or deny, never allow.
Whether the app's judge may be asked about a call that would be asked about is part of the verdict; it is asked elsewhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turngate.domain.agents.judge import Judgement
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.facts import CallFacts, Match
from turngate.domain.policy.grants import Grant
from turngate.domain.policy.matchers import Matchers
from turngate.domain.policy.terms import AskTerms
from turngate.domain.tools.failures import describe_validation
from turngate.domain.tools.tool import Tool

Answer = Literal["allow", "ask", "deny"]
Risk = Literal["low", "medium", "high"]
FactsOf = Callable[[], CallFacts]
"""Makes the facts of a call when a rule first needs them: most policies never parse a command or resolve a path."""

NOBODYS_RULES: Final = frozenset({"default", "tool:ask", "tool:ask-error"})
"""What stands as the rule of a call that no rule of the policy asked for."""


class Rule(Matchers, AskTerms):
    """One rule: for these tools (shell-style patterns), agents and arguments, this verdict on these terms.

    ``shadow``: the rule is only written down beside the verdict, as what it would have been; nothing follows from it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=100)
    verdict: Answer
    tools: list[str] = Field(min_length=1)
    agents: list[str] = Field(default=["*"], min_length=1)
    reason: str = ""
    risk: Risk | None = None
    shadow: bool = False

    @model_validator(mode="after")
    def _terms_are_of_an_ask(self) -> Rule:
        """Refuse terms on a rule that asks nobody: who wrote them expects somebody to be asked."""
        if self.verdict != "ask":
            for name, field in AskTerms.model_fields.items():
                if getattr(self, name) != field.default:
                    raise ValueError(f"{name} belongs to a rule with verdict = 'ask'; this one's is {self.verdict!r}")
        return self

    @property
    def terms(self) -> AskTerms:
        """The terms alone."""
        return AskTerms.model_construct(**{name: getattr(self, name) for name in AskTerms.model_fields})

    def matches(self, *, tool: str, agent: str, facts: FactsOf | None) -> Match:
        """Tell whether the rule speaks of this call; ``unclear`` when its matchers cannot tell."""
        named = any(fnmatchcase(tool, pattern) for pattern in self.tools)
        if not named or not any(fnmatchcase(agent, pattern) for pattern in self.agents):
            return "no"
        if not (self.args or self.command or self.paths or self.workspaces != ["*"]):
            return "yes"
        return "unclear" if facts is None else self.match(facts(), verdict=self.verdict)


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

    answer: Answer
    rule: str


class Verdict(BaseModel):
    """The policy's answer for one call, with the rule that gave it. Evaluated once, stored with the call.

    ``grant_id``: the grant that allows it. ``terms``: on which it is asked for; verdicts of releases before terms were kept
    have ``expires_after_seconds`` and ``starter_may_decide`` beside it, and are read so. ``overruled``: the rule that had
    allowed the call when it was planned; set when policy, asked again as it was about to run, asks a person after all.
    ``judged``: what the judge said of it.
    """

    model_config = ConfigDict(frozen=True)

    answer: Answer
    rule: str
    reason: str
    risk: Risk
    terms: AskTerms = AskTerms()
    grant_id: str | None = None
    shadow: ShadowVerdict | None = None
    overruled: str | None = None
    judged: Judgement | None = None
    # Whether the judge may be asked. Not told by the rule's name: an author's rule may be called "default", too. Never
    # stored nor sent: policy is asked again before anything follows from it.
    judgeable: bool = Field(default=False, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _terms_of_earlier_releases(cls, given: Any) -> Any:
        names = ("expires_after_seconds", "starter_may_decide")
        if isinstance(given, dict) and "terms" not in given and any(name in given for name in names):
            kept = {name: given[name] for name in names if name in given}
            rest = {name: value for name, value in given.items() if name not in names}
            return {**rest, "terms": kept}
        return given


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
    starter: str = "",
) -> Verdict:
    """Return the verdict for one call. Never raises.

    Args:
        policy: the rules in force.
        tool: the tool as declared.
        params: the call's decoded parameters, for the tool's own ``ask``.
        agent: name of the agent that makes the call.
        facts: makes what rules match on; None: nothing is known of the arguments, so a rule about them is unclear.
        run_id: the call's run, for grants of one run.
        grants: those that stand now; each is looked at again when the call is run.
        starter: who started the run, where a rule lets somebody else decide.
    """
    plain = [rule for rule in policy.rule if not rule.shadow]
    verdict = _evaluate(plain, tool, params, agent, facts, run_id, grants, starter)
    if len(plain) == len(policy.rule):
        return verdict
    would_be = _evaluate(policy.rule, tool, params, agent, facts, run_id, grants, starter)
    if (would_be.answer, would_be.rule) == (verdict.answer, verdict.rule):
        return verdict
    return verdict.model_copy(update={"shadow": ShadowVerdict(answer=would_be.answer, rule=would_be.rule)})


def _evaluate(
    rules: Iterable[Rule],
    tool: Tool,
    params: Any,
    agent: str,
    facts: FactsOf | None,
    run_id: str,
    grants: Sequence[Grant],
    starter: str,
) -> Verdict:
    risk = _DEFAULT_RISK[tool.effect]
    matching = [(rule, rule.matches(tool=tool.name, agent=agent, facts=facts)) for rule in rules]
    matching = [(rule, match) for rule, match in matching if match != "no"]
    denying = next((rule for rule, match in matching if rule.verdict == "deny" and match == "yes"), None)
    if denying is not None:
        return Verdict(answer="deny", rule=denying.name, reason=denying.reason, risk=denying.risk or risk)
    asks = [rule for rule, match in matching if rule.verdict == "ask" and match == "yes"]
    asking = next(iter(asks), None)
    unclear = next((rule for rule, match in matching if rule.verdict != "allow" and match == "unclear"), None)
    doubtful = any(match == "unclear" for _rule, match in matching)
    if asking is None and unclear is not None:
        # A rule that cannot tell whether it speaks of the call: a person can. No grant and no allow rule comes between.
        terms = unclear.terms if unclear.verdict == "ask" else AskTerms()
        reason = f"Rule {unclear.name!r} ({unclear.verdict}) cannot tell whether it speaks of this call, so a person is asked."
        return Verdict(answer="ask", rule=unclear.name, reason=reason, risk=unclear.risk or risk, terms=terms)
    # An interaction has nothing to run, so nothing can allow it; a rule may deny it or say who answers and for how long.
    grantable = unclear is None and tool.kind != "interaction"
    able = [grant for grant in grants if all(beats(grant, rule, starter=starter) for rule in asks)] if grantable else []
    grant = _covering(able, tool, agent, run_id, facts)
    if grant is not None:
        reason = f"{grant.created_by} granted calls like this."
        return Verdict(answer="allow", rule=f"grant:{grant.id}", reason=reason, risk=risk, grant_id=grant.id)
    if asking is not None:
        return Verdict(
            answer="ask",
            rule=asking.name,
            reason=asking.reason,
            risk=asking.risk or risk,
            terms=asking.terms,
            # Of several rules that ask, each has to say so, as with grants.
            judgeable=not doubtful and tool.kind != "interaction" and all(rule.judge == "may_allow" for rule in asks),
        )
    allowing = next((rule for rule, match in matching if rule.verdict == "allow" and match == "yes"), None)
    if allowing is not None and tool.kind != "interaction":
        return Verdict(answer="allow", rule=allowing.name, reason=allowing.reason, risk=allowing.risk or risk)
    own = _own_answer(tool, params, risk)
    return own.model_copy(update={"judgeable": False}) if doubtful else own


def beats(grant: Grant, asking: Rule, *, starter: str) -> bool:
    """Tell whether a grant answers what this rule asks: the rule says so, and its maker could have approved each call.

    Of several rules that ask, it has to beat every one: else a rule that is grantable would open those behind it.
    """
    if not asking.grantable or asking.risk == "high" or asking.quorum > 1:
        return False
    if not asking.starter_may_decide and grant.created_by == starter:
        return False
    return asking.barred(name=grant.created_by, role=grant.created_by_role, machine=False) is None


def _covering(grants: Sequence[Grant], tool: Tool, agent: str, run_id: str, facts: FactsOf | None) -> Grant | None:
    candidates = [
        grant for grant in grants if grant.pattern.tool == tool.name and grant.covers(run_id=run_id, agent=agent)
    ]
    if not candidates or facts is None:
        return None
    arguments = facts().arguments
    return next((grant for grant in candidates if grant.pattern.fits(tool.name, arguments)), None)


def _own_answer(tool: Tool, params: Any, risk: Risk) -> Verdict:
    if tool.kind == "interaction":
        return Verdict(answer="ask", rule="tool:interaction", reason="The agent asks a person.", risk="low")
    if tool.ask is None:
        return Verdict(
            answer="ask",
            rule="default",
            reason="No rule speaks of this tool; the default is to ask.",
            risk=risk,
            judgeable=True,
        )
    if callable(tool.ask):
        try:
            asks = tool.ask(params)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure of a predicate means ask (DESIGN §13)
            reason = f"The tool's ask predicate raised {type(error).__name__}, so a person is asked."
            return Verdict(answer="ask", rule="tool:ask-error", reason=reason, risk=risk)
    else:
        asks = tool.ask
    # Only a real False lets a call through: a predicate that forgets its return value gives None, and that asks.
    if asks is False:
        return Verdict(answer="allow", rule="tool:ask", reason="The tool does not ask for such a call.", risk=risk)
    # A predicate that fails is a doubt, and is not left to the judge; one that returns no bool is as good as failing.
    return Verdict(
        answer="ask", rule="tool:ask", reason="The tool asks for such a call.", risk=risk, judgeable=asks is True
    )


def parse_policy(text: str, *, source: str) -> Policy:
    """Read a policy (TOML, ``[[rule]]`` tables). ``source`` names it in errors.

    Raises:
        ConfigurationError: not TOML, or a rule does not fit; the message says where.
    """
    try:
        return Policy.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise ConfigurationError(f"policy {source}: {describe_validation(error)}") from None
    except (ValueError, RecursionError) as error:  # not TOML, a number of thousands of digits, brackets in brackets
        said = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError(f"policy {source} is not TOML: {said}") from None
