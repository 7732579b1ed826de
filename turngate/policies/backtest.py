"""Rules against calls of the past: what would have been asked, denied and allowed, and what changes.

Runs no tool and stores nothing; a tool's own ``ask`` is asked where the app is known. Memory is bounded: a report counts, and
keeps some calls of each change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, Literal, get_args

from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.always_asked import always_asked
from turngate.domain.policy.grants import Grant
from turngate.domain.policy.policy import Policy, Verdict, VerdictKind, evaluate
from turngate.domain.policy.unattended import unattended
from turngate.domain.runs.recorded_calls import RecordedCall
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.known_tools import KnownTool, OwnAsk, is_ask_unknown
from turngate.domain.tools.tool import Effect, Tool, ToolKind
from turngate.policies.facts import call_facts, params_or_arguments

GRANTS: Final = "a grant"
"""The rule of calls that any grant let through: each grant would be a change of its own."""

JUDGED_ALONE: Final = (
    "each call is judged as if nothing of its rule's total were used: what past windows came to is not stored. "
    "Calls beyond the total would wait for a person"
)
"""Of rules with a total, for people."""

_RECORDED_ASK: Final[Mapping[tuple[str, str], OwnAsk]] = {
    ("default", "ask"): "unset",
    ("tool:ask", "ask"): "always",
    ("tool:ask-error", "ask"): "always",
    ("tool:ask", "allow"): "never",
}
"""(rule, answer) of a verdict that the tool itself gave → its own ``ask`` for these very arguments."""


@dataclass(frozen=True)
class Unjudged:
    """A call that cannot be judged."""

    why: str


def judge(policy: Policy, call: RecordedCall, tool: Tool | KnownTool | None, grant: Grant | None) -> Verdict | Unjudged:
    """Return what these rules answer to a call of the past, attended or not as its run was.

    ``tool``: as the app declares it now, or what is known of it; None: nothing. ``grant``: the one that let it through then.
    """
    params: Any = None
    defaults = call.defaults
    if isinstance(tool, Tool):
        try:
            params, defaults = tool.decode_new(call.input)
        except InvalidToolInput:
            return Unjudged("the tool does not take such arguments any more")
        tool_of_call = tool
    else:
        try:
            tool_of_call = _as_recorded(call, tool).stand_in()
        except ConfigurationError:
            return Unjudged("no tool can have this name")
    verdict = evaluate(
        policy,
        tool_of_call,
        params,
        agent=call.agent,
        facts=cache(partial(call_facts, call.input, call.workspace, call.origins, defaults)),
        run_id=call.run_id,
        grants=[] if grant is None else [grant],
        starters=(call.starter,),
    )
    if call.origins is None and any(rule.from_ and rule.name == verdict.rule for rule in policy.rule):
        return Unjudged(
            "a rule asks where its arguments came from, which is recorded only for calls that were asked about"
        )
    if is_ask_unknown(tool_of_call, verdict.rule):
        return Unjudged("no rule decides, and the tool's own ask is not known without its app (--app)")
    verdict = always_asked(verdict, tool_of_call, params_or_arguments(params, call.input))
    return verdict if call.unattended is None else unattended(verdict, tool_of_call, call.unattended)


def _as_recorded(call: RecordedCall, known: KnownTool | None) -> KnownTool:
    """Return what is known of a call's tool, with what its recorded verdict reveals of the tool's own ``ask``."""
    was = call.verdict
    if was.answer == "allow" and was.judged is not None:  # the judgement has the answer of the tool's own ask
        was = was.model_copy(update={"answer": "ask", "rule": was.judged.asked_by})
    if known is None:
        known = KnownTool(name=call.tool)
    kind: ToolKind = "interaction" if was.rule == "tool:interaction" else known.kind
    own_ask = _RECORDED_ASK.get((was.rule, was.answer), "unknown")
    if own_ask == "unknown":
        own_ask = known.own_ask
    effect = call.effect if call.effect in get_args(Effect) else known.effect
    return KnownTool.model_validate(
        {"name": call.tool, "kind": kind, "effect": effect, "own_ask": own_ask, "confinement": known.confinement}
    )


@dataclass(frozen=True)
class Change:
    """What one kind of call was answered, and what it would be."""

    tool: str
    was: VerdictKind
    was_rule: str
    now: VerdictKind
    now_rule: str


@dataclass(kw_only=True)
class Report:
    """What a backtest has seen so far. ``answers``: what the rules answer. ``by_rule``: (answer, rule) → calls.

    ``changes``: calls whose answer changes. ``examples``: (run, call) of each, the newest ones. ``same_answer``: calls that
    get the same answer by another rule. ``unjudged``: why → calls.
    """

    examples_kept: int = 20
    looked_at: int = 0
    answers: Counter[VerdictKind] = field(default_factory=Counter)
    by_rule: Counter[tuple[VerdictKind, str]] = field(default_factory=Counter)
    same_answer: int = 0
    changes: Counter[Change] = field(default_factory=Counter)
    examples: dict[Change, list[tuple[str, str]]] = field(default_factory=dict)
    unjudged: Counter[str] = field(default_factory=Counter)

    def add(self, call: RecordedCall, now: Verdict | Unjudged) -> Literal["same", "changed", "unjudged"]:
        """Count one call; newest first, so that the examples are the newest."""
        self.looked_at += 1
        if isinstance(now, Unjudged):
            self.unjudged[now.why] += 1
            return "unjudged"
        was = call.verdict
        was_rule, now_rule = _rule(was), _rule(now)
        self.answers[now.answer] += 1
        self.by_rule[now.answer, now_rule] += 1
        if was.answer == now.answer:
            self.same_answer += was_rule != now_rule
            return "same"
        change = Change(tool=call.tool, was=was.answer, was_rule=was_rule, now=now.answer, now_rule=now_rule)
        self.changes[change] += 1
        examples = self.examples.setdefault(change, [])
        if len(examples) < self.examples_kept:
            examples.append((call.run_id, call.tool_call_id))
        return "changed"


def _rule(verdict: Verdict) -> str:
    return GRANTS if verdict.grant_id is not None else verdict.rule
