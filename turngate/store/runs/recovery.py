"""What the store knows about runs whose workflow may be gone: which are live, and the state of each.

Every closed step is a checkpoint, and the work of the step after it is stored piece by piece: its response, its
plan, its requests and their endings, its executions and results. A workflow that begins with :func:`turn_state` has all
of them, so nothing is asked, decided or run a second time.
"""

from __future__ import annotations

from sqlalchemy import select, tuple_

from turngate.domain.runs.turn_state import TurnState
from turngate.store.database import Connection
from turngate.store.runs import runs, steps
from turngate.store.runs.runs import Run
from turngate.store.tables import runs as runs_table


async def live_roots(conn: Connection, *, limit: int, after: tuple[str, str] | None = None) -> list[Run]:
    """Return live runs that no other run started, oldest first. ``after``: (created_at, id) of the last one seen.

    A sub-agent's run is not one of them: its parent's workflow starts it, and no one else, or no one would wait for it.
    """
    table = runs_table
    query = (
        select(table)
        .where(table.c.status == "running", table.c.parent_run_id.is_(None))
        .order_by(table.c.created_at, table.c.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(tuple_(table.c.created_at, table.c.id) > tuple_(*after))
    return [Run(**row) for row in (await conn.execute(query)).mappings()]


async def runs_below(conn: Connection, run_id: str) -> list[Run]:
    """Return the runs of this run's sub-agents and of their sub-agents, parents first; ended ones, too."""
    below: list[Run] = []
    above = [run_id]
    while above:
        query = select(runs_table).where(runs_table.c.parent_run_id.in_(above)).order_by(runs_table.c.created_at)
        level = [Run(**row) for row in (await conn.execute(query)).mappings()]
        below += level
        above = [run.id for run in level]
    return below


async def root_of(conn: Connection, run: Run) -> Run:
    """Return the run at the top of this run's tree: itself, unless a sub-agent works in it."""
    while run.parent_run_id is not None:
        parent = await runs.get(conn, run.parent_run_id)
        if parent is None:
            return run
        run = parent
    return run


async def turn_state(conn: Connection, run: Run) -> TurnState:
    """Return the state with which a new workflow continues with a live run.

    The current step is the first that is not closed. The workflow asks the store about its requests. A paused run stays
    paused.
    """
    newest = await steps.get(conn, run.id, run.step)
    step = run.step + 1 if newest is None or newest.closed_at is not None else run.step
    malformed = await _malformed_before(conn, run.id, step)
    return TurnState(
        step=step,
        malformed_in_a_row=malformed,
        recovered_step=step,
        interrupted=run.interrupted_at is not None,
        paused=run.paused_at is not None,
    )


async def _malformed_before(conn: Connection, run_id: str, step: int) -> int:
    """Return how many responses in a row, up to the one before this step, nothing could be run from."""
    for count in range(step):
        before = await steps.get(conn, run_id, step - 1 - count)
        plan = None if before is None else before.stored_plan
        if plan is None or not plan.malformed:
            return count
    return 0
