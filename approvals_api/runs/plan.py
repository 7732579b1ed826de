"""The plan of a fork or dry run: what it would reuse, run again and not undo, read from the store before it is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.runs.fork import fork_point
from turngate.approvals_api.runs.lead import Lead, lead_after
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.overrides import changed_overrides, overrides_view, tools_of
from turngate.approvals_api.runs.start import published_agent
from turngate.approvals_api.services import Services
from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.digest import framed_sha256
from turngate.domain.policy.policy import Verdict
from turngate.domain.requests import RequestStatus
from turngate.domain.runs.budgets import EXTEND_BUDGET
from turngate.domain.text.folds import cut_line
from turngate.store import agents
from turngate.store.agents import PublishedAgent
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, messages, overrides, recovery, summaries
from turngate.store.runs.calls import Call
from turngate.store.runs.executions import Execution
from turngate.store.runs.runs import Run
from turngate.wire.orders import DryRunOrder, ForkOrder, OverridesOrder
from turngate.wire.plans import Changed, Difference, EffectCount, ForkPlan, PastCall

MAX_LISTED: Final = 200
MAX_INPUT_CHARS: Final = 200


async def plan_fork(services: Services, run_id: str, wanted: ForkOrder) -> ForkPlan:
    """Return what a fork would reuse, run again and not undo. Raises what ``fork.fork`` raises."""
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
        point = await fork_point(conn, run, wanted.step)
        past_calls = await _past_calls(conn, run)
        lead = await lead_after(conn, run, point.step)
        differences, run_overrides = await _differences(conn, run, lead, wanted)
        reused = [each for each in past_calls if each.step <= point.step]
        again = [each for each in past_calls if each.step > point.step]
        return ForkPlan(
            run_id=run.id,
            step=point.step,
            dry=False,
            **await _read_again(conn, point.message_id, summarise=wanted.summarise),
            reused=reused[-MAX_LISTED:],
            reused_total=len(reused),
            effects=await _effects(conn, run),
            again=again[:MAX_LISTED],
            again_total=len(again),
            differences=differences,
            own=overrides_view(run_overrides),
            needs_admin=run_overrides.policy is not None,
        )


async def plan_dry_run(services: Services, run_id: str, wanted: DryRunOrder) -> ForkPlan:
    """Return the recorded results from which a dry run would answer its calls."""
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
        point = None if wanted.step is None else await fork_point(conn, run, wanted.step)
        begins_at = run.input_message_id if point is None else point.message_id
        after = 0 if point is None else point.step
        answers = [each for each in await _past_calls(conn, run) if each.step > after and each.result is not None]
        lead = await lead_after(conn, run, after)
        differences, run_overrides = await _differences(conn, run, lead, wanted)
        return ForkPlan(
            run_id=run.id,
            step=None if point is None else point.step,
            dry=True,
            **await _read_again(conn, begins_at),
            reused=answers[:MAX_LISTED],
            reused_total=len(answers),
            differences=differences,
            own=overrides_view(run_overrides),
            needs_admin=False,
        )


async def _read_again(conn: Connection, head_id: str, *, summarise: bool = False) -> dict[str, Any]:
    """Return the plan's part on messages. An agent without ``context`` reads all of them, even those that were cut."""
    total = len(await messages.path_to(conn, head_id))
    if summarise:
        return {"messages": 0, "replaced": total, "replaced_by": "new_summary"}
    kept_messages, cut = await summaries.path_after_cut(conn, head_id)
    read = len(kept_messages) + 1  # the conversation's first message is always sent
    if cut is None or read >= total:
        return {"messages": total}
    return {"messages": read, "replaced": total - read, "replaced_by": cut.kind}


async def _past_calls(conn: Connection, run: Run) -> list[PastCall]:
    started = {each.tool_call_id: each for each in await executions.of_run(conn, run.id)}
    statuses: dict[str, RequestStatus] = {
        each.tool_call_id: each.status for each in await requests.of_run(conn, run.id)
    }
    masks = await Masks.of_run(conn, run)
    return [
        _past_call(masks.call(each), started.get(each.tool_call_id), statuses)
        for each in await calls.of_run(conn, run.id)
        if each.tool_name != EXTEND_BUDGET
    ]


