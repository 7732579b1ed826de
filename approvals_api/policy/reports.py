"""What policy answers to a hypothetical call, and what its shadow rules would have changed for recorded calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from turngate.approvals_api.policy.grants import grant_totals
from turngate.approvals_api.policy.rules import parsed, totals_used
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.errors import invalid
from turngate.approvals_api.validation.exact_json import parse_exact
from turngate.domain.errors import ConfigurationError
from turngate.domain.origins.origin import OF_AN_EDIT
from turngate.domain.policy.always_asked import REPEATED_BY_EDIT, wider_by_edit
from turngate.domain.policy.grants import Grant
from turngate.domain.policy.policy import Policy, Verdict, VerdictKind, parse_policy
from turngate.domain.policy.terms import PLAIN_TERMS
from turngate.domain.tools.defaults import stored as stored_defaults
from turngate.domain.tools.known_tools import KnownTool
from turngate.policies.explain import AskedCall, PlacedRule, explain, in_order
from turngate.policies.facts import DISTRUSTED, UNREADABLE, lies_in, without_permissions
from turngate.store import agents
from turngate.store.database import Connection
from turngate.store.policy import grants, policies, recorded_calls
from turngate.store.policy.policies import PublishedPolicy
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, executions, runs
from turngate.store.runs.starters import starters_of
from turngate.wire.orders import PolicyQuestion
from turngate.wire.policy import CallPlace, Explanation, ShadowChange, ShadowReport

MAX_CALLS: Final = 10_000
EXAMPLES: Final = 20


@dataclass(kw_only=True)
class KnownCall:
    """What the store knows about a call. ``notes``: what it doesn't. ``used``: meter → units, of totals."""

    agent: str
    tool: KnownTool
    rules: list[PlacedRule]
    grants: list[Grant]
    notes: list[str] = field(default_factory=list)
    used: Mapping[str, int] = field(default_factory=dict)


async def explain_call(services: Services, question: PolicyQuestion) -> Explanation:
    """Return what policy would answer to a call, and why.

    Paths are resolved on this machine; if the worker runs on another one, links there may lead elsewhere.

    Raises:
        InvalidInputError: ``invalid_policy`` for the rules to try; or the arguments are not unambiguous JSON.
    """
    parse_exact(question.args, pointer="/args", code="invalid_input")
    trial = None if question.policy is None else parsed(question.policy, pointer="/policy")
    async with services.database.read() as conn:
        known = await known_call(conn, question.tool, question.agent, question.workspace, trial)
    call = AskedCall(
        tool=known.tool.stand_in(),
        raw_input=question.args,
        agent=known.agent,
        workspace=question.workspace,
        unattended=question.unattended,
        defaults=known.tool.defaults_of(question.args),
    )
    notes = [*known.notes, *known.tool.unread(question.args)]
    return explain(known.rules, call, grants=known.grants, notes=notes, used=known.used)


async def shadow_report(services: Services, *, rule: str | None = None, since: str | None = None) -> ShadowReport:
    """Return what shadow rules would have changed, over the newest 10,000 calls. ``rule``: only this one.

    ``since``: an instant as stored; only runs that began then or later.
    """
    counted: Counter[tuple[str, VerdictKind, VerdictKind]] = Counter()
    examples: dict[tuple[str, VerdictKind, VerdictKind], list[CallPlace]] = {}
    looked_at = 0
    async for call in recorded_calls.newest(services.database, limit=MAX_CALLS, since=since):
        looked_at += 1
        if '"shadow":{' not in call.verdict_json:  # most have none, and parsing each verdict takes much longer
            continue
        shadow = call.verdict.shadow
        if shadow is None or (rule is not None and shadow.rule != rule):
            continue
        change = shadow.rule, call.verdict.answer, shadow.answer
        counted[change] += 1
        places = examples.setdefault(change, [])
        if len(places) < EXAMPLES:
            places.append(CallPlace(run_id=call.run_id, tool_call_id=call.tool_call_id, tool=call.tool))
    return ShadowReport(
        since=since,
        looked_at=looked_at,
        whole=looked_at < MAX_CALLS,
        changes=[
            ShadowChange(rule=name, was=was, would_be=would_be, calls=number, examples=examples[name, was, would_be])
            for (name, was, would_be), number in counted.most_common()
        ],
    )


