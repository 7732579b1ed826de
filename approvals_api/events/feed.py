"""Live events, progress and deltas: one poller per process wakes every watcher; each watcher reads the stored rows itself.

A poller, because SQLite has no notifications and what other processes write (the worker writes most) must be seen
too. It runs only while someone watches, and runs one query for all of them; more often while a model streams words that
someone follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta

from turngate.domain.errors import UnavailableError
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.live import watch
from turngate.store.live.watch import Follower, Newest, StreamItem

logger = logging.getLogger(__name__)

POLL_EVERY = timedelta(milliseconds=100)
POLL_WHILE_STREAMING = timedelta(milliseconds=20)
"""While deltas arrive: they are up to 30 ms old when they are stored, and must be seen within 150 ms."""
STREAMS_FOR = timedelta(seconds=2)
"""After the last deltas. While a model is silent for longer, the poller keeps its usual pace."""


class EventFeed:
    """Follows what is written to the store. Belongs to one event loop; :meth:`close` it before the database."""

    def __init__(self, database: Database, *, poll_every: timedelta = POLL_EVERY) -> None:
        self._database = database
        self._poll_seconds = poll_every.total_seconds()
        self._seen = Newest(-1, -1, -1)
        self._an_event = asyncio.Event()
        self._progress = asyncio.Event()  # progress, or an event
        self._deltas = asyncio.Event()  # deltas, or either of the two
        self._listeners = 0
        self._streamed_at = -math.inf
        self._watchers = 0
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
        with self._watching(listens=deltas_of is not None):
            while not self._closed:
                # Subscribe first, read second: what is committed in between wakes us instead of being missed.
                changed = self._progress if with_progress else self._an_event
                if deltas_of is not None:
                    changed = self._deltas
                async with self._database.read() as conn:
                    batch = await follower.read(conn)
                for entry in batch:
                    yield entry
                if not batch:
                    await changed.wait()

    @contextlib.contextmanager
    def _watching(self, *, listens: bool) -> Iterator[None]:
        self._watchers += 1
        self._listeners += listens
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll(), name="event-feed")
        try:
            yield
        finally:
            self._watchers -= 1
            self._listeners -= listens
            if self._watchers == 0:
                self._stop()

    async def close(self) -> None:
        """End every watcher's events and stop polling. Safe to repeat."""
        poller = self._poller
        self._closed = True
        for each in (self._an_event, self._progress, self._deltas):
            each.set()
        self._stop()
        if poller is not None:
            await asyncio.gather(poller, return_exceptions=True)

    def _stop(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def _poll(self) -> None:
        away = False
        while True:
            try:
                async with self._database.glance() as conn:
                    newest = await watch.newest(conn)
            except UnavailableError as error:
                if not away:
                    logger.warning("live events pause, because the store is away: %s", error)
                away = True
            else:
                away = False
                self._wake(newest)
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        streams = self._listeners and time.monotonic() - self._streamed_at < STREAMS_FOR.total_seconds()
        return min(self._poll_seconds, POLL_WHILE_STREAMING.total_seconds()) if streams else self._poll_seconds

    def _wake(self, newest: Newest) -> None:
        """Wake the watchers that this concerns: many want no progress, and a tool may report ten times a second."""
        before, self._seen = self._seen, newest
        an_event = newest.event_seq != before.event_seq
        progress = newest.progress_id != before.progress_id
        deltas = newest.delta_id != before.delta_id
        if deltas:
            self._streamed_at = time.monotonic()
        if an_event:
            woken, self._an_event = self._an_event, asyncio.Event()
            woken.set()
        if an_event or progress:
            woken, self._progress = self._progress, asyncio.Event()
            woken.set()
        if an_event or progress or deltas:
            woken, self._deltas = self._deltas, asyncio.Event()
            woken.set()
