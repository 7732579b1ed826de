"""What a rule would change for recorded calls, and what people decided about these calls."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from time import thread_time
from typing import Final

from pydantic import ValidationError

from turngate.approvals_api.policy.rules import invalid_policy, parsed
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy, Rule, VerdictKind
from turngate.domain.requests import Verb
from turngate.domain.runs.recorded_calls import RecordedCall
from turngate.domain.text.folds import cut_line
from turngate.domain.tools.known_tools import KnownTool
from turngate.domain.tools.secrets import mask_json
from turngate.domain.tools.tool import ToolManifest
from turngate.policies.backtest import JUDGED_ALONE, Unjudged, judge
from turngate.policies.facts import lies_in, without_permissions
from turngate.policies.lint import doubts
from turngate.policies.rule_text import rule_text, with_rule
from turngate.policies.rule_words import in_a_sentence
from turngate.store import agents
from turngate.store.database import Connection
from turngate.store.policy import policies, recorded_calls
from turngate.store.policy.recorded_calls import Answered
from turngate.store.runs import calls
from turngate.wire.policy import PreviewedCall, PreviewedChange, RulePreview

MAX_CALLS: Final = 1_000
MAX_CALL_CHARS: Final = 50_000
"""Calls with longer arguments are left out: judging a thousand of them would take too long."""
SECONDS: Final = 3.0
"""Of processor time for judging: a preview says then what it has seen so far. How busy the machine is changes no answer."""
AT_ONCE: Final = 50
EXAMPLES: Final = 20
EXAMPLE_CHARS: Final = 300
_Key = tuple[str, str]
"""Run and call."""
_WILD: Final = frozenset("*?[")


async def preview_rule(
    services: Services, principal: Principal, rule: Rule, *, replacing: str | None = None
) -> RulePreview:
    """Return what a rule would change if it counted, over the newest 1,000 calls; it need not be stored yet.

    Each call is judged by the rules in force now, without and with the rule. Stores nothing.

    Args:
        services: the process's services.
        principal: must hold ``admin``: the examples are of everyone's runs.
        rule: as it would be enforced.
        replacing: the stored rule that it would replace; None: the one of the same name, if there is one.

    Raises:
        InvalidInputError: ``invalid_policy``: the rule can't be put among the stored ones.
        ForbiddenError: the principal is no admin.
    """
    principal.require("admin")
    rule = rule.model_copy(update={"shadow": False})
    async with services.database.read() as conn:
        newest = await policies.newest(conn)
        world = await World.of(conn)
    source = "" if newest is None else newest.source
    before = parsed(source, pointer="/rule")
    try:
        after = parsed(with_rule(source, rule, replacing=replacing), pointer="/rule")
    except ConfigurationError as error:
        raise invalid_policy(error.message, "/rule") from None
    tool = rule.tools[0] if len(rule.tools) == 1 and _WILD.isdisjoint(rule.tools[0]) else None
    concerned = [each for each in (rule, _named(before, replacing or rule.name)) if each is not None]
    trial = _Trial(world=world, before=before, after=after, concerned=concerned)
    batch = list[RecordedCall]()
    whole = True
    async for call in recorded_calls.newest(
        services.database, limit=MAX_CALLS, tool=tool, max_chars=MAX_CALL_CHARS, with_origins=trial.needs_origins
    ):
        batch.append(call)
        if len(batch) == AT_ONCE:
            await asyncio.to_thread(trial.judge, batch)
            batch = []
            if trial.seconds > SECONDS:
                whole = False
                break
    await asyncio.to_thread(trial.judge, batch)
    async with services.database.read() as conn:
        answered = await recorded_calls.answers_to(conn, [_key(each.call) for each in trial.changed])
        secret = await calls.with_secrets(conn, {each.call.run_id for each in trial.changed})
    masks = {(each.run_id, each.tool_call_id): declared for each in secret if (declared := each.tool) is not None}
    return RulePreview(
        rule=rule.name,
        says=in_a_sentence(rule),
        toml=rule_text(rule),
        warnings=_warnings(rule, after, world),
        tool=tool,
        looked_at=trial.looked_at,
        whole=whole,
        unjudged=trial.unjudged,
        changes=_changes(trial.changed, answered, masks),
    )


def _warnings(rule: Rule, among: Policy, world: World) -> list[str]:
    warnings = [each.message for each in doubts(among) if each.rule == rule.name] + world.unknown(rule)
    if rule.total is not None:
        warnings.append(JUDGED_ALONE)
    return warnings


def against_at_most(against: int, decided: int, *, doubt: float = 0.05) -> float:
    """Return the share of calls that people don't let run, at most, with a confidence of 1 - ``doubt``: 95 %.

    The one-sided upper bound of Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26 (1934): the share
    at which ``against`` or fewer of ``decided`` calls still has the probability ``doubt``. Exact, and never too small. It takes
    these calls for a random sample of those to come, which no one knows.
    """
    if against >= decided:
        return 1.0
    if against == 0:  # "the rule of three" is an estimate of this
        return 1.0 - math.pow(doubt, 1.0 / decided)
    ways = [
        math.lgamma(decided + 1) - math.lgamma(number + 1) - math.lgamma(decided - number + 1)
        for number in range(against + 1)
    ]
    low, high = against / decided, 1.0
    for _halving in range(60):
        share = (low + high) / 2
        yes, no = math.log(share), math.log1p(-share)
        chance = math.fsum(math.exp(way + number * yes + (decided - number) * no) for number, way in enumerate(ways))
        low, high = (share, high) if chance > doubt else (low, share)
        if high - low < 1e-9:  # noqa: PLR2004 - far below what anyone reads
            break
    return high


@dataclass(frozen=True, kw_only=True)
class World:
    """What the workers published: agent → its app, and (agent, tool) → what is known of the tool."""

    apps: dict[str, policies.PublishedPolicy]
    tools: dict[tuple[str, str], KnownTool]
    names: frozenset[str]

    @classmethod
    async def of(cls, conn: Connection) -> World:
        """Read it."""
        published = {each.task_queue: each for each in await policies.published(conn)}
        apps = {
            each.name: published[each.task_queue] for each in await agents.every(conn) if each.task_queue in published
        }
        known = [tool for each in published.values() for tool in each.known_tools]
        tools = {(agent, tool.name): tool for tool in known for agent in tool.agents}
        return cls(apps=apps, tools=tools, names=frozenset(tool.name for tool in known))

    def unknown(self, rule: Rule) -> list[str]:
        """Return which of a rule's tools and agents no worker has published."""
        missing = [f"no worker has a tool {each!r} now" for each in _unmatched(rule.tools, self.names)]
        return missing + [f"no worker has an agent {each!r} now" for each in _unmatched(rule.agents, self.apps.keys())]

    def policy_of(self, agent: str, workspace: str | None) -> Policy:
        """Return the rules of an agent's app, as far as they count for a run in this workspace."""
        app = self.apps.get(agent)
        if app is None:
            return Policy()
        try:
            policy = app.policy
        except ValidationError:  # a worker of another release published it
            return Policy()
        distrusted = workspace is not None and app.file and lies_in(Path(app.file), workspace)
        return without_permissions(policy) if distrusted else policy


