"""What live runs wait for: from their open calls, their pending requests, and their workflows in Temporal."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, assert_never

from turngate.approvals_api.gateway.workflow_status import FailingTask, FailingWorkflows, PendingActivity, WorkflowLook
from turngate.approvals_api.paging import one_page
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.step_views import call_view
from turngate.approvals_api.services import Services
from turngate.domain import contract
from turngate.domain.runs.run_filter import LIVE_RUNS
from turngate.domain.text.folds import cut_line
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.external import is_external, source_of
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import ListedRequest
from turngate.store.runs import calls, executions, runs
from turngate.store.runs.runs import Run
from turngate.store.schedules import schedules
from turngate.wire.calls import CallView
from turngate.wire.explanation import StuckRun, WaitKind, WaitReason
from turngate.wire.runs import RunSummary
from turngate.wire.view import Page

TAKEN_WITHIN: Final = timedelta(seconds=5)
"""An idle worker takes a task at once, a busy one soon."""
FAILURE_CHARS: Final = 300
ON_ITS_WAY: Final = timedelta(seconds=10)
"""A run is recorded before its workflow starts, and ends in the store before its workflow does."""
ASKS: Final = {
    "approval": "{tool} waits for a person's approval",
    "question": "{tool} waits for a person's answer",
    "outcome": "{tool} may or may not have taken effect: a person must say which",
}
NO_ANSWER: Final = "The model was called and has not answered yet."


def find_stall(
    run: RunSummary,
    calls: Sequence[CallView],
    pending: Mapping[str, ListedRequest],
    look: WorkflowLook,
    *,
    now: datetime,
) -> list[WaitReason]:
    """Return what a live run waits for, first what needs help; empty: nothing visible. Pure.

    Args:
        run: not ended.
        calls: those of its newest step, settled or not.
        pending: tool call id → the request that is pending for it.
        look: what Temporal says of its workflow.
        now: the present instant.
    """
    if run.paused_at is not None and look.state in {"running", "away"}:
        return [*_failing(look), _paused(run), *_open_calls(run, calls, pending), *_model(calls, look, now)]
    if look.state == "away":
        return [*_open_calls(run, calls, pending), _away()]
    if look.state != "running":
        return [] if now - from_text(run.created_at) < ON_ITS_WAY else [_gone(look)]
    return [*_failing(look), *_untaken(look, now), *_open_calls(run, calls, pending), *_model(calls, look, now)]


def _paused(run: RunSummary) -> WaitReason:
    by = f" by {run.paused_by}" if run.paused_by else ""
    why = f": {run.pause_reason}" if run.pause_reason else ""
    return WaitReason(kind="paused", says=f"It is paused{by}{why}", since=run.paused_at)


def _away() -> WaitReason:
    return WaitReason(kind="temporal_away", says="Temporal does not answer, so the state of its workflow is unknown.")


def _gone(look: WorkflowLook) -> WaitReason:
    what = "has no workflow of this run" if look.state == "gone" else "has ended the workflow of this run"
    says = f"Temporal {what}, but the run is live in the store: it can't continue by itself."
    return WaitReason(kind="workflow_gone", says=says)


def _failing(look: WorkflowLook) -> Iterator[WaitReason]:
    """Yield that the workers' code can't continue the run."""
    if look.failing is not None:
        build = look.build if look.pinned else None
        says = failing_words(look.failing, "the run")
        yield WaitReason(kind="workflow_fails", says=says, build=build, pinned=look.pinned)


def failing_words(task: FailingTask, whose: str) -> str:
    """Say why the workers' code can't continue it. ``whose``: the run, or the fire of a schedule."""
    what = f"{whose.capitalize()}'s workflow task fails"
    if not task.replays:
        what = f"The workers' code no longer replays {whose}"
    why = (
        f": {cut_line(' '.join(task.failure.split()), FAILURE_CHARS)}" if task.failure else "; its error is not known."
    )
    return f"{what}, attempt {task.attempt}{why}"


def _untaken(look: WorkflowLook, now: datetime) -> Iterator[WaitReason]:
    """Yield the tasks that no worker has taken."""
    waiting = [each.since for each in look.activities if _in_queue(each) and now - each.since > TAKEN_WITHIN]
    since = look.untaken_since if look.failing is None else None  # what fails waits for its back-off, not for a worker
    if since is not None and (look.polled is False or now - since > TAKEN_WITHIN):
        waiting.append(since)
    if look.polled is False:
        oldest = _text(min(waiting, default=None))
        yield WaitReason(kind="no_worker", says=_unpolled(look), since=oldest, build=look.build, pinned=look.pinned)
    elif waiting:
        says = "No worker has taken its next task: all are busy, or the worker of its tool's queue is not running."
        yield WaitReason(kind="no_worker", says=says, since=_text(min(waiting)))


def _unpolled(look: WorkflowLook) -> str:
    """Say which worker is missing, and why the others that poll don't help."""
    queue = f"the task queue {look.task_queue!r}"
    if not look.others:
        return f"No worker polls {queue}." if look.build is None else f"No worker of build {look.build} polls {queue}."
    those = " and ".join(f"of build {each}" for each in sorted(each for each in look.others if each is not None))
    if None in look.others:
        those = f"{those} and without a build" if those else "without a build"
    if look.pinned:
        why = f"It began with build {look.build}, and no worker of that build polls {queue}."
        return f"{why} Workers {those} can't continue it."
    if look.build is None:
        why = f"No build is current, and no worker without a build polls {queue}."
        return f"{why} Workers {those} get it after `turngate builds --set-current BUILD`."
    return f"Build {look.build} gets new runs, and no worker of that build polls {queue}. Workers {those} get none."


