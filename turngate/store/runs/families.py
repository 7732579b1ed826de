"""Families of runs: a run, what it was forked from, and its forks and theirs. Retries and dry runs count as forks, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, bindparam, func, literal, select

from turngate.store.database import Connection
from turngate.store.runs.runs import Run
from turngate.store.tables import runs
from turngate.store.texts import among, listed

MOST_ABOVE: Final = 10
"""Of the runs that lead to the one that is asked for."""
MOST_BELOW: Final = 10
"""Of its own forks and theirs, before those of the others."""
MOST_RUNS: Final = 30


@dataclass(frozen=True, kw_only=True)
class Family:
    """Some of a family. ``runs``: each after the one that it was forked from. ``forks``: by run, how many it has in all."""

    runs: Sequence[Run]
    forks: Mapping[str, int]


def _up_query() -> Select[Any]:
    """Build the walk from a run to what it was forked from, nearest first."""
    own = select(runs.c.id, runs.c.forked_from_run_id, literal(0).label("level")).where(runs.c.id == bindparam("run"))
    line = own.cte("line", recursive=True)
    above = runs.alias("above")
    up = (
        select(above.c.id, above.c.forked_from_run_id, line.c.level + 1)
        .join(line, above.c.id == line.c.forked_from_run_id)
        .where(line.c.level < MOST_ABOVE)
    )
    line = line.union_all(up)
    return select(line.c.id).order_by(line.c.level)


def _down_query() -> Select[Any]:
    """Build the walk from a run to its forks, level by level: both databases stop when they have as many as are wanted."""
    own = select(runs.c.id, runs.c.forked_from_run_id).where(runs.c.id == bindparam("run"))
    tree = own.cte("tree", recursive=True)
    fork = runs.alias("fork")
    tree = tree.union_all(
        select(fork.c.id, fork.c.forked_from_run_id).join(tree, fork.c.forked_from_run_id == tree.c.id)
    )
    return select(tree.c.id, tree.c.forked_from_run_id).limit(bindparam("most"))


_UP = _up_query()
_DOWN = _down_query()
_FORKS = (
    select(runs.c.forked_from_run_id, func.count().label("forks"))
    .where(runs.c.forked_from_run_id.in_(among("run_ids")))
    .group_by(runs.c.forked_from_run_id)
)
_ROWS = select(runs).where(runs.c.id.in_(among("run_ids")))


async def family_of(conn: Connection, run: Run) -> Family:
    """Return the family of a run, at most :data:`MOST_RUNS` of it; without runs where it has no other.

    The run's own line comes first, then its forks, then the others.
    """
    below = (await conn.execute(_DOWN, {"run": run.id, "most": MOST_BELOW + 1})).all()
    if run.forked_from_run_id is None and len(below) <= 1:
        return Family(runs=[], forks={})
    line = list((await conn.execute(_UP, {"run": run.id})).scalars())
    others = (await conn.execute(_DOWN, {"run": line[-1], "most": MOST_RUNS})).all()
    ordered = dict.fromkeys(reversed(line))
    for fork in [*below, *others]:
        if len(ordered) < MOST_RUNS and fork.forked_from_run_id in ordered:
            ordered[fork.id] = None
    wanted = {"run_ids": listed(ordered)}
    rows = {row["id"]: Run(**row) for row in (await conn.execute(_ROWS, wanted)).mappings()}
    forks = {row.forked_from_run_id: row.forks for row in await conn.execute(_FORKS, wanted)}
    return Family(runs=[rows[each] for each in ordered if each in rows], forks=forks)
