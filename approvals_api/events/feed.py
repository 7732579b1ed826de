"""Live events, progress and deltas: one poller per process reads the new events and wakes the watchers.

A watcher that has seen all earlier events gets the new ones from there. Whatever else it lacks, it reads from the store itself.

The database says at once that something was committed, as far as it can (:meth:`Database.commits`). The poller also looks ten
times a second, for what other processes write to SQLite and for what was not said; more often while a model streams
words that someone follows. It runs only while someone watches, asks once for all watchers, and wakes those whose runs
something is new about.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import anyio

from turngate.domain.errors import UnavailableError
from turngate.store.clock import from_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.live import watch
from turngate.store.live.watch import Follower, LiveEdge, StreamItem
from turngate.store.sequences import Numbered

logger = logging.getLogger(__name__)

POLL_EVERY = timedelta(milliseconds=100)
POLL_WHILE_STREAMING = timedelta(milliseconds=20)
"""While deltas arrive: they are up to 30 ms old when they are stored, and must be seen within 150 ms."""
STREAMS_FOR = timedelta(seconds=2)
"""After the last deltas. While a model is silent for longer, the poller keeps its usual pace."""


@dataclass(eq=False)
class _Watcher:
    """Someone who follows."""

    follower: Follower
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class EventFeed:
    """Follows what is written to the store. Belongs to one event loop; :meth:`close` it before the database."""

    def __init__(self, database: Database, *, poll_every: timedelta = POLL_EVERY) -> None:
        self._database = database
        self._poll_seconds = poll_every.total_seconds()
        self._edge = LiveEdge()
        self._watchers: set[_Watcher] = set()
        self._committed = asyncio.Event()
        self._streamed_at = -math.inf
        self._poller: asyncio.Task[None] | None = None
        self._closed = False

    async def last_seq(self) -> int:
        """Return the newest sequence number: following from here shows only what happens from now on."""
        async with self._database.read() as conn:
            return await events.last_seq(conn)

    async def follow(
        self,
        after: int,
        run_id: str | None = None,
        *,
        with_progress: bool = True,
        progress_of: str | None = None,
        deltas_of: str | None = None,
    ) -> AsyncGenerator[StreamItem, None]:
        """Yield every event after ``after`` (exclusive) once, in order, with progress and deltas between: stored, then live.

        ``run_id``: of one run and its sub-agents' runs, those that start meanwhile too. ``with_progress`` False: no
        progress. ``progress_of``: progress of this run and its sub-agents' runs only. ``deltas_of``: the same for deltas;
        None: no deltas, :data:`turngate.store.live.watch.EVERY_RUN`: of every run that is followed. Calls that have
        ended yield no progress, responses that are stored no deltas. Ends with :meth:`close`. Raises UnavailableError when
        the store goes away; follow again from the last event's ``seq`` and get again the progress of calls that execute and
        the deltas of responses that are still streaming.
        """
        follower = Follower(
            after, run_id=run_id, with_progress=with_progress, progress_of=progress_of, deltas_of=deltas_of
        )
        async with contextlib.aclosing(self.batches(follower)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def batches(
        self, follower: Follower, *, until: anyio.Event | None = None
    ) -> AsyncGenerator[Sequence[StreamItem], None]:
        """Yield what :meth:`follow` does, in batches: what was new at each look. ``until``: ends them when it is set."""
        watcher = _Watcher(follower)
        # Subscribe first, read second: what is committed in between wakes us instead of being missed.
        with self._watching(watcher, until):
            if self._is_over(until):
                return
            async with self._database.glance() as conn:
                newest = await watch.newest(conn)
                batch: Sequence[StreamItem] | None = await follower.read(conn, newest)
            while True:
                if batch:
                    yield batch
                while not (self._is_over(until) or follower.lacks(newest)):
                    await watcher.changed.wait()
                    watcher.changed.clear()
                    newest = self._edge.newest or newest
                if self._is_over(until):
                    return
                batch = follower.read_live(self._edge, newest)
                if batch is None:
                    async with self._database.glance() as conn:
                        batch = await follower.read(conn, newest)

    def _is_over(self, until: anyio.Event | None) -> bool:
        return self._closed or (until is not None and until.is_set())

    @contextlib.contextmanager
    def _watching(self, watcher: _Watcher, until: anyio.Event | None) -> Iterator[None]:
        self._watchers.add(watcher)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll(), name="event-feed")
        ending = None if until is None else asyncio.create_task(_wake_at(until, watcher), name="end-of-watching")
        try:
            yield
        finally:
            if ending is not None:
                ending.cancel()
            self._watchers.discard(watcher)
            if not self._watchers:
                self._stop()

    async def close(self) -> None:
        """End every watcher's events and stop polling. Safe to repeat."""
        poller = self._poller
        self._closed = True
        self._wake_all()
        self._stop()
        if poller is not None:
            await asyncio.gather(poller, return_exceptions=True)

    def _stop(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def _poll(self) -> None:
        away = False
        async with self._database.commits(self._committed.set):
            while True:
                self._committed.clear()
                try:
                    await self._look()
                except UnavailableError as error:
                    if not away:
                        logger.warning("live events pause, because the store is away: %s", error)
                    away = True
                else:
                    away = False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._committed.wait()

    def _pause(self) -> float:
        streams = time.monotonic() - self._streamed_at < STREAMS_FOR.total_seconds()
        if streams and any(Numbered.DELTAS in watcher.follower.sequences for watcher in self._watchers):
            return min(self._poll_seconds, POLL_WHILE_STREAMING.total_seconds())
        return self._poll_seconds

    async def _look(self) -> None:
        """Wake the watchers of what is new: many follow one run, and a tool may report ten times a second."""
        seen = self._edge.newest
        async with self._database.glance() as conn:
            look = await self._edge.look(conn)
            news = dict[Numbered, set[str]]()
            if seen is not None:
                for sequence in (Numbered.PROGRESS, Numbered.DELTAS):
                    if seen[sequence] < look.newest[sequence]:
                        news[sequence] = await self._changed_runs(conn, sequence, seen[sequence], look.newest[sequence])
        self._edge.add(look)
        if look.events is None:
            self._wake_all()
        elif look.events:
            news[Numbered.EVENTS] = set[str]().union(*(run_ids for _event, run_ids in look.events))
            self._count_lag(look.events[0][0].created_at)
        if Numbered.DELTAS in news:
            self._streamed_at = time.monotonic()
        for watcher in self._watchers:
            run_id = watcher.follower.run_id
            for sequence in watcher.follower.sequences & news.keys():
                if run_id is None or run_id in news[sequence]:
                    watcher.changed.set()

    def _count_lag(self, created_at: str) -> None:
        meter = self._database.meter
        if meter is not None:
            lag = now() - from_text(created_at)
            meter.count([("events.seen", {"seconds": lag / timedelta(seconds=1)})])

    def _wake_all(self) -> None:
        for watcher in self._watchers:
            watcher.changed.set()

    async def _changed_runs(self, conn: Connection, sequence: Numbered, seen: int, upto: int) -> set[str]:
        """Return the runs that something is new about, and those above them; nothing where no one follows single runs."""
        followers = [watcher.follower for watcher in self._watchers]
        if not any(each.run_id is not None and sequence in each.sequences for each in followers):
            return set()
        return await watch.runs_between(conn, sequence, seen, upto)


async def _wake_at(until: anyio.Event, watcher: _Watcher) -> None:
    await until.wait()
    watcher.changed.set()