def _in_queue(activity: PendingActivity) -> bool:
    # A later attempt waits for its back-off, not for a worker.
    return not activity.taken and activity.attempt <= 1


def _open_calls(
    run: RunSummary, calls: Sequence[CallView], pending: Mapping[str, ListedRequest]
) -> Iterator[WaitReason]:
    for call in calls:
        if call.result is not None:
            continue
        request = pending.get(call.tool_call_id)
        if request is not None:
            yield _person(call, request)
        elif call.execution == "executing":
            yield _executing(call)
        elif is_external(run.agent) and (call.disposition == "run" or call.request is not None):
            says = f"{call.tool_name} may run, but {source_of(run.agent)!r}, which runs it, has not started it."
            since = None if call.request is None else call.request.decided_at
            yield WaitReason(kind="tool", says=says, since=since, tool_call_id=call.tool_call_id)


def _person(call: CallView, request: ListedRequest) -> WaitReason:
    says = ASKS[request.kind].format(tool=call.tool_name)
    if request.parked_at is not None:
        says += "; it is parked and does not expire"
    return WaitReason(
        kind="person",
        says=f"{says}.",
        since=request.created_at,
        until=None if request.parked_at is not None else request.expires_at,
        request_id=request.id,
        tool_call_id=call.tool_call_id,
    )


def _executing(call: CallView) -> WaitReason:
    at = {"since": call.started_at, "tool_call_id": call.tool_call_id}
    if isinstance(call.signal, WaitUntil):
        return WaitReason(kind="timer", says=f"{call.tool_name} waits for a timer.", until=call.waits_until, **at)
    if call.child_run_id is not None:
        says = f"{call.tool_name} waits for a sub-agent's run."
        return WaitReason(kind="sub_agent", says=says, child_run_id=call.child_run_id, **at)
    again = f", in attempt {call.attempts}" if call.attempts > 1 else ""
    return WaitReason(kind="tool", says=f"{call.tool_name} runs{again}.", **at)


def _model(calls: Sequence[CallView], look: WorkflowLook, now: datetime) -> Iterator[WaitReason]:
    for each in look.activities:
        if each.name == contract.RUN_TOOL and each.taken and calls and all(call.result is not None for call in calls):
            # It has settled the last call of the step, and takes the next one (ADR 0033).
            settled_at = [call.settled_at for call in calls if call.settled_at is not None]
            yield WaitReason(kind="model", says=NO_ANSWER, since=max(settled_at, default=None))
        if each.name == contract.CALL_MODEL and each.attempt > 1:
            yield _retried(each, now)
        elif each.name == contract.CALL_MODEL and each.taken:
            yield WaitReason(kind="model", says=NO_ANSWER, since=_text(each.since))


def _retried(asking: PendingActivity, now: datetime) -> WaitReason:
    failed = f": {asking.last_failure}" if asking.last_failure else ""
    if asking.taken or asking.since <= now:
        says = f"The model fails and is retried, attempt {asking.attempt} now{failed}"
        return WaitReason(kind="model_retrying", says=says, since=_text(asking.since))
    # A future attempt has no start yet.
    says = f"The model fails and is retried, attempt {asking.attempt} next{failed}"
    return WaitReason(kind="model_retrying", says=says, until=_text(asking.since))


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else as_text(instant)


# The stalled live runs, each with its reason. Reads the store and looks at the workflows; changes nothing.


LOOKED_AT_ONCE: Final = 8
"""How many workflows are looked at in parallel."""


async def stuck_page(
    services: Services,
    *,
    limit: int,
    before: tuple[str, str] | None,
    still_for: timedelta,
    cause: WaitKind | None = None,
    started_by: str | None = None,
) -> Page[StuckRun]:
    """Check one page of live runs, newest first, and return the stalled ones; often fewer than ``limit``.

    ``still_for``: how long a person, a tool or a model may take before it counts. ``cause``: only those that wait for this.
    ``started_by`` None: everyone's.
    """
    async with services.database.read() as conn:
        rows = await runs.page(conn, LIVE_RUNS, limit=limit + 1, before=before, started_by=started_by)
        listed, more = one_page(rows, limit)
        known = await _waiting(conn, listed)
    return Page(items=await _stalled(services, known, still_for, cause), next_cursor=more)


