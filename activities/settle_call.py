"""Activity ``settle_call``: the result of a call without a handler, once its wait is over or its sub-agent has ended."""

from __future__ import annotations

from datetime import datetime, timedelta

from temporalio import activity

from turngate.activities.engine.engine import Engine
from turngate.activities.execution.delegation import answer_of
from turngate.activities.execution.settlement import CallResult, end_state, settle
from turngate.activities.planning.control_calls import CONTROL_CALL, result_of
from turngate.activities.runs.ending import end_run
from turngate.domain import contract
from turngate.domain.contract import CloseStepInput, SettleCallInput
from turngate.domain.requests import ExecutionState
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.results import Failure, Ok
from turngate.store.clock import from_text
from turngate.store.database import Connection
from turngate.store.runs import calls, executions, runs


class SettleCall:
    """Settles calls that were answered without a handler."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.SETTLE_CALL)
    async def settle_call(self, order: SettleCallInput) -> None:
        """Store the call's result. Safe to repeat: the first one stays.

        Raises ApplicationError, to be retried then, while the wait is not over by the store's clock.
        """
        async with self._engine.database.write() as conn:
            call = await calls.get(conn, order.run_id, order.call)
            run = await runs.get(conn, order.run_id)
            if call is None or run is None or call.result is not None:
                return
            result, state = await _result(self._engine, conn, call)
            await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state=state)
            await settle(conn, call, CallResult.of(self._engine, run, result), state=state)


async def _result(engine: Engine, conn: Connection, call: calls.Call) -> tuple[Ok | Failure, ExecutionState]:
    if call.child_run_id is None:
        if call.signal is None:
            raise LookupError(f"call {call.tool_call_id!r} waits for nothing")
        control_call = CONTROL_CALL.validate_json(call.signal)
        if isinstance(control_call, WaitUntil):
            engine.require_due("the end of the wait", await _end_of_wait(conn, call, control_call))
        result = result_of(control_call)
        return result, end_state(result)
    child = await runs.get(conn, call.child_run_id)
    if child is not None and child.status == "running":
        # Its workflow is over and never came to its own end: terminated from outside, failed for good, or never started.
        gone = "Its workflow was ended from outside before the run was, or could not be started."
        order = CloseStepInput(
            run_id=child.id, status="failed", reason=gone, at=engine.clock(), error_class="workflow_gone"
        )
        await end_run(engine, conn, order)
        child = await runs.get(conn, child.id)
    if child is None:
        raise LookupError(f"no run {call.child_run_id!r}")
    return await answer_of(conn, child)


async def _end_of_wait(conn: Connection, call: calls.Call, wait: WaitUntil) -> datetime:
    """Return when the wait of a call that the door let through is over."""
    if wait.until is not None:
        return wait.until
    begun = await executions.get(conn, call.run_id, call.tool_call_id)
    if begun is None:
        raise LookupError(f"call {call.tool_call_id!r} waits, and was never started")
    return from_text(begun.started_at) + timedelta(seconds=wait.seconds or 0)