async def known_call(
    conn: Connection, tool: str, agent: str | None, workspace: str | None, trial: Policy | None
) -> KnownCall:
    """Return what the store knows about calls of this tool by this agent. ``trial``: rules in place of the stored ones."""
    published = await policies.published(conn)
    notes: list[str] = []
    having = [(each, known) for each in published for known in each.known_tools if known.name == tool]
    if agent is None:
        agent = _only_agent([known for _each, known in having], notes)
    app = await _app_of(conn, published, agent, notes)
    known = next((known for each, known in having if each is app and agent in known.agents), None)
    if known is None and len(having) == 1:
        known = having[0][1]
    if known is None:
        notes.append(f"No worker has published {tool!r}: its kind, its effect and its own ask rule are unknown.")
        known = KnownTool(name=tool)
    rules = await _rules(conn, app, workspace, trial, notes)
    active = [each.grant for each in await grants.active(conn)]
    return KnownCall(
        agent=agent or "",
        tool=known,
        rules=rules,
        grants=active,
        notes=notes,
        used={**await totals_used(conn, [each.rule for each in rules]), **await grant_totals(conn, active)},
    )


def _only_agent(having: Sequence[KnownTool], notes: list[str]) -> str | None:
    """Return the one agent that has the tool; None: there are several, or none."""
    agents = sorted({name for known in having for name in known.agents})
    if len(agents) != 1:
        notes.append("You named no agent, so rules for specific agents are not applied.")
        return None
    notes.append(f"You named no agent, so this is the answer for {agents[0]}, the only one with this tool.")
    return agents[0]


async def _app_of(
    conn: Connection, published: list[PublishedPolicy], agent: str | None, notes: list[str]
) -> PublishedPolicy | None:
    """Return what was published of the app that the agent belongs to."""
    if agent is None:
        if len(published) > 1:
            notes.append("Several apps have published policy files: name an agent to apply its app's file.")
        return published[0] if len(published) == 1 else None
    agent_row = await agents.get(conn, agent)
    if agent_row is None:
        notes.append(f"No worker has published an agent {agent!r}, so no policy file is applied.")
        return None
    return next((each for each in published if each.task_queue == agent_row.task_queue), None)


async def _rules(
    conn: Connection, app: PublishedPolicy | None, workspace: str | None, trial: Policy | None, notes: list[str]
) -> list[PlacedRule]:
    of_file = Policy()
    if app is not None:
        try:
            of_file = app.policy
        except ValidationError:
            notes.append("The app's rules were published by a worker of another release and can't be read here.")
        if workspace is not None and app.file and lies_in(Path(app.file), workspace):
            of_file = without_permissions(of_file)
            notes.append(DISTRUSTED)
    if trial is not None:
        return in_order(("tried", trial), ("file", of_file))
    newest = await policies.newest(conn)
    stored = Policy()
    if newest is not None:
        try:
            stored = parse_policy(newest.source, source=f"version {newest.version}")
        except ConfigurationError as error:
            stored = Policy(rule=[UNREADABLE])
            notes.append(f"The stored rules can't be read: {error.message}")
    return in_order(("stored", stored), ("file", of_file))


async def judge_edit(services: Services, request: Request, args: str) -> str | None:
    """Return in what policy is stricter with an edited call, in words for people; None: in nothing that is known here.

    By the rules of the app's file and the stored ones. The tool's own code is only in the worker, whose door judges the edited
    call again, in full (I6). What this refuses, it would refuse, too; here the person who edits learns of it at once.

    Raises InvalidInputError (code ``invalid_edit``) when a rule denies it.
    """
    async with services.database.read() as conn:
        run = await runs.get(conn, request.run_id)
        call = await calls.get(conn, request.run_id, request.tool_call_id)
        if run is None or call is None or run.world is not None:
            return None  # its own overrides may bring other rules, which the door reads
        defaults = request.tool.defaults_of_edit(args, request.input, request.left_out)
        edited = replace(call, edited_input=args, defaults=stored_defaults(defaults))
        is_new = edited.running_key != request.repeat_key
        repeats = is_new and await executions.edit_may_have_happened(conn, edited)
        known = await known_call(conn, request.tool_name, request.agent, run.workspace, None)
        starters = await starters_of(conn, run, until=request.created_at)
    edited_call = AskedCall(
        tool=known.tool.stand_in(),
        raw_input=args,
        agent=request.agent,
        workspace=run.workspace,
        run_id=run.id,
        starters=starters,
        origins=OF_AN_EDIT,
        defaults=defaults,
    )
    explanation = explain(known.rules, edited_call, grants=known.grants, used=known.used)
    if explanation.answer == "deny":
        why = f"the edited call is denied by policy rule {explanation.rule!r}: {explanation.reason}"
        raise invalid("/args", why, code="invalid_edit")
    if repeats:
        return REPEATED_BY_EDIT
    wider = wider_by_edit(
        request.tool,
        args,
        original=request.input,
        confinement=edited_call.confinement,
        original_confinement=request.process_confinement,
    )
    if explanation.answer == "allow":
        return wider
    # Where only the tool's own ask decides, it asks on plain terms, or allows.
    terms = explanation.terms or PLAIN_TERMS
    verdict = Verdict(answer="ask", rule=explanation.rule, reason="", risk=explanation.risk, terms=terms)
    return verdict.stricter_than(Verdict.model_validate_json(call.verdict), request.ask_terms) or wider
