"""Live events: one poller per process wakes every watcher; each watcher reads the durable rows itself.

A poller, because SQLite has no notifications and the events of other processes (the worker writes most) must be seen
too. It runs only while somebody watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta

from turngate.domain.errors import UnavailableError
from turngate.store import events
from turngate.store.database import Database
from turngate.store.events import Event

logger = logging.getLogger(__name__)

POLL_EVERY = timedelta(milliseconds=100)
BATCH = 500


class EventFeed:
    """Follows the event log. Belongs to one event loop; :meth:`close` it before the database."""

    def __init__(self, database: Database, *, poll_every: timedelta = POLL_EVERY) -> None:
        self._database = database
        self._poll_seconds = poll_every.total_seconds()
        self._seen = -1
        self._changed = asyncio.Event()
        self._watchers = 0
        self._poller: asyncio.Task[None] | None = None
        self._closed = False

    async def last_seq(self) -> int:
        """Return the newest sequence number: following from here shows only what happens from now on."""
        async with self._database.read() as conn:
            return await events.last_seq(conn)

    async def follow(self, after: int, run_id: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield every event after ``after`` (exclusive) once, in order: first the stored ones, then live.

        ``run_id``: of one run only. Ends with :meth:`close`. Raises UnavailableError when the store goes away; follow
        again from the last event's ``seq``.
        """
        with self._watching():
            while not self._closed:
                # Subscribe first, read second: an event committed in between wakes us instead of being missed.
                changed = self._changed
                async with self._database.read() as conn:
                    batch = await events.after(conn, after, run_id=run_id, limit=BATCH)
                for event in batch:
                    after = event.seq
                    yield event
                if not batch:
                    await changed.wait()

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        self._watchers += 1
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll(), name="event-feed")
        try:
            yield
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._stop()

    async def close(self) -> None:
        """End every watcher's events and stop polling. Safe to repeat."""
        poller = self._poller
        self._closed = True
        self._changed.set()
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
                newest = await self.last_seq()
            except UnavailableError as error:
                if not away:
                    logger.warning("live events pause, because the store is away: %s", error)
                away = True
            else:
                away = False
                if newest != self._seen:
                    self._seen = newest
                    woken, self._changed = self._changed, asyncio.Event()
                    woken.set()
            await asyncio.sleep(self._poll_seconds)
