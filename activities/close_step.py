"""Activity ``close_step``: the end of a run that no answer of its model ended. Every open call gets a closure (I1)."""

from __future__ import annotations

from typing import Any, Final

from temporalio import activity

from turngate.activities.engine.engine import Engine
from turngate.activities.runs.ending import end_run
from turngate.activities.runs.step_boundary import after_step, open_next, recorded_next
from turngate.activities.steer_run import CANCELLED
from turngate.domain import contract
from turngate.domain.contract import CloseStepInput, CloseStepResult

CAUSES: Final = frozenset({"", "engine", "temporal"})
"""What may end a run without a person."""


class CloseStep:
    """Ends a run that no answer of its model ended, and opens the next one if a message waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.CLOSE_STEP)
    async def close_step(self, order: CloseStepInput) -> CloseStepResult:
        """Cancel open requests, close open calls, write the results message and end the run. Safe to repeat.

        Who interrupted the run, and why and when, come from the store only: what an order says of them is dropped (I13).
        """
        stored: dict[str, Any] = {"at": self._engine.clock()}
        if order.by not in CAUSES:
            stored["by"] = "engine"
        if order.status == "interrupted":
            stored["reason"] = CANCELLED
        order = order.model_copy(update=stored)
        async with self._engine.database.write() as conn:
            run = await end_run(self._engine, conn, order)
            if run is None:
                follows = await recorded_next(self._engine, conn, order.run_id)
            else:
                follows = await open_next(self._engine, conn, run)
        if run is not None and order.status == "completed":
            await after_step(self._engine, run, run.step)
        return CloseStepResult(next=follows)
