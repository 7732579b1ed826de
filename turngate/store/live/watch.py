"""What a watcher reads: events, progress and deltas in one order, of every run or of one with its sub-agents' runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Select, bindparam, select

from turngate.store import sequences
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.live import deltas, progress
from turngate.store.live.deltas import Deltas
from turngate.store.live.progress import Progress
from turngate.store.sequences import Numbered
from turngate.store.tables import deltas as delta_rows
from turngate.store.tables import events as event_rows
from turngate.store.tables import progress as progress_rows
from turngate.store.tables import runs

BATCH = 500

LiveItem = Progress | Deltas
StreamItem = Event | LiveItem
EVERY_RUN = ""
"""In place of a run's id: the deltas of every run whose events are read."""

Newest = Mapping[Numbered, int]
"""The newest number of each sequence."""


async def newest(conn: Connection) -> Newest:
    """Return the newest number of each sequence: one query of three rows shows whether anything is new."""
    last = await sequences.newest(conn)
    return {sequence: last.get(sequence, 0) for sequence in Numbered}


_NUMBERS = {
    Numbered.EVENTS: event_rows.c.seq,
    Numbered.PROGRESS: progress_rows.c.id,
    Numbered.DELTAS: delta_rows.c.id,
}


def _runs_between(number: Column[int]) -> Select[tuple[str]]:
    own = select(number.table.c.run_id.label("id")).where(number > bindparam("seen"), number <= bindparam("upto"))
    changed = own.cte("changed", recursive=True)
    above = select(runs.c.parent_run_id).where(runs.c.id == changed.c.id, runs.c.parent_run_id.is_not(None))
    return select(changed.union(above).c.id)


_RUNS_BETWEEN = {sequence: _runs_between(number) for sequence, number in _NUMBERS.items()}


async def runs_between(conn: Connection, sequence: Numbered, seen: int, upto: int) -> set[str]:
    """Return the runs of the rows after number ``seen`` (exclusive), up to ``upto``, and the runs above them."""
    return set((await conn.execute(_RUNS_BETWEEN[sequence], {"seen": seen, "upto": upto})).scalars())


_TREE = select(runs.c.id).where(runs.c.id == bindparam("run")).cte("tree", recursive=True)
_FAMILY = select(_TREE.union(select(runs.c.id).where(runs.c.parent_run_id == _TREE.c.id)).c.id)


async def family(conn: Connection, run_id: str) -> list[str]:
    """Return the run and the runs of its sub-agents, however deep."""
    return list((await conn.execute(_FAMILY, {"run": run_id})).scalars())


class _LiveCursor:
    """A watcher's position in the progress rows, or in the delta rows."""

    def __init__(self, run_id: str | None, read: Callable[..., Coroutine[Any, Any, Sequence[LiveItem]]]) -> None:
        self._run_id = run_id
        self._read = read
        self._id = 0
        self._began_at: int | None = None

    def lacks(self, newest_id: int) -> bool:
        """Tell whether rows up to this one have not been read."""
        return newest_id > self._id

    async def read(self, conn: Connection, newest_id: int) -> Sequence[LiveItem]:
        """Return the next rows up to this one: at most a batch."""
        if self._began_at is None:
            self._began_at = newest_id
        if not self.lacks(newest_id):
            return ()
        return await self._read(conn, self._id, newest_id, self._began_at, self._run_id)

    def advance(self, rows: Sequence[LiveItem], count: int, newest_id: int) -> None:
        """Continue after the first ``count`` of the rows that were read."""
        if count < len(rows):
            self._id = rows[count].id - 1
        else:
            self._id = rows[-1].id if len(rows) == BATCH else newest_id


