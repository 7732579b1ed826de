"""What a live run waits for: from its open calls, its pending requests, and what Temporal says of its workflow. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, assert_never

from approvals_api.gateway.workflow_status import PendingActivity, WorkflowLook
from approvals_api.paging import one_page
from approvals_api.runs import views as run_views
from approvals_api.runs.step_views import call_view
from approvals_api.services import Services
from turngate.domain import contract
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.external import is_external, source_of
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import ListedRequest
from turngate.store.runs import calls, executions, runs
from turngate.store.runs.runs import Run
from turngate.wire.calls import CallView
from turngate.wire.explanation import Standstill, StuckRun
from turngate.wire.runs import RunSummary
from turngate.wire.view import Page

TAKEN_WITHIN: Final = timedelta(seconds=5)
"""A worker that is there takes a task up at once; one that is busy soon."""
ON_ITS_WAY: Final = timedelta(seconds=10)
"""A run is recorded before its workflow starts, and it ends in the store before its workflow does."""
ASKS: Final = {
    "approval": "{tool} waits for a person's consent",
    "question": "{tool} waits for a person's answer",
    "outcome": "nobody knows whether {tool} took effect, and a person has to say",
}


def standing_still(
    run: RunSummary,
    calls: Sequence[CallView],
    pending: Mapping[str, ListedRequest],
    look: WorkflowLook,
    *,
    now: datetime,
) -> list[Standstill]:
    """Return what a live run waits for, what does not pass by itself first; empty: nothing that can be seen.

    Args:
        run: not ended.
        calls: those of its newest step, settled or not.
        pending: tool call id → the request that is pending for it.
        look: what Temporal says of its workflow.
        now: the present instant.
    """
    if run.paused_at is not None and look.state in {"running", "away"}:
        return [_paused(run), *_open_calls(run, calls, pending), *_model(look, now)]
    if look.state == "away":
        return [*_open_calls(run, calls, pending), _away()]
    if look.state != "running":
        return [] if now - from_text(run.created_at) < ON_ITS_WAY else [_gone(look)]
    return [*_untaken(look, now), *_open_calls(run, calls, pending), *_model(look, now)]


def _paused(run: RunSummary) -> Standstill:
    by = f" by {run.paused_by}" if run.paused_by else ""
    why = f": {run.pause_reason}" if run.pause_reason else ""
    return Standstill(kind="paused", says=f"It is paused{by}{why}", since=run.paused_at)


def _away() -> Standstill:
    return Standstill(kind="temporal_away", says="Temporal does not answer, so nobody can tell what its workflow does.")


def _gone(look: WorkflowLook) -> Standstill:
    what = "knows no workflow of this run" if look.state == "gone" else "has ended the workflow of this run"
    says = f"Temporal {what}, and the store still has it as live: it cannot go on by itself."
    return Standstill(kind="workflow_gone", says=says)


def _untaken(look: WorkflowLook, now: datetime) -> Iterator[Standstill]:
    """Yield the work that no worker has taken up."""
    waiting = [each.since for each in look.activities if _in_queue(each) and now - each.since > TAKEN_WITHIN]
    if look.untaken_since is not None and (look.polled is False or now - look.untaken_since > TAKEN_WITHIN):
        waiting.append(look.untaken_since)
    if look.polled is False:
        says = f"No worker polls the task queue {look.task_queue!r}."
        yield Standstill(kind="no_worker", says=says, since=_text(min(waiting, default=None)))
    elif waiting:
        says = (
            "No worker has taken its next task up: all are busy, or the one that its tool's queue needs is not there."
        )
        yield Standstill(kind="no_worker", says=says, since=_text(min(waiting)))


def _in_queue(activity: PendingActivity) -> bool:
    # A later attempt waits for its back-off, not for a worker.
    return not activity.taken and activity.attempt <= 1


def _open_calls(
    run: RunSummary, calls: Sequence[CallView], pending: Mapping[str, ListedRequest]
) -> Iterator[Standstill]:
    for call in calls:
        if call.result is not None:
            continue
        asked = pending.get(call.tool_call_id)
        if asked is not None:
            yield _person(call, asked)
        elif call.execution == "executing":
            yield _executing(call)
        elif is_external(run.agent) and (call.disposition == "run" or call.request is not None):
            says = f"{call.tool_name} may run, and {source_of(run.agent)!r}, which runs it, has not come to start it."
            since = None if call.request is None else call.request.decided_at
            yield Standstill(kind="tool", says=says, since=since, tool_call_id=call.tool_call_id)


def _person(call: CallView, asked: ListedRequest) -> Standstill:
    says = ASKS[asked.kind].format(tool=call.tool_name)
    if asked.parked_at is not None:
        says += "; it is parked, without a clock"
    return Standstill(
        kind="person",
        says=f"{says[0].upper()}{says[1:]}." if asked.kind == "outcome" else f"{says}.",
        since=asked.created_at,
        until=None if asked.parked_at is not None else asked.expires_at,
        request_id=asked.id,
        tool_call_id=call.tool_call_id,
    )


def _executing(call: CallView) -> Standstill:
    at = {"since": call.started_at, "tool_call_id": call.tool_call_id}
    if isinstance(call.signal, WaitUntil):
        return Standstill(kind="timer", says=f"{call.tool_name} holds a timer.", until=call.waits_until, **at)
    if call.child_run_id is not None:
        says = f"{call.tool_name} is answered by a sub-agent's run, which has not ended."
        return Standstill(kind="sub_agent", says=says, child_run_id=call.child_run_id, **at)
    again = f", in attempt {call.attempts}" if call.attempts > 1 else ""
    return Standstill(kind="tool", says=f"{call.tool_name} runs{again}.", **at)


def _model(look: WorkflowLook, now: datetime) -> Iterator[Standstill]:
    for each in look.activities:
        if each.name != contract.CALL_MODEL:
            continue
        if each.taken and each.attempt <= 1:
            yield Standstill(kind="model", says="The model was asked, and has not answered.", since=_text(each.since))
        elif each.attempt > 1:
            failed = f": {each.last_failure}" if each.last_failure else ""
            if each.taken or each.since <= now:
                says = f"The model fails and is tried again, attempt {each.attempt} now{failed}"
                yield Standstill(kind="model_retrying", says=says, since=_text(each.since))
            else:  # an attempt that is to come has no beginning yet
                says = f"The model fails and is tried again, attempt {each.attempt} next{failed}"
                yield Standstill(kind="model_retrying", says=says, until=_text(each.since))


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else as_text(instant)


# The live runs that stand still, each with its reason. Reads the store, and looks at the workflows; changes nothing.


LOOKED_AT_ONCE: Final = 8
"""How many workflows are asked about at a time."""
PENDING_SHOWN: Final = 128


async def stuck_page(
    services: Services, *, limit: int, before: tuple[str, str] | None, still_for: timedelta
) -> Page[StuckRun]:
    """Look at one page of live runs, newest first, and return those that stand still; often fewer than ``limit``.

    ``still_for``: how long a person, a tool or a model may take before it counts.
    """
    async with services.database.read() as conn:
        found = await runs.page(conn, limit=limit + 1, before=before, status="running")
        shown, more = one_page(found, limit)
        known = [(run, *await _of(conn, run)) for run in shown]
    places = asyncio.Semaphore(LOOKED_AT_ONCE)

    async def reason(run: Run, made: list[CallView], pending: dict[str, ListedRequest]) -> Standstill | None:
        async with places:
            look = await services.gateway.look(run.id)
        at = now()
        waits_for = standing_still(run_views.run_summary(run), made, pending, look, now=at)
        return next((each for each in waits_for[:1] if stands_still(each, at, still_for)), None)

    reasons = await asyncio.gather(*(reason(*each) for each in known))
    items = [
        StuckRun(run=run_views.run_summary(run), waits_for=why)
        for run, why in zip(shown, reasons, strict=True)
        if why is not None
    ]
    if any(each.waits_for.kind == "workflow_gone" for each in items):
        items = await _still_live(services, items)
    return Page(items=items, next_cursor=more)


def stands_still(waits_for: Standstill, at: datetime, still_for: timedelta) -> bool:
    """Tell whether a run that waits for this counts as one that stands still. Pure.

    A timer comes by itself, and a sub-agent's run stands in the list by its own reason.
    """
    match waits_for.kind:
        case "paused" | "no_worker" | "workflow_gone" | "temporal_away" | "model_retrying":
            return True
        case "person" | "tool" | "model":
            return waits_for.since is not None and at - from_text(waits_for.since) >= still_for
        case "timer" | "sub_agent":
            return False
        case _:
            assert_never(waits_for.kind)


async def _of(conn: Connection, run: Run) -> tuple[list[CallView], dict[str, ListedRequest]]:
    """Return the open calls of the run's newest step, and the pending request of each that has one."""
    made = [call for call in await calls.of_step(conn, run.id, run.step) if call.result is None]
    if not made:
        return [], {}
    pending = await requests.page(conn, InboxFilter(run_id=run.id), limit=PENDING_SHOWN)
    views = [call_view(call, (), await executions.get(conn, run.id, call.tool_call_id)) for call in made]
    return views, {each.tool_call_id: each for each in pending}


async def _still_live(services: Services, items: list[StuckRun]) -> list[StuckRun]:
    """Leave out the runs that have ended between the two looks: their workflows are rightly gone."""
    async with services.database.read() as conn:
        now_there = [await runs.get(conn, each.run.id) for each in items]
    return [each for each, run in zip(items, now_there, strict=True) if run is not None and run.status == "running"]
