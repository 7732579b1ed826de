"""What a watcher reads: events and progress in one order, of every run or of one with its sub-agents' runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, select

from turngate.store import events, progress
from turngate.store.database import Connection
from turngate.store.events import Event
from turngate.store.progress import Progress
from turngate.store.tables import event_counter, runs

BATCH = 500

Told = Event | Progress

_COUNTERS = select(event_counter.c.id, event_counter.c.last_seq)
_TREE = select(runs.c.id).where(runs.c.id == bindparam("run")).cte("tree", recursive=True)
_FAMILY = select(_TREE.union(select(runs.c.id).where(runs.c.parent_run_id == _TREE.c.id)).c.id)


class Newest(NamedTuple):
    """How far both sequences have come."""

    event_seq: int
    progress_id: int


async def newest(conn: Connection) -> Newest:
    """Return how far events and progress have come: one look at two rows tells whether anything is new."""
    counters = {row.id: int(row.last_seq) for row in await conn.execute(_COUNTERS)}
    return Newest(counters.get(1, 0), counters.get(progress.COUNTER, 0))


async def family(conn: Connection, run_id: str) -> list[str]:
    """Return the run and the runs of its sub-agents, however deep."""
    return list((await conn.execute(_FAMILY, {"run": run_id})).scalars())


class Follower:
    """One watcher's place. Each :meth:`read` gives what comes next; events and progress each once.

    ``after``: the last event that was seen. ``run_id``: of this run and its sub-agents' runs only. ``progress_of``: the
    same for progress alone (None: as the events). ``with_progress`` False: events only.

    Progress from before the first look is given only of calls that execute: for others the result has come.
    """

    def __init__(
        self, after: int, *, run_id: str | None = None, with_progress: bool = True, progress_of: str | None = None
    ) -> None:
        self._seq = after
        self._run_id = run_id
        self._with_progress = with_progress
        self._progress_of = progress_of or run_id
        self._progress_id = 0
        self._began_at: int | None = None

    async def read(self, conn: Connection) -> list[Told]:
        """Return the next events and progress in order, about a thousand at most; nothing when there is no more now."""
        now = await newest(conn)
        if self._began_at is None:
            self._began_at = now.progress_id
        happened = await self._events(conn, now)
        said = await self._progress(conn, now, self._began_at)
        # What stands behind the end of the other, cut off list waits: something of that list may belong before it.
        last_seq = happened[-1].seq if len(happened) == BATCH else math.inf
        last_place = said[-1].after_seq if len(said) == BATCH else math.inf
        events_now = [event for event in happened if event.seq <= last_place]
        said_now = [each for each in said if each.after_seq <= last_seq]
        self._seq = max(self._seq, int(min(last_seq, last_place, max(self._seq, now.event_seq))))
        if len(said_now) < len(said):
            self._progress_id = said[len(said_now)].id - 1
        elif len(said) == BATCH:
            self._progress_id = said[-1].id
        else:
            self._progress_id = now.progress_id
        return sorted([*events_now, *said_now], key=_place)

    async def _events(self, conn: Connection, now: Newest) -> Sequence[Event]:
        if now.event_seq <= self._seq:
            return ()
        run_ids = None if self._run_id is None else await family(conn, self._run_id)
        return await events.after(conn, self._seq, run_ids=run_ids, limit=BATCH)

    async def _progress(self, conn: Connection, now: Newest, began_at: int) -> Sequence[Progress]:
        if not self._with_progress or now.progress_id <= self._progress_id:
            return ()
        run_ids = None if self._progress_of is None else await family(conn, self._progress_of)
        return await progress.after(conn, self._progress_id, finished_from=began_at, run_ids=run_ids, limit=BATCH)


def _place(told: Told) -> tuple[int, int]:
    """Return where it stands in the one order: progress comes right behind the newest event of its time."""
    return (told.seq, 0) if isinstance(told, Event) else (told.after_seq, told.id)