async def stalled_among(services: Services, run_ids: Collection[str], still_for: timedelta) -> list[StuckRun]:
    """Return which of these runs are live and stalled, the newest first, each with the reason."""
    async with services.database.read() as conn:
        known = await _waiting(conn, await runs.live_of(conn, run_ids))
    return await _stalled(services, known, still_for, None)


async def _stalled(
    services: Services, known: Sequence[_LiveRun], still_for: timedelta, cause: WaitKind | None
) -> list[StuckRun]:
    places = asyncio.Semaphore(LOOKED_AT_ONCE)

    async def reason(waiting: _LiveRun) -> WaitReason | None:
        async with places:
            look = await services.gateway.look(waiting.run.id)
        at = now()
        waits_for = find_stall(waiting.run, waiting.calls, waiting.pending, look, now=at)
        return next((each for each in waits_for[:1] if is_stalled(each, at, still_for)), None)

    reasons = await asyncio.gather(*map(reason, known))
    items = [
        StuckRun(run=waiting.run, waits_for=why)
        for waiting, why in zip(known, reasons, strict=True)
        if why is not None and cause in {None, why.kind}
    ]
    if any(each.waits_for.kind == "workflow_gone" for each in items):
        items = await _still_live(services, items)
    return items


def is_stalled(waits_for: WaitReason, at: datetime, still_for: timedelta) -> bool:
    """Tell whether a run that waits for this counts as stalled. Pure.

    A timer ends by itself, and a sub-agent's run is in the list for its own reason.
    """
    match waits_for.kind:
        case "paused" | "workflow_fails" | "no_worker" | "workflow_gone" | "temporal_away" | "model_retrying":
            return True
        case "person" | "tool" | "model":
            return waits_for.since is not None and at - from_text(waits_for.since) >= still_for
        case "timer" | "sub_agent":
            return False
        case _:
            assert_never(waits_for.kind)


@dataclass(frozen=True, kw_only=True)
class _LiveRun:
    """A live run with the open calls of its newest step (all of them, if none is open), and the request of each that has one."""

    run: RunSummary
    calls: list[CallView]
    pending: dict[str, ListedRequest]


async def _waiting(conn: Connection, listed: Sequence[Run]) -> list[_LiveRun]:
    """Return what these runs wait for, in as many statements for all of them as for one."""
    if not listed:
        return []
    of_step = await calls.of_steps(conn, {run.id: run.step for run in listed})
    looked_at = {run_id: _open_or_all(newest) for run_id, newest in of_step.items()}
    ids = [(call.run_id, call.tool_call_id) for each in looked_at.values() for call in each]
    started = await executions.of_calls(conn, ids)
    pending: dict[str, dict[str, ListedRequest]] = {run.id: {} for run in listed}
    for each in await requests.pending_of(conn, [run.id for run in listed]):
        pending[each.run_id][each.tool_call_id] = each
    masks = await Masks.of_each(conn, [run.id for run in listed])

    def view(call: calls.Call) -> CallView:
        return call_view(masks[call.run_id].call(call), (), started.get((call.run_id, call.tool_call_id)))

    return [
        _LiveRun(
            run=masks[run.id].view(run_views.run_summary(run), *run_views.RUN_TEXTS),
            calls=[view(each) for each in looked_at[run.id]],
            pending=pending[run.id],
        )
        for run in listed
    ]


def _open_or_all(newest: list[calls.Call]) -> list[calls.Call]:
    return [each for each in newest if each.result is None] or newest


async def _still_live(services: Services, items: list[StuckRun]) -> list[StuckRun]:
    """Leave out the runs that have ended between the two reads: their workflows are rightly gone."""
    async with services.database.read() as conn:
        live = await runs.live_among(conn, [each.run.id for each in items])
    return [each for each in items if each.run.id in live]


# Fires of schedules that can't start their runs. There is no run yet, so no list of runs has them.

FIRES_SHOWN: Final = 5
CONTINUE_FIRE: Final = (
    "Start a worker of the release that began it (`turngate worker APP --build-id OLD`), or deploy one without the error: the "
    "run then starts by itself. To give it up, terminate the workflow with Temporal's own command."
)


@dataclass(frozen=True, kw_only=True)
class FailingFire:
    """A fire whose workflow can't continue. ``says``: whose and why; ``fix``: what to do, both in sentences."""

    workflow_id: str
    schedule_id: str
    says: str
    fix: str = CONTINUE_FIRE


async def failing_fires(services: Services, failing: FailingWorkflows) -> list[FailingFire]:
    """Return the newest :data:`FIRES_SHOWN` of the fires that fail, of schedules of this store."""
    fires = []
    for workflow_id, schedule_id in list(failing.fires.items())[:FIRES_SHOWN]:
        async with services.database.read() as conn:
            schedule = await schedules.get(conn, schedule_id)
        task = (await services.gateway.look(workflow_id)).failing
        if schedule is not None and task is not None:
            why = failing_words(task, "the fire")
            says = f"The schedule {schedule.name!r} can't start its run (workflow {workflow_id}). {why.rstrip('.')}."
            fires.append(FailingFire(workflow_id=workflow_id, schedule_id=schedule.id, says=says))
    return fires