def _past_call(call: Call, execution: Execution | None, statuses: dict[str, RequestStatus]) -> PastCall:
    return PastCall(
        step=call.step,
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        effect=call.effect,
        input=cut_line(call.input, MAX_INPUT_CHARS),
        verdict=Verdict.model_validate_json(call.verdict).answer if call.verdict else None,
        decision=statuses.get(call.tool_call_id),
        execution=execution.state if execution else "not_started",
        result=call.result_kind,
        happened=execution is not None and call.effect == "once" and _has_handler(call),
    )


async def _effects(conn: Connection, run: Run) -> list[EffectCount]:
    """Count the calls with side effects that the run and its sub-agents' runs started, by tool."""
    started: Counter[tuple[str, str]] = Counter()
    unknown: Counter[tuple[str, str]] = Counter()
    for each in (run, *await recovery.runs_below(conn, run.id)):
        states = {execution.tool_call_id: execution.state for execution in await executions.of_run(conn, each.id)}
        for call in await calls.of_run(conn, each.id):
            if call.tool_call_id in states and call.effect != "read" and _has_handler(call):
                started[call.tool_name, call.effect] += 1
                unknown[call.tool_name, call.effect] += states[call.tool_call_id] == "unknown"
    return [
        EffectCount(tool_name=tool, effect=effect, calls=count, unknown=unknown[tool, effect])
        for (tool, effect), count in sorted(started.items())
    ]


def _has_handler(call: Call) -> bool:
    """Tell whether a handler runs the call: control calls and sub-agents have executions without effects of their own."""
    return call.signal is None and call.child_run_id is None


async def _differences(
    conn: Connection, run: Run, lead: Lead, wanted: OverridesOrder
) -> tuple[list[Difference], RunOverrides]:
    """Return what differs from the run, and the new run's overrides. ``lead``: who would continue without changes."""
    before = await overrides.get(conn, run.world)
    will_be = await published_agent(conn, wanted.agent or lead.agent)
    was = will_be if will_be.name == lead.agent else await agents.get(conn, lead.agent)
    run_overrides = changed_overrides(before, will_be, wanted)
    old_model = lead.model or ("" if was is None else was.model)
    own_model = old_model if will_be.name == lead.agent else will_be.model
    workspace = wanted.workspace if isinstance(wanted, ForkOrder) else None
    aspects: Sequence[tuple[Changed, str, str]] = (
        ("agent", lead.agent, will_be.name),
        ("model", old_model, wanted.model or own_model),
        ("workspace", run.workspace or "none", workspace or run.workspace or "none"),
        ("instructions", _instructions(before, lead.agent), _instructions(run_overrides, will_be.name)),
        ("tools", _tools(before, was), _tools(run_overrides, will_be)),
        ("policy", _policy(before), _policy(run_overrides)),
    )
    return [Difference(name=name, was=old, will_be=new) for name, old, new in aspects if old != new], run_overrides


def _instructions(run_overrides: RunOverrides | None, agent: str) -> str:
    if run_overrides is None or run_overrides.agent != agent or run_overrides.instructions is None:
        return f"those of {agent}"
    return f"its own, {framed_sha256(run_overrides.instructions)[:12]}"


def _tools(run_overrides: RunOverrides | None, agent: PublishedAgent | None) -> str:
    if (
        run_overrides is not None
        and run_overrides.tools is not None
        and (agent is None or run_overrides.agent == agent.name)
    ):
        names = list(run_overrides.tools)
    else:
        names = [] if agent is None else tools_of(agent)
    return ", ".join(names) or "none"


def _policy(run_overrides: RunOverrides | None) -> str:
    own = None if run_overrides is None else overrides_view(run_overrides)
    digest = None if own is None else own.policy_digest
    return "the app's and the stored rules, and grants" if digest is None else f"its own, {digest[:12]}"
