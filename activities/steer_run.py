"""Activities ``read_control`` and ``interrupt_below``: what people ordered for a live run, and what that means below it."""

from __future__ import annotations

from temporalio import activity

from turngate.activities.engine.engine import Engine
from turngate.domain import contract
from turngate.domain.contract import InterruptBelowInput, InterruptBelowResult, ReadControlInput, ReadControlResult
from turngate.store.runs import orders, recovery, runs

CANCELLED = "The workflow was cancelled."
FAILED_ABOVE = "The run that asked for this one failed."


class SteerRun:
    """Reads what was ordered for a run, and hands an order to stop on to the runs below it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.READ_CONTROL)
    async def read_control(self, order: ReadControlInput) -> ReadControlResult:
        """Return whether a live run is to stop, or to hold, and note that its workflow knows. Safe to repeat."""
        async with self._engine.database.write() as conn:
            run = await runs.get(conn, order.run_id)
            if run is None or run.status != "running":
                return ReadControlResult(interrupted=True, held=False)
            await runs.see_control(conn, run)
        return ReadControlResult(interrupted=run.interrupted_at is not None, held=run.paused_at is not None)

    @activity.defn(name=contract.INTERRUPT_BELOW)
    async def interrupt_below(self, order: InterruptBelowInput) -> InterruptBelowResult:
        """Order the live runs below an interrupted or failing one to stop, and return them. Safe to repeat."""
        async with self._engine.database.write() as conn:
            run = await runs.get(conn, order.run_id)
            below = [each.id for each in await recovery.runs_below(conn, order.run_id) if each.status == "running"]
            by: str = order.cause
            reason = CANCELLED if order.cause == "temporal" else FAILED_ABOVE
            if run is not None and run.interrupted_at is not None:
                by, reason = run.interrupted_by or "", run.interrupt_reason
            await orders.interrupt(conn, [*reversed(below)], by=by, reason=reason)
        return InterruptBelowResult(run_ids=tuple(below))
