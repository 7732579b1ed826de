"""Usage of all runs below a run: its sub-agents' and their sub-agents'. It counts for every run above; reads take O(depth).

The rows are apart from those of ``runs``, and are written before a transaction's events and always upwards: so no two
transactions wait for each other, whatever else they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, select, text

from turngate.store.database import Connection
from turngate.store.runs import runs
from turngate.store.tables import used_below

# As text: both databases read it, and each has a construct of its own for it in SQLAlchemy.
_ADD = text(
    "INSERT INTO used_below (run_id, tokens, cost_micros, tool_calls) VALUES (:run, :tokens, :cost, :calls) "
    "ON CONFLICT (run_id) DO UPDATE SET tokens = used_below.tokens + excluded.tokens, "
    "cost_micros = used_below.cost_micros + excluded.cost_micros, tool_calls = used_below.tool_calls + excluded.tool_calls"
)
_OF = select(used_below).where(used_below.c.run_id == bindparam("run"))


@dataclass(frozen=True, kw_only=True)
class SubtreeUsage:
    """What all runs below one used together. ``cost_micros``: in millionths of the currency of ``Limits.cost``."""

    tokens: int = 0
    cost_micros: int = 0
    tool_calls: int = 0


NOTHING_BELOW = SubtreeUsage()


async def above(conn: Connection, run: runs.Run) -> list[runs.Run]:
    """Return the runs that wait for this one, the nearest first; empty for a run that no other run started."""
    parents: list[runs.Run] = []
    while run.parent_run_id is not None:
        parent = await runs.get(conn, run.parent_run_id)
        if parent is None:
            break
        parents.append(parent)
        run = parent
    return parents


async def of(conn: Connection, run_id: str) -> SubtreeUsage:
    """Return what the runs below a run used so far."""
    row = (await conn.execute(_OF, {"run": run_id})).mappings().one_or_none()
    if row is None:
        return NOTHING_BELOW
    return SubtreeUsage(tokens=row["tokens"], cost_micros=row["cost_micros"], tool_calls=row["tool_calls"])


async def add(conn: Connection, run: runs.Run, used: SubtreeUsage) -> None:
    """Count what a run used for every run above it; part of the transaction that stores what it used, before its events."""
    if run.parent_run_id is None or used == NOTHING_BELOW:
        return
    more = {"tokens": used.tokens, "cost": used.cost_micros, "calls": used.tool_calls}
    for each in await above(conn, run):  # one by one and upwards: locks are taken in the same order by everyone
        await conn.execute(_ADD, {"run": each.id, **more})
