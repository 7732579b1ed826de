"""What a watcher reads: events, progress and deltas in one order, of every run or of one with its sub-agents' runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select

from turngate.store import sequences
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.live import deltas, progress
from turngate.store.live.deltas import Deltas
from turngate.store.live.progress import Progress
from turngate.store.sequences import Numbered
from turngate.store.tables import runs

BATCH = 500

LiveItem = Progress | Deltas
StreamItem = Event | LiveItem
EVERY_RUN = ""
"""In place of a run's id: deltas of all that are followed."""

_TREE = select(runs.c.id).where(runs.c.id == bindparam("run")).cte("tree", recursive=True)
_FAMILY = select(_TREE.union(select(runs.c.id).where(runs.c.parent_run_id == _TREE.c.id)).c.id)


class Newest(NamedTuple):
    """How far the sequences have come."""

    event_seq: int
    progress_id: int
    delta_id: int = 0


async def newest(conn: Connection) -> Newest:
    """Return how far events, progress and deltas have come: one look at three rows tells whether anything is new."""
    last = await sequences.newest(conn)
    return Newest(last.get(Numbered.EVENTS, 0), last.get(Numbered.PROGRESS, 0), last.get(Numbered.DELTAS, 0))


async def family(conn: Connection, run_id: str) -> list[str]:
    """Return the run and the runs of its sub-agents, however deep."""
    return list((await conn.execute(_FAMILY, {"run": run_id})).scalars())


class _Sayings:
    """A watcher's place among progress, or among deltas."""

    def __init__(self, run_id: str | None, read: Callable[..., Coroutine[Any, Any, Sequence[LiveItem]]]) -> None:
        self._run_id = run_id
        self._read = read
        self._id = 0
        self._began_at: int | None = None

    async def read(self, conn: Connection, newest_id: int) -> Sequence[LiveItem]:
        """Return what comes next; all there is if it is less than a batch."""
        if self._began_at is None:
            self._began_at = newest_id
        if newest_id <= self._id:
            return ()
        return await self._read(conn, self._id, self._began_at, self._run_id)

    def given(self, found: Sequence[LiveItem], count: int, newest_id: int) -> None:
        """Continue behind the first ``count`` of what was found."""
        if count < len(found):
            self._id = found[count].id - 1
        else:
            self._id = found[-1].id if len(found) == BATCH else newest_id


class Follower:
    """One watcher's place. Each :meth:`read` gives what comes next; events, progress and deltas each once.

    ``after``: the last event that was seen. ``run_id``: of this run and its sub-agents' runs only. ``progress_of``: the
    same for progress alone (None: as the events). ``with_progress`` False: no progress. ``deltas_of``: the same for deltas
    (None: no deltas, :data:`EVERY_RUN`: as the events).

    Progress from before the first look is given only of calls that execute, deltas only of responses that are still made:
    for others the result has come.
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
        self._run_id = run_id
        self._progress = _Sayings(progress_of or run_id, _progress) if with_progress else None
        self._deltas = None if deltas_of is None else _Sayings(deltas_of or run_id, _deltas)

    async def read(self, conn: Connection) -> list[StreamItem]:
        """Return what comes next in order, some hundreds at most of each kind; nothing when there is no more now."""
        now = await newest(conn)
        happened = await self._events(conn, now)
        found = [
            (sayings, newest_id, await sayings.read(conn, newest_id))
            for sayings, newest_id in ((self._progress, now.progress_id), (self._deltas, now.delta_id))
            if sayings is not None
        ]
        # What stands behind the end of another, cut off list waits: something of that list may belong before it.
        ends = [happened[-1].seq] if len(happened) == BATCH else []
        ends += [said[-1].after_seq for _sayings, _newest_id, said in found if len(said) == BATCH]
        horizon = min(ends, default=math.inf)
        told: list[StreamItem] = [event for event in happened if event.seq <= horizon]
        self._seq = max(self._seq, int(min(horizon, max(self._seq, now.event_seq))))
        for sayings, newest_id, said in found:
            said_now = [each for each in said if each.after_seq <= horizon]
            sayings.given(said, len(said_now), newest_id)
            told += said_now
        return sorted(told, key=_place)

    async def _events(self, conn: Connection, now: Newest) -> Sequence[Event]:
        if now.event_seq <= self._seq:
            return ()
        run_ids = None if self._run_id is None else await family(conn, self._run_id)
        return await events.after(conn, self._seq, run_ids=run_ids, limit=BATCH)


async def _progress(conn: Connection, last: int, began_at: int, run_id: str | None) -> Sequence[LiveItem]:
    run_ids = None if run_id is None else await family(conn, run_id)
    return await progress.after(conn, last, finished_from=began_at, run_ids=run_ids, limit=BATCH)


async def _deltas(conn: Connection, last: int, began_at: int, run_id: str | None) -> Sequence[LiveItem]:
    # In one statement: it is asked some thirty times a second while a model talks.
    run_ids = None if run_id is None else _FAMILY.params(run=run_id)
    return await deltas.after(conn, last, ended_from=began_at, run_ids=run_ids, limit=BATCH)


def _place(told: StreamItem) -> tuple[int, int, int]:
    """Return where it stands in the one order: what is said comes right behind the newest event of its time."""
    match told:
        case Event():
            return (told.seq, 0, 0)
        case Progress():
            return (told.after_seq, 1, told.id)
        case Deltas():
            return (told.after_seq, 2, told.id)
