"""Ending a run that no answer of its model ended: every open call gets a closure (I1), in one transaction."""

from __future__ import annotations

from turngate.activities.engine.engine import Engine
from turngate.activities.execution.delegation import effects_below
from turngate.activities.execution.lost_calls import ask_at_end
from turngate.activities.planning.control_calls import CONTROL_CALL
from turngate.domain.contract import CloseStepInput
from turngate.domain.conversation.messages import Message, TextPart
from turngate.domain.digest import derived_id
from turngate.domain.runs.outcomes import end_payload
from turngate.domain.tools import results
from turngate.domain.tools.control_calls import Finish
from turngate.domain.tools.results import Failure
from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, messages, runs, steps

FAILED = Failure(kind="cancelled", reason="The run failed before this call could run.")


async def end_run(engine: Engine, conn: Connection, order: CloseStepInput) -> runs.Run | None:
    """End a live run in the caller's transaction and return it as it was; None if it had ended before.

    The runs of its sub-agents that still live end with it: they never started, or their workflow is gone too. A question about
    what happened to a call waits on, because its answer still counts: the call started, and only a person knows.
    """
    run = await runs.get(conn, order.run_id)
    if run is None or run.status != "running":
        return None
    order = _as_ordered(run, order)
    cancelled = await requests.cancel_pending(conn, run.id, at=order.at)
    answer = await _answer(conn, run) if order.status == "completed" else None
    results = await _close_calls(engine, conn, run, order)
    # Someone may have taken an approval back while the calls were waited for; its call is asked about again.
    cancelled += await requests.cancel_pending(conn, run.id, at=order.at)
    new: list[events.NewEvent] = [
        ("request.cancelled", {"request_id": request_id, "by": order.by, "at": as_text(order.at)})
        for request_id in cancelled
    ]
    closed = await steps.close(conn, run, run.step, _closure(order, None))
    written = [] if closed is None else [*closed.messages]
    if answer is None:
        by = (order.by or None) if order.status == "interrupted" else None
        ending = runs.Ending(status=order.status, reason=order.reason, error_class=order.error_class, by=by)
        await runs.end(conn, run.id, ending)
    else:
        head = run.head_message_id if closed is None else closed.head_message_id
        written.append(await _complete(conn, run, head, answer))
    digests = events.digests(result=results, message={each.id: messages.digest(each, run.nonce) for each in written})
    ended = end_payload(status=order.status, reason=order.reason, error_class=order.error_class, by=order.by)
    await events.append(conn, run.id, [*new, ("run.ended", {**ended, **digests})])
    return run


def _as_ordered(run: runs.Run, order: CloseStepInput) -> CloseStepInput:
    """Return the end of an interrupted run with who interrupted it and why, as the store has it; no message says that."""
    if order.status != "interrupted" or run.interrupted_at is None:
        return order
    return order.model_copy(update={"by": run.interrupted_by or "", "reason": run.interrupt_reason})


async def _answer(conn: Connection, run: runs.Run) -> str:
    """Return the answer of the ``finish`` call that completes the run with its current step (I13).

    LookupError, to be retried: a call of the step is still open, or none of them finishes the run, whatever the order says.
    """
    step_calls = await calls.of_step(conn, run.id, run.step)
    if any(call.result is None for call in step_calls):
        raise LookupError(f"step {run.step} of run {run.id!r} has open calls, so it completes nothing yet")
    for call in reversed(step_calls):  # of several the last counts
        control_call = None if call.signal is None else CONTROL_CALL.validate_json(call.signal)
        if isinstance(control_call, Finish):
            return control_call.answer
    raise LookupError(f"no call of step {run.step} of run {run.id!r} finishes it")


async def _complete(conn: Connection, run: runs.Run, head: str, answer: str) -> messages.NewMessage:
    """Complete the run with a ``finish`` call's answer as the model's last message, as if there had been no call."""
    message = messages.NewMessage(
        id=derived_id("msg", run.id, str(run.step), "answer"),
        parent_id=head,
        conversation_id=run.conversation_id,
        run_id=run.id,
        step=run.step,
        message=Message(role="assistant", parts=(TextPart(text=answer),)),
    )
    await messages.append(conn, message)
    await runs.complete(conn, run, step=run.step, head_message_id=message.id)
    return message


async def _close_calls(engine: Engine, conn: Connection, run: runs.Run, order: CloseStepInput) -> dict[str, str | None]:
    """Settle each open call of the current step; each result says whether its handler had started. Returns their digests."""
    settled: dict[str, str | None] = {}
    started = {execution.tool_call_id: execution for execution in await executions.of_run(conn, run.id)}
    for call in await calls.of_step(conn, run.id, run.step):
        if call.result is not None:
            continue
        if call.child_run_id is not None:
            by = order.by or "engine"
            below = CloseStepInput(
                run_id=call.child_run_id, status="interrupted", reason=order.reason, by=by, at=order.at
            )
            await end_run(engine, conn, below)
        execution = started.get(call.tool_call_id)
        unknown = await _may_have_happened(conn, call)
        if execution is not None and execution.state == "executing":
            await _end_start(engine, conn, call, execution, unknown=unknown)
        closure = _closure(order, execution, unknown=unknown)
        settled[call.tool_call_id] = await calls.settle(conn, run.id, call.tool_call_id, closure, nonce=run.nonce)
    return settled


async def _may_have_happened(conn: Connection, call: calls.Call) -> bool:
    """Tell whether an open call that had started may have changed something that must not happen twice."""
    if call.child_run_id is not None:
        return bool(await effects_below(conn, call.child_run_id))
    return call.effect == "once" and not call.signal


async def _end_start(
    engine: Engine, conn: Connection, call: calls.Call, execution: executions.Execution, *, unknown: bool
) -> None:
    """End the execution of an open call that nothing has ended."""
    if call.effect == "once" and not (call.signal or call.child_run_id):
        # Its worker never reported back: neither finished nor stopped is known.
        await ask_at_end(engine, conn, execution)
        return
    # No handler of a control call or a sub-agent runs: it is a timer that ends here, or a run that was stopped and reports
    # itself how far it came.
    known = (call.signal or call.child_run_id) and not unknown
    await executions.finish(
        conn, run_id=call.run_id, tool_call_id=call.tool_call_id, state="failed" if known else "unknown"
    )


def _closure(order: CloseStepInput, execution: executions.Execution | None, *, unknown: bool = False) -> Failure:
    if order.status == "failed" and execution is None:
        return FAILED
    started, partial = execution is not None, "" if execution is None else execution.partial_output
    by = order.by or "engine"
    return results.interrupted(by, order.reason, started=started, unknown=started and unknown, partial=partial)