class Follower:
    """One watcher's position. Each :meth:`read` returns what comes next: every event, progress row and delta row once.

    ``after``: the last event that the watcher has seen. ``run_id``: only this run and its sub-agents' runs. ``progress_of``:
    the same for progress alone (None: as the events). ``with_progress`` False: no progress. ``deltas_of``: the same for
    deltas (None: no deltas, :data:`EVERY_RUN`: as the events).

    Of what was written before the first read, a watcher gets only the progress of calls that execute and the deltas of
    responses that still stream: for others the result is there.
    """

    def __init__(
        self,
        after: int,
        *,
        run_id: str | None = None,
        with_progress: bool = True,
        progress_of: str | None = None,
        deltas_of: str | None = None,
    ) -> None:
        self._seq = after
        self.run_id = run_id
        self._cursors: dict[Numbered, _LiveCursor] = {}
        if with_progress:
            self._cursors[Numbered.PROGRESS] = _LiveCursor(progress_of or run_id, _progress)
        if deltas_of is not None:
            self._cursors[Numbered.DELTAS] = _LiveCursor(deltas_of or run_id, _deltas)

    @property
    def sequences(self) -> frozenset[Numbered]:
        """What it reads."""
        return frozenset({Numbered.EVENTS, *self._cursors})

    def lacks(self, now: Newest) -> bool:
        """Tell whether something up to these numbers has not been read. It may be of other runs."""
        return now[Numbered.EVENTS] > self._seq or any(
            cursor.lacks(now[sequence]) for sequence, cursor in self._cursors.items()
        )

    async def read(self, conn: Connection, now: Newest) -> list[StreamItem]:
        """Return what comes next in order, up to these numbers: at most a batch of each kind.

        The numbers bound what is read, so its statements need no common view.
        """
        new_events = await self._events(conn, now)
        new_rows = [
            (cursor, now[sequence], await cursor.read(conn, now[sequence]))
            for sequence, cursor in self._cursors.items()
        ]
        # A full batch may have been cut off. Items after its end wait: the rest of that batch may belong before them.
        ends = [new_events[-1].seq] if len(new_events) == BATCH else []
        ends += [rows[-1].after_seq for _cursor, _newest_id, rows in new_rows if len(rows) == BATCH]
        horizon = min(ends, default=math.inf)
        items: list[StreamItem] = [event for event in new_events if event.seq <= horizon]
        self._seq = max(self._seq, int(min(horizon, max(self._seq, now[Numbered.EVENTS]))))
        for cursor, newest_id, rows in new_rows:
            ready = [row for row in rows if row.after_seq <= horizon]
            cursor.advance(rows, len(ready), newest_id)
            items += ready
        return sorted(items, key=_place)

    async def _events(self, conn: Connection, now: Newest) -> Sequence[Event]:
        if now[Numbered.EVENTS] <= self._seq:
            return ()
        run_ids = None if self.run_id is None else await family(conn, self.run_id)
        return await events.after(conn, self._seq, upto=now[Numbered.EVENTS], run_ids=run_ids, limit=BATCH)


async def _progress(conn: Connection, last: int, upto: int, began_at: int, run_id: str | None) -> Sequence[LiveItem]:
    run_ids = None if run_id is None else await family(conn, run_id)
    return await progress.after(conn, last, upto=upto, finished_from=began_at, run_ids=run_ids, limit=BATCH)


async def _deltas(conn: Connection, last: int, upto: int, began_at: int, run_id: str | None) -> Sequence[LiveItem]:
    # In one statement: it runs some thirty times a second while a model streams.
    run_ids = None if run_id is None else _FAMILY.params(run=run_id)
    return await deltas.after(conn, last, upto=upto, ended_from=began_at, run_ids=run_ids, limit=BATCH)


def _place(item: StreamItem) -> tuple[int, int, int]:
    """Return an item's place in the one order: a live row comes right after the event that was newest when it was written."""
    match item:
        case Event():
            return (item.seq, 0, 0)
        case Progress():
            return (item.after_seq, 1, item.id)
        case Deltas():
            return (item.after_seq, 2, item.id)
