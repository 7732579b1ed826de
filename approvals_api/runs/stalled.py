"""What a live run waits for: from its open calls, its pending requests, and what Temporal says of its workflow. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from approvals_api.gateway.workflow_status import PendingActivity, WorkflowLook
from turngate.domain import contract
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.external import is_external, source_of
from turngate.store.clock import as_text, from_text
from turngate.store.requests.requests import ListedRequest
from turngate.wire.calls import CallView
from turngate.wire.explanation import Standstill
from turngate.wire.runs import RunSummary

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
