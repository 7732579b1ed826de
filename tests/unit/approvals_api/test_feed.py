"""The feed of events: who is woken by what, and how soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Executable, make_url, text
from sqlalchemy.engine import CursorResult, Dialect
from support.engine.stack import until
from support.stores.stored_requests import live_run

from turngate.approvals_api.events.feed import EventFeed
from turngate.domain.conversation.messages import Delta
from turngate.store.connection import Parameters, Result
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.live import deltas
from turngate.store.live.watch import BATCH, EVERY_RUN, Follower, LiveEdge, Newest, StreamItem
from turngate.store.sequences import Numbered

NEVER = timedelta(hours=1)
"""Between two looks of a feed that has to learn of every commit."""


class Counting(Database):
    """A database that counts how often events are read. ``reading``: how many connections are lent now."""

    reads = reading = 0

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[Connection]:
        self.reading += 1
        try:
            async with super().glance() as conn:
                yield CountingConnection(conn, self)
        finally:
            self.reading -= 1


@dataclass
class CountingConnection:
    inner: Connection
    database: Counting

    @property
    def dialect(self) -> Dialect:
        return self.inner.dialect

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        self.database.reads += str(statement).startswith("SELECT events.seq")
        return await self.inner.execute(statement, parameters)

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        return await self.inner.run_sync(action)


@pytest.fixture
async def here(database: Database) -> AsyncIterator[Counting]:
    """The database as the process that watches has it open."""
    here = Counting(database.url)
    yield here
    await here.close()


@pytest.fixture
async def feed(here: Counting) -> AsyncIterator[EventFeed]:
    feed = EventFeed(here, poll_every=NEVER)
    yield feed
    await feed.close()


@pytest.fixture
def writer(database: Database, here: Counting) -> Database:
    """On PostgreSQL another process, as it were; on SQLite this one, because it gets no news of others."""
    return here if is_sqlite(database) else database


def is_sqlite(database: Database) -> bool:
    return make_url(database.url).get_backend_name() == "sqlite"


class CountingFollower(Follower):
    """``woken``: how often it continued because something was new."""

    woken = 0

    def read_live(self, edge: LiveEdge, now: Newest) -> Sequence[StreamItem] | None:
        self.woken += 1
        return super().read_live(edge, now)


class Watch:
    """What one watcher has got so far."""

    def __init__(self, feed: EventFeed, run_id: str | None, deltas_of: str | None) -> None:
        self.items: list[StreamItem] = []
        self.follower = CountingFollower(0, run_id=run_id, deltas_of=deltas_of)
        self._batches = feed.batches(self.follower)

    async def collect(self) -> None:
        async for batch in self._batches:
            self.items += batch

    async def has(self, count: int) -> None:
        await until(lambda: asyncio.sleep(0, len(self.items) >= count), f"{count} items")


@asynccontextmanager
async def watching(feed: EventFeed, run_id: str | None = None, *, deltas_of: str | None = None) -> AsyncIterator[Watch]:
    watch = Watch(feed, run_id, deltas_of)
    task = asyncio.create_task(watch.collect())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def tell(database: Database, run_id: str, kind: str = "step.closed") -> None:
    async with database.write() as conn:
        await events.append(conn, run_id, [(kind, {})])


async def at_rest(feed: EventFeed, here: Counting) -> None:
    """Wait until the feed has seen every commit, and its watchers have read what they were woken for."""

    async def look() -> bool:
        newest = await feed.last_seq()
        edge = feed._edge.newest
        has_seen = edge is not None and edge[Numbered.EVENTS] == newest
        return has_seen and here.reading == 0 and not any(each.changed.is_set() for each in feed._watchers)

    await until(look, "rest")


async def test_a_commit_is_seen_at_once(writer: Database, feed: EventFeed) -> None:
    """An event comes without a look in between, on PostgreSQL from another process too; so do a model's words."""
    async with writer.write() as conn:
        run = await live_run(conn, "run_1")
    async with watching(feed, run.id, deltas_of=EVERY_RUN) as watch:
        for count in range(1, 6):
            await tell(writer, run.id)
            await watch.has(count)
        async with writer.write() as conn:
            words = deltas.DeltaBatch([Delta(part=0, kind="text", text="Hello")])
            assert await deltas.begin(conn, run.id, 1, words)
        await watch.has(6)


async def test_only_watchers_of_the_run_or_of_one_above_it_are_woken(
    writer: Database, feed: EventFeed, here: Counting
) -> None:
    """What happens in a sub-agent's run wakes who follows the run above it, and no one who follows another run."""
    async with writer.write() as conn:
        above, other = await live_run(conn, "run_1"), await live_run(conn, "run_2")
        child = await live_run(conn, "run_3", parent_run_id=above.id, parent_tool_call_id="c1", path="agent/helper")
        grandchild = await live_run(
            conn, "run_4", parent_run_id=child.id, parent_tool_call_id="c1", path="agent/helper/x"
        )
    async with watching(feed) as everything, watching(feed, above.id) as of_tree, watching(feed, other.id) as of_other:
        await tell(writer, other.id)
        await of_other.has(1)
        for count in range(1, 11):
            await tell(writer, grandchild.id)
            await of_tree.has(count)
            await everything.has(count + 1)
        await at_rest(feed, here)
        reads, woken = here.reads, of_tree.follower.woken
        await tell(writer, other.id)
        await everything.has(12)
        await of_other.has(2)
        # None of them reads: the two get what the feed has read. The third isn't woken.
        assert (here.reads, of_tree.follower.woken) == (reads, woken)
        assert everything.items[-1] is of_other.items[-1]  # read and decoded once
        assert {item.run_id for item in of_tree.items} == {grandchild.id}


@pytest.mark.parametrize("count", [BATCH, 2 * BATCH + 1])
async def test_more_events_than_a_look_reads_come_from_the_store(
    writer: Database, feed: EventFeed, here: Counting, count: int
) -> None:
    """Each event comes once and in order, to who follows all and to who follows one run; after that, none reads again."""
    async with writer.write() as conn:
        run, other = await live_run(conn, "run_1"), await live_run(conn, "run_2")
    async with watching(feed) as everything, watching(feed, run.id) as of_run:
        await tell(writer, run.id)
        await of_run.has(1)
        await at_rest(feed, here)
        async with writer.write() as conn:
            for run_id in (run.id, other.id):
                await events.append(conn, run_id, [("step.closed", {"n": n}) for n in range(count)])
        await of_run.has(1 + count)
        await everything.has(1 + 2 * count)
        await at_rest(feed, here)
        reads = here.reads
        await tell(writer, run.id)
        await of_run.has(2 + count)
        await everything.has(2 + 2 * count)
    assert here.reads == reads
    assert [event.seq for event in everything.items] == list(range(1, 3 + 2 * count))
    assert of_run.items == [event for event in everything.items if event.run_id == run.id]


async def test_a_lost_connection_that_listens_is_opened_again(
    database: Database, writer: Database, feed: EventFeed
) -> None:
    """What is committed while it is away is seen when it is back. SQLite has no such connection, and nothing to lose."""
    async with writer.write() as conn:
        run = await live_run(conn, "run_1")
    async with watching(feed, run.id) as watch:
        await tell(writer, run.id)
        await watch.has(1)
        if not is_sqlite(database):
            async with writer.write() as conn:
                lost = await conn.execute(
                    # Another test's store on the same server listens too.
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE query = 'LISTEN turngate' AND datname = current_database()"
                    )
                )
                assert lost.scalars().all() == [True]
        await tell(writer, run.id)
        await watch.has(2)
        await tell(writer, run.id)
        await watch.has(3)