def _unmatched(patterns: Sequence[str], names: Collection[str]) -> list[str]:
    return [each for each in patterns if each != "*" and not any(fnmatchcase(name, each) for name in names)]


@dataclass(frozen=True, kw_only=True)
class _Changed:
    """A call whose answer changes."""

    call: RecordedCall
    was: VerdictKind
    now: VerdictKind


@dataclass(kw_only=True)
class _Trial:
    """Calls judged without and with a rule.

    ``concerned``: the rule, and the one that it replaces. ``seconds``: of processor time, so far.
    """

    world: World
    before: Policy
    after: Policy
    concerned: Sequence[Rule]
    looked_at: int = 0
    unjudged: int = 0
    seconds: float = 0.0
    changed: list[_Changed] = field(default_factory=list)

    @property
    def needs_origins(self) -> bool:
        return any(rule.from_ is not None for rule in self.concerned)

    def judge(self, batch: Sequence[RecordedCall]) -> None:
        """Count these calls, and keep those whose answer changes. Bounded per call, and off the event loop."""
        begun = thread_time()
        for call in batch:
            self.looked_at += 1
            if not any(rule.is_about(tool=call.tool, agent=call.agent) for rule in self.concerned):
                continue
            of_file = self.world.policy_of(call.agent, call.workspace)
            tool = self.world.tools.get((call.agent, call.tool))
            now = judge(self.after.joined_with(of_file), call, tool, None)
            before = judge(self.before.joined_with(of_file), call, tool, None)
            if isinstance(now, Unjudged):
                self.unjudged += 1
                continue
            # Where the tool's own ask decided, only the call's own time knows how.
            was = call.verdict if isinstance(before, Unjudged) or call.verdict.grant_id is not None else before
            if was.answer != now.answer:
                self.changed.append(_Changed(call=call, was=was.answer, now=now.answer))
        self.seconds += thread_time() - begun


