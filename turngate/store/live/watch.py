"""What a watcher reads: events, progress and deltas in one order, of every run or of one with its sub-agents' runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, bindparam, literal_column, select

from turngate.store import sequences
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.live import deltas, progress
from turngate.store.live.deltas import Deltas
from turngate.store.live.progress import Progress
from turngate.store.sequences import MAX_NUMBER, Numbered
from turngate.store.tables import deltas as delta_rows
from turngate.store.tables import event_counter, runs
from turngate.store.tables import events as event_rows
from turngate.store.tables import progress as progress_rows

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


def _newest_of(sequence: Numbered) -> ColumnElement[int | None]:
    number = select(event_counter.c.last_seq).where(event_counter.c.id == literal_column(str(sequence.value)))
    return number.scalar_subquery().label(f"newest_{sequence.value}")


# The numbers are in each row, and in one of their own when there is no event.
_ONE_ROW = select(literal_column("1").label("one")).subquery("one_row")
_LOOK = (
    select(*(_newest_of(sequence) for sequence in Numbered), runs.c.parent_run_id, event_rows)
    .select_from(
        _ONE_ROW.outerjoin(event_rows, event_rows.c.seq > bindparam("seen")).outerjoin(
            runs, runs.c.id == event_rows.c.run_id
        )
    )
    .order_by(event_rows.c.seq)
    .limit(BATCH + 1)
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is new at one moment. ``events``: those after the ones seen, each with its run and the runs above it.

    None: there are too many of them, or none had been seen.
    """

    newest: Newest
    events: Sequence[tuple[Event, frozenset[str]]] | None


class LiveEdge:
    """The newest events, read and decoded once for all watchers of a process. ``newest``: None before the first look."""

    def __init__(self) -> None:
        self.newest: Newest | None = None
        self._events = deque[tuple[Event, frozenset[str]]]()
        self._since = 0
        self._above: dict[str, frozenset[str]] = {}

    async def look(self, conn: Connection) -> Look:
        """Read what is new since the last look that was added."""
        seen = MAX_NUMBER if self.newest is None else self.newest[Numbered.EVENTS]
        rows = (await conn.execute(_LOOK, {"seen": seen})).all()
        count = len(Numbered)
        now = {sequence: int(number or 0) for sequence, number in zip(Numbered, rows[0][:count], strict=True)}
        if self.newest is None or len(rows) > BATCH:
            return Look(newest=now, events=None)
        names = event_rows.c.keys()
        new = []
        for row in rows if rows[0].seq is not None else ():
            event = events.loaded(dict(zip(names, row[count + 1 :], strict=True)))
            new.append((event, await self._with_those_above(conn, event.run_id, row[count])))
        return Look(newest=now, events=new)

    def add(self, look: Look) -> None:
        """Take what :meth:`look` has read."""
        self.newest = look.newest
        if look.events is None:
            self._events.clear()
            self._since = look.newest[Numbered.EVENTS]
            return
        self._events += look.events
        while len(self._events) > BATCH:
            event, _runs = self._events.popleft()
            self._since = event.seq

    def after(self, seq: int, run_id: str | None) -> list[Event] | None:
        """Return the events after ``seq`` (exclusive), in order; None: they aren't all here.

        ``run_id``: only of this run and its sub-agents' runs.
        """
        if seq < self._since:
            return None
        new = takewhile(lambda each: each[0].seq > seq, reversed(self._events))
        return [event for event, run_ids in new if run_id is None or run_id in run_ids][::-1]

    async def _with_those_above(self, conn: Connection, run_id: str, parent_id: str | None) -> frozenset[str]:
        if parent_id is None:
            return frozenset({run_id})
        if run_id not in self._above:
            if len(self._above) == BATCH:
                self._above.clear()
            self._above[run_id] = frozenset((await conn.execute(_ABOVE, {"run": run_id})).scalars())
        return self._above[run_id]


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


_UP = select(runs.c.id, runs.c.parent_run_id).where(runs.c.id == bindparam("run")).cte("up", recursive=True)
_ABOVE = select(_UP.union(select(runs.c.id, runs.c.parent_run_id).where(runs.c.id == _UP.c.parent_run_id)).c.id)


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

    def has_all(self, newest_id: int) -> bool:
        """Tell whether it has begun, and rows up to this one have been read."""
        return self._began_at is not None and not self.lacks(newest_id)

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

    def read_live(self, edge: LiveEdge, now: Newest) -> Sequence[StreamItem] | None:
        """Return all that comes next, up to these numbers, which are the edge's; None: :meth:`read` has to."""
        has_all = all(cursor.has_all(now[sequence]) for sequence, cursor in self._cursors.items())
        if now is not edge.newest or not has_all:
            return None
        new_events = edge.after(self._seq, self.run_id)
        if new_events is not None:
            self._seq = max(self._seq, now[Numbered.EVENTS])
        return new_events

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
