"""What the store knows about runs whose workflow may be gone: which are live, and the state of each.

Every closed step is a checkpoint, and the work of the step after it is stored piece by piece: its response, its
plan, its requests and their endings, its executions and results. A workflow that begins with :func:`turn_state` has all
of them, so nothing is asked, decided or run a second time.
"""

from __future__ import annotations

from sqlalchemy import select, tuple_, update

from turngate.domain.runs.budgets import AFTER_THE_STEP
from turngate.domain.runs.turn_state import DecisionResult, Gate, TurnState
from turngate.store.clock import from_text
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import runs, steps
from turngate.store.runs.runs import Run
from turngate.store.tables import calls as calls_table
from turngate.store.tables import requests as requests_table
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

    The current step is the first that is not closed. Its requests become gates: pending ones continue to wait, counted from
    when they were opened; a recorded decision counts. A paused run stays paused.
    """
    newest = await steps.get(conn, run.id, run.step)
    step = run.step + 1 if newest is None or newest.closed_at is not None else run.step
    malformed = await _malformed_before(conn, run.id, step)
    state = TurnState(step=step, malformed_in_a_row=malformed, paused_by=run.paused_by)
    for request in await requests_of_step(conn, run.id, step):
        approved = await requests.of_request(conn, request.id) if request.quorum > 1 else []
        state.gates[request.id] = await _gate(conn, request, [each.decided_by for each in approved])
        for each in approved:
            state.answers[each.decision_id] = DecisionResult(request_id=request.id, status="pending")
        if request.decision_id is not None:
            state.answers[request.decision_id] = DecisionResult(request_id=request.id, status=request.status)
    return state


async def requests_of_step(conn: Connection, run_id: str, step: int) -> list[Request]:
    """Return every request that the calls of one step opened, and those that the engine made before it, oldest first."""
    before = (calls_table.c.step == step - 1) & (calls_table.c.position >= AFTER_THE_STEP)
    of_step = (calls_table.c.step == step) & (calls_table.c.position < AFTER_THE_STEP)
    at_hand = select(calls_table.c.tool_call_id).where(calls_table.c.run_id == run_id, of_step | before)
    table = requests_table
    query = (
        select(table)
        .where(table.c.run_id == run_id, table.c.tool_call_id.in_(at_hand))
        .order_by(table.c.created_at, table.c.id)
    )
    return [Request(**row) for row in (await conn.execute(query)).mappings()]


async def _gate(conn: Connection, request: Request, approved_by: list[str]) -> Gate:
    content = None if request.decision_id is None else await requests.decision(conn, request.decision_id)
    return Gate(
        call=request.tool_call_id,
        kind=request.kind,
        digest=request.digest,
        not_by=request.not_by,
        status=request.status,
        decision_id=request.decision_id,
        decided_by=request.decided_by,
        verb=request.verb,
        outcome=None if content is None else content.outcome,
        terms=request.ask_terms,
        approved_by=approved_by,
        opened_at=from_text(request.created_at),
        climbed=request.rungs_climbed,
    )


async def _malformed_before(conn: Connection, run_id: str, step: int) -> int:
    """Return how many responses in a row, up to the one before this step, nothing could be run from."""
    for count in range(step):
        before = await steps.get(conn, run_id, step - 1 - count)
        plan = None if before is None else before.stored_plan
        if plan is None or not plan.malformed:
            return count
    return 0


async def reopen_request(conn: Connection, request_id: str) -> bool:
    """Let a request that the engine had ended wait again, because its run still does; False when a person ended it."""
    table = requests_table
    ended = table.c.id == request_id, table.c.status.in_(("expired", "cancelled", "superseded"))
    query = update(table).where(*ended, table.c.decision_id.is_(None))
    return (await conn.execute(query.values(status="pending", decided_at=None))).rowcount == 1