def _named(policy: Policy, name: str) -> Rule | None:
    return next((each for each in policy.rule if each.name == name), None)


def _key(call: RecordedCall) -> _Key:
    return call.run_id, call.tool_call_id


_AGAINST_ALLOW: Final[tuple[Verb, ...]] = ("reject", "edit", "respond")
_AGAINST_OTHERS: Final[tuple[Verb, ...]] = ("approve", "edit")


def _changes(
    changed: Sequence[_Changed], answered: Mapping[_Key, Answered], masks: Mapping[_Key, ToolManifest]
) -> list[PreviewedChange]:
    kinds: dict[tuple[VerdictKind, VerdictKind], list[_Changed]] = {}
    for each in changed:
        kinds.setdefault((each.was, each.now), []).append(each)
    order: Sequence[VerdictKind] = ("allow", "ask", "deny")
    return [
        _change(was, now, kinds[was, now], answered, masks)
        for was, now in sorted(kinds, key=lambda kind: (order.index(kind[1]), order.index(kind[0])))
    ]


def _change(
    was: VerdictKind,
    now: VerdictKind,
    changed: Sequence[_Changed],
    answered: Mapping[_Key, Answered],
    masks: Mapping[_Key, ToolManifest],
) -> PreviewedChange:
    answers = [(each.call, answered.get(_key(each.call))) for each in changed]
    verbs = Counter(answer.verb for _call, answer in answers if answer is not None and answer.verb is not None)
    against = _AGAINST_ALLOW if now == "allow" else _AGAINST_OTHERS
    contrary = sum(verbs[verb] for verb in against)
    # First what people answered otherwise than the rule would; the newest first.
    answers.sort(key=lambda each: _rank(each[1], against))
    return PreviewedChange(
        was=was,
        now=now,
        calls=len(changed),
        approved=verbs["approve"],
        edited=verbs["edit"],
        rejected=verbs["reject"],
        against=contrary,
        against_at_most=against_at_most(contrary, verbs.total()) if verbs else None,
        examples=[_example(call, answer, masks) for call, answer in answers[:EXAMPLES]],
    )


def _rank(answer: Answered | None, against: Sequence[Verb]) -> int:
    if answer is None or answer.verb not in against:
        return len(against)
    return against.index(answer.verb)


def _example(call: RecordedCall, answer: Answered | None, masks: Mapping[_Key, ToolManifest]) -> PreviewedCall:
    tool = masks.get(_key(call))
    text = (mask_json(call.input) if tool is None else tool.masked_input(call.input)).text
    return PreviewedCall(
        run_id=call.run_id,
        tool_call_id=call.tool_call_id,
        tool=call.tool,
        agent=call.agent,
        input=cut_line(text, EXAMPLE_CHARS),
        request_id=None if answer is None else answer.request_id,
        decision=None if answer is None else answer.verb,
        decided_by=None if answer is None else answer.decided_by,
    )
