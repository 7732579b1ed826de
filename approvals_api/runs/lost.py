"""Live runs whose workflow is gone. Reads the store and looks at Temporal; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from turngate.approvals_api.gateway.recovery import WorkflowState
from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.services import Services
from turngate.store.clock import from_text, now
from turngate.store.database import Connection
from turngate.store.runs import recovery
from turngate.store.runs.runs import Run

STARTING: Final = timedelta(seconds=15)
"""A run without a workflow that is younger is being started: it is recorded first, and started within seconds."""


@dataclass(frozen=True, kw_only=True)
class LostRun:
    """A live run without an open workflow. ``step``: the one to continue with. ``below``: its live sub-agents' runs."""

    run_id: str
    agent: str
    created_at: str
    workflow: WorkflowState
    step: int
    below: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotLost:
    """Why a run is not lost: it has ended, its workflow is open, or it was recorded a moment ago."""

    reason: Literal["ended", "alive", "starting"]
    detail: str = ""


async def find_loss(services: Services, run_id: str) -> LostRun | NotLost:
    """Return the run as a lost one, or why it is none.

    Raises:
        NotFoundError: no such run.
        UnavailableError: Temporal or the store is away.
    """
    # Temporal is asked first and the store after it: a workflow ends after its run has, so a run that lives although its
    # workflow had ended before is lost. The other way round each run that ends between the two would seem so.
    workflow = await services.gateway.recovery.state_of(run_id)
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
        if run.status != "running":
            return NotLost(reason="ended", detail=run.status)
        if workflow == "open":
            return NotLost(reason="alive")
        if workflow == "absent" and run.step == 0 and from_text(run.created_at) > now() - STARTING:
            return NotLost(reason="starting", detail="it was recorded a moment ago")
        return await _as_lost(conn, run, workflow)


async def _as_lost(conn: Connection, run: Run, workflow: WorkflowState) -> LostRun:
    below = [each.id for each in await recovery.runs_below(conn, run.id) if each.status == "running"]
    step = (await recovery.turn_state(conn, run)).step
    return LostRun(
        run_id=run.id,
        agent=run.agent,
        created_at=run.created_at,
        workflow=workflow,
        step=step,
        below=tuple(below),
    )
