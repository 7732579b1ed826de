"""Activity ``close_step``: the end of a run that did not complete. Every open call gets a closure, in one transaction (I1)."""

from __future__ import annotations

from temporalio import activity

from activities.engine import Engine
from turngate.domain import contract, results
from turngate.domain.contract import CloseStepInput
from turngate.domain.results import Failure
from turngate.store import calls, events, executions, requests, runs, steps
from turngate.store.database import Connection

FAILED = Failure(kind="cancelled", reason="The run failed before this call could run.")


class CloseStep:
    """The activity with what it stands on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.CLOSE_STEP)
    async def close_step(self, order: CloseStepInput) -> None:
        """Cancel open requests, close open calls, write the results message and end the run. Safe to repeat."""
        async with self._engine.database.write() as conn:
            run = await runs.get(conn, order.run_id)
            if run is None or run.status != "running":
                return
            new: list[events.NewEvent] = [
                ("request.cancelled", {"request_id": request_id})
                for request_id in await requests.cancel_pending(conn, run.id, at=order.at)
            ]
            await _close_calls(conn, run, order)
            await steps.close(conn, run, run.step, _closure(order, started=False))
            await runs.end(conn, run.id, status=order.status, reason=order.reason, error_class=order.error_class)
            ended = {"status": order.status, "reason": order.reason, "error_class": order.error_class, "by": order.by}
            await events.append(conn, run.id, [*new, ("run.ended", ended)])


async def _close_calls(conn: Connection, run: runs.Run, order: CloseStepInput) -> None:
    """Settle each open call of the step at hand, saying of each whether its handler had started."""
    started = {execution.tool_call_id: execution for execution in await executions.of_run(conn, run.id)}
    for call in await calls.of_step(conn, run.id, run.step):
        if call.result is not None:
            continue
        execution = started.get(call.tool_call_id)
        if execution is not None and execution.state == "executing":
            # Its worker never reported back: neither finished nor stopped is known.
            await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="unknown")
        partial = execution.partial_output if execution else ""
        closure = _closure(order, started=execution is not None, partial=partial)
        await calls.settle(conn, run.id, call.tool_call_id, closure)


def _closure(order: CloseStepInput, *, started: bool, partial: str = "") -> Failure:
    if order.status == "failed" and not started:
        return FAILED
    by = order.by or "engine"
    return results.interrupted(by, order.reason, started=started, partial=partial)
