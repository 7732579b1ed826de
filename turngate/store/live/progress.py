"""Progress that tools report while they run. For watchers only: not in the audit log, bounded per call, deleted later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from pydantic import JsonValue
from sqlalchemy import RowMapping, bindparam, delete, func, insert, select

from turngate.store import sequences
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.live.live_rows import LiveTable
from turngate.store.sequences import MAX_NUMBER, NEWEST_EVENT, Numbered
from turngate.store.tables import executions, progress

MAX_ROWS_PER_CALL = 500
"""How many rows of a call stay; older ones are deleted."""
RETENTION_AFTER_END = timedelta(hours=1)
"""Connected watchers read a finished call's progress within a second; every new watcher has to skip it."""

_POSITION = select(
    select(func.max(progress.c.n))
    .where(progress.c.run_id == bindparam("run"), progress.c.tool_call_id == bindparam("call"))
    .scalar_subquery()
    .label("last_n"),
    NEWEST_EVENT.scalar_subquery().label("after_seq"),
).where(
    select(executions.c.state)
    .where(
        executions.c.run_id == bindparam("run"),
        executions.c.tool_call_id == bindparam("call"),
        executions.c.state == "executing",
    )
    .exists()
)
_INSERT = insert(progress)
_MAKE_ROOM = delete(progress).where(
    progress.c.run_id == bindparam("run"),
    progress.c.tool_call_id == bindparam("call"),
    progress.c.n <= bindparam("upto"),
)
_LIVE = LiveTable(
    table=progress,
    is_live=select(executions.c.state)
    .where(
        executions.c.run_id == progress.c.run_id,
        executions.c.tool_call_id == progress.c.tool_call_id,
        executions.c.state == "executing",
    )
    .exists(),
    retention_after_end=RETENTION_AFTER_END,
)


class NewProgress(NamedTuple):
    """One event as JSON text, and how many before it were left out."""

    text: str
    dropped: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One row. ``n``: place within its call, from 1, continuing over attempts. ``dropped``: events left out before it.

    ``after_seq``: the newest event when it was written: the row's place is right after that event.
    """

    id: int
    run_id: str
    tool_call_id: str
    n: int
    payload: JsonValue
    dropped: int
    after_seq: int
    created_at: str


async def append(conn: Connection, run_id: str, tool_call_id: str, new: Sequence[NewProgress]) -> bool:
    """Add progress of an executing call, in order; False, and nothing is added, if the call does not execute (any more).

    So no progress comes after a call's result, not even from a worker that was thought lost. The call's oldest rows are
    deleted when there are too many.
    """
    if not new:
        return True
    last_id = await sequences.take(conn, Numbered.PROGRESS, len(new))
    # After the lock above, so that two attempts of one call cannot use the same `n`.
    position = (await conn.execute(_POSITION, {"run": run_id, "call": tool_call_id})).one_or_none()
    if position is None:
        return False
    last_n, written_at = int(position.last_n or 0), as_text(now())
    rows = [
        {
            "id": last_id - len(new) + place,
            "run_id": run_id,
            "tool_call_id": tool_call_id,
            "n": last_n + place,
            "payload": f'{{"after":{position.after_seq},"dropped":{each.dropped},"event":{each.text}}}',
            "created_at": written_at,
        }
        for place, each in enumerate(new, start=1)
    ]
    await conn.execute(_INSERT, rows)
    if (spent := last_n + len(new) - MAX_ROWS_PER_CALL) > 0:
        await conn.execute(_MAKE_ROOM, {"run": run_id, "call": tool_call_id, "upto": spent})
    return True


async def sweep(conn: Connection) -> None:
    """Delete progress older than a day, or an hour if its call has ended: among the oldest 1,000 rows. Cheap if there is none."""
    await _LIVE.sweep(conn)


async def after(
    conn: Connection,
    last: int,
    *,
    upto: int = MAX_NUMBER,
    finished_from: int,
    run_ids: Sequence[str] | None = None,
    limit: int = 500,
) -> list[Progress]:
    """Return rows after number ``last`` (exclusive), up to ``upto``, oldest first; of some runs when ``run_ids`` is given.

    Up to number ``finished_from`` only of calls that execute now; from there on of every call.
    """
    query = _LIVE.after(last, upto=upto, ended_from=finished_from, run_ids=run_ids, limit=limit)
    return [_loaded(row) for row in (await conn.execute(query)).mappings()]


async def newest_of_executing(conn: Connection, run_id: str, *, limit: int) -> dict[str, list[Progress]]:
    """Return tool call id → the newest ``limit`` rows, oldest first, of the run's calls that execute now."""
    back = func.row_number().over(partition_by=progress.c.tool_call_id, order_by=progress.c.n.desc()).label("back")
    ranked = select(progress, back).where(progress.c.run_id == run_id, _LIVE.is_live).subquery()
    query = select(ranked).where(ranked.c.back <= limit).order_by(ranked.c.id)
    by_call: dict[str, list[Progress]] = {}
    for row in (await conn.execute(query)).mappings():
        by_call.setdefault(row["tool_call_id"], []).append(_loaded(row))
    return by_call


def _loaded(row: RowMapping) -> Progress:
    payload = json.loads(row["payload"])
    return Progress(
        id=row["id"],
        run_id=row["run_id"],
        tool_call_id=row["tool_call_id"],
        n=row["n"],
        payload=payload["event"],
        dropped=payload["dropped"],
        after_seq=payload["after"],
        created_at=row["created_at"],
    )
