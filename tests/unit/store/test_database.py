"""Transactions: all or nothing, one view per reader, and a clear error when the database is away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from support.stores.postgres_server import PostgresServer

from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import messages, runs
from turngate.store.sqlite import MOST_IDLE
from turngate.store.tables import conversations

DEADLINE_SECONDS = 20


async def add(database: Database, name: str) -> None:
    async with database.write() as conn:
        await messages.create_conversation(conn, name)


async def names(database: Database) -> list[str]:
    async with database.read() as conn:
        return list((await conn.execute(select(conversations.c.id).order_by(conversations.c.id))).scalars())


class Oops(Exception):  # noqa: N818 - no part of the product raises it
    pass


async def test_an_exception_rolls_back_the_whole_block(database: Database) -> None:
    """Writes before the exception are gone, and the next writer is not blocked."""
    with contextlib.suppress(Oops):
        async with database.write() as conn:
            await messages.create_conversation(conn, "a")
            await messages.create_conversation(conn, "b")
            raise Oops
    await add(database, "c")
    assert await names(database) == ["c"]


async def test_a_refused_statement_rolls_back_the_whole_block(database: Database) -> None:
    """A violated constraint is raised as the integrity error that it is, not as an outage."""
    await add(database, "a")
    both = insert(conversations).values([{"id": name, "created_at": ""} for name in "ba"])
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await conn.execute(both)
    assert await names(database) == ["a"]


async def test_a_cancelled_writer_rolls_back_the_whole_block(database: Database) -> None:
    """A task cancelled in the middle of its transaction leaves neither rows nor a lock."""
    wrote = asyncio.Event()

    async def write() -> None:
        async with database.write() as conn:
            await messages.create_conversation(conn, "a")
            wrote.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await asyncio.wait_for(wrote.wait(), DEADLINE_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await add(database, "b")
    assert await names(database) == ["b"]


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_writer_cancelled_while_it_commits_writes_all_or_nothing(
    database: Database, cancellations: int
) -> None:
    """A writer cancelled at any point of its commit, even repeatedly, leaves the connection free for the next."""
    for number in range(12):
        committing = asyncio.Event()

        async def write(one: str, other: str, committing: asyncio.Event) -> None:
            async with database.write() as conn:
                await messages.create_conversation(conn, one)
                await messages.create_conversation(conn, other)
                committing.set()

        task = asyncio.create_task(write(f"{number}a", f"{number}b", committing))
        await asyncio.wait_for(committing.wait(), DEADLINE_SECONDS)
        for _ in range(cancellations):
            task.cancel()
            for _ in range(number % 4):
                await asyncio.sleep(0)
        await asyncio.wait([task], timeout=DEADLINE_SECONDS)
        assert task.done()
        await add(database, f"{number}c")
    stored = await names(database)
    for number in range(12):
        assert (f"{number}a" in stored) is (f"{number}b" in stored)
        assert f"{number}c" in stored


async def test_a_reader_sees_one_state(database: Database) -> None:
    """Within one ``read`` every statement sees the same rows, whatever is committed in the meantime."""
    await add(database, "a")
    async with database.read() as conn:
        count = select(func.count()).select_from(conversations)
        assert (await conn.execute(count)).scalar_one() == 1
        await add(database, "b")
        assert (await conn.execute(count)).scalar_one() == 1
    assert await names(database) == ["a", "b"]


async def test_readers_may_nest_and_run_in_parallel(database: Database) -> None:
    """A read inside a read, next to others or inside a write neither waits nor sees uncommitted rows."""
    await add(database, "a")
    async with database.read() as outer, database.read() as inner:
        query = select(conversations.c.id)
        assert (await outer.execute(query)).scalars().all() == (await inner.execute(query)).scalars().all() == ["a"]
    async with database.write() as conn:
        await messages.create_conversation(conn, "b")
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await asyncio.gather(*(names(database) for _ in range(8))) == [["a"]] * 8
    async with database.read() as conn:
        held = (await conn.execute(select(conversations.c.id))).scalars().all()
        await asyncio.wait_for(add(database, "c"), DEADLINE_SECONDS)
    assert sorted(held) == ["a", "b"]


async def test_a_read_never_writes(database: Database) -> None:
    """What a reader writes by mistake is rolled back, or refused by the server."""
    with contextlib.suppress(DBAPIError):
        async with database.read() as conn:
            await messages.create_conversation(conn, "a")
    assert await names(database) == []


async def test_writers_of_one_process_take_turns(database: Database, run: runs.Run) -> None:
    """Forty writers that read a value and store it plus one, all at once on SQLite's one lock, lose no count."""

    async def count_up() -> None:
        async with database.write() as conn:
            row = select(runs.runs.c.event_count).where(runs.runs.c.id == run.id).with_for_update()
            count = (await conn.execute(row)).scalar_one()
            await asyncio.sleep(0)
            await conn.execute(update(runs.runs).values(event_count=count + 1))

    await asyncio.gather(*(count_up() for _ in range(40)))
    async with database.read() as conn:
        after = await runs.get(conn, run.id)
    assert after is not None
    assert after.event_count == 40


async def test_a_look_before_the_first_write_belongs_to_no_transaction(database: Database) -> None:
    """What follows a look is one transaction as ever, and rolls back as a whole."""
    with contextlib.suppress(Oops):
        async with database.write() as conn:
            assert (await conn.look(select(conversations.c.id))).all() == []
            await messages.create_conversation(conn, "a")
            raise Oops
    assert await names(database) == []


async def test_a_last_statement_is_stored(database: Database) -> None:
    """Alone, after a look, and after other writes."""
    add_one = insert(conversations)
    async with database.write() as conn:
        await conn.execute_last(add_one, {"id": "a", "created_at": ""})
    async with database.write() as conn:
        await conn.look(select(conversations.c.id))
        await conn.execute_last(add_one, {"id": "b", "created_at": ""})
    async with database.write() as conn:
        await messages.create_conversation(conn, "c")
        await conn.execute_last(add_one, {"id": "d", "created_at": ""})
    assert await names(database) == ["a", "b", "c", "d"]


async def test_a_commit_rings_where_it_was_made_at_once(database: Database) -> None:
    """Without a word of the server's, which announces only transactions that took a number."""
    rings: list[str] = []
    async with database.commits(lambda: rings.append("ring")):
        async with database.write() as conn:
            await messages.create_conversation(conn, "a")
            rings.clear()
        assert rings


async def test_a_wrong_statement_is_a_bug_and_not_an_outage(database: Database) -> None:
    """An error that no retry can cure must not look like "try again": both databases raise the driver's own error."""
    for statement in ("SELECT * FROM nothing", "SELEKT 1"):
        with pytest.raises(DBAPIError):
            async with database.read() as conn:
                await conn.execute(text(statement))
    await add(database, "a")


async def test_a_missing_schema_is_not_an_outage(tmp_path: Path) -> None:
    """A database without migrations gives an error that names the missing table."""
    database = Database(f"sqlite:///{tmp_path}/empty.db")
    try:
        with pytest.raises(DBAPIError, match="no such table"):
            await names(database)
    finally:
        await database.close()


@pytest.fixture
async def unreachable(tmp_path: Path) -> AsyncIterator[dict[str, Database]]:
    """Databases that cannot be opened: a directory that does not exist, a port without a listener."""
    databases = {
        "sqlite": Database(f"sqlite:///{tmp_path}/missing/turngate.db"),
        "postgresql": Database("postgresql+psycopg://turngate@127.0.0.1:1/turngate"),
    }
    yield databases
    for each in databases.values():
        await each.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_an_unreachable_database_is_an_outage(unreachable: dict[str, Database], kind: str) -> None:
    """Reading, writing and migrating all raise the one error that means: nothing was changed, try again."""
    database = unreachable[kind]
    with pytest.raises(UnavailableError):
        await names(database)
    with pytest.raises(UnavailableError):
        await add(database, "a")
    with pytest.raises(UnavailableError):
        await database.migrate()


@pytest.fixture
async def postgresql(postgres, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    database = Database(postgres.fresh_url())
    await database.migrate()
    yield database
    await database.close()


KILL_OTHERS = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def test_a_connection_that_is_lost_in_a_transaction_is_an_outage(postgresql: Database) -> None:
    """If PostgreSQL goes away in a transaction, UnavailableError is raised, nothing is stored, and the next call works."""
    other = Database(postgresql.url)

    async def write_while_it_goes_away() -> None:
        async with postgresql.write() as conn:
            await messages.create_conversation(conn, "a")
            async with other.write() as killer:
                assert (await killer.execute(KILL_OTHERS)).scalar_one() >= 1
            await messages.create_conversation(conn, "b")

    with pytest.raises(UnavailableError):
        await write_while_it_goes_away()
    await other.close()
    await add(postgresql, "c")
    assert await names(postgresql) == ["c"]


async def test_the_server_announces_the_commits_of_others_only(postgresql: Database) -> None:
    """A commit rings once where it was made, although the server announces it to everyone that listens."""
    rings: asyncio.Queue[str] = asyncio.Queue()
    other = Database(postgresql.url)
    async with postgresql.commits(lambda: rings.put_nowait("ring")):
        await asyncio.wait_for(rings.get(), DEADLINE_SECONDS)  # it listens
        async with postgresql.write() as conn:
            await events.append(conn, events.SYSTEM, [("user.noted", {})])
        assert rings.get_nowait()
        async with other.write() as conn:
            await events.append(conn, events.SYSTEM, [("user.noted", {})])
        await asyncio.wait_for(rings.get(), DEADLINE_SECONDS)  # announced after the first commit
        assert rings.empty()
    await other.close()


@pytest.mark.parametrize("rest", [0.0, 60.0])
async def test_lost_connections_in_the_pool_are_replaced(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch, rest: float
) -> None:
    """An idle connection is checked and replaced unseen; a fresh one costs at most one transaction, then all are new."""
    monkeypatch.setattr("turngate.store.postgresql.PING_AFTER_SECONDS", rest)
    await asyncio.gather(*(names(postgresql) for _ in range(3)))
    other = Database(postgresql.url)
    async with other.write() as killer:
        assert (await killer.execute(KILL_OTHERS)).scalar_one() == 3
    await other.close()
    if rest:
        with pytest.raises(UnavailableError):
            await names(postgresql)
    await asyncio.gather(*(add(postgresql, name) for name in "abc"))
    assert await names(postgresql) == ["a", "b", "c"]


async def test_no_free_connection_is_an_outage(postgresql: Database) -> None:
    """When every connection is in use and none becomes free in time, the caller gets an error to try again."""
    pool = postgresql._backend._engine.pool
    pool._timeout = 0.05
    async with asyncio.timeout(DEADLINE_SECONDS):
        held = [postgresql.read() for _ in range(20)]
        for each in held:
            conn = await each.__aenter__()
            await conn.execute(text("SELECT 1"))
        try:
            with pytest.raises(UnavailableError, match="no connection"):
                await names(postgresql)
        finally:
            for each in held:
                await each.__aexit__(None, None, None)
    assert await names(postgresql) == []


def test_the_two_urls_choose_the_two_databases(tmp_path: Path) -> None:
    """One class serves both; the URL decides which."""
    for url, backend in ((f"sqlite:///{tmp_path}/x.db", "Sqlite"), ("postgresql+psycopg://u@h/d", "Postgresql")):
        assert type(Database(url)._backend).__name__ == backend


@pytest.mark.unencrypted
async def test_connections_stay_open_and_none_keeps_a_transaction(sqlite: Database) -> None:
    """The one that was used last is used next, whatever it was used for and however that ended; a few stay open."""
    async with sqlite.glance() as first:
        pass
    with contextlib.suppress(Oops):
        async with sqlite.write() as conn:
            await messages.create_conversation(conn, "a")
            raise Oops
    async with sqlite.read() as conn:
        assert conn is first
        assert (await conn.execute(select(conversations.c.id))).all() == []
    async with contextlib.AsyncExitStack() as stack:
        together = [await stack.enter_async_context(sqlite.glance()) for _ in range(MOST_IDLE + 2)]
    await add(sqlite, "b")
    async with contextlib.AsyncExitStack() as stack:
        again = [await stack.enter_async_context(sqlite.read()) for _ in range(MOST_IDLE + 2)]
        assert sum(each in together for each in again) == MOST_IDLE
        for each in again:
            assert (await each.execute(select(conversations.c.id))).scalars().all() == ["b"]


async def test_a_running_commit_is_awaited_although_its_writer_is_cancelled(sqlite: Database) -> None:
    """SQLite commits in a thread: until that ends no one else gets the connection, and then the rows are there."""
    backend = sqlite._backend
    disk, committing = threading.Event(), asyncio.Event()
    backend._committer.submit(disk.wait)  # a disk that takes its time: the COMMIT is queued after it

    async def write() -> None:
        async with sqlite.write() as conn:
            await messages.create_conversation(conn, "a")
            committing.set()

    writing, following = asyncio.create_task(write()), asyncio.create_task(add(sqlite, "b"))
    try:
        await asyncio.wait_for(committing.wait(), DEADLINE_SECONDS)
        for _ in range(5):
            writing.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        assert not writing.done()
        assert not following.done()
        assert await names(sqlite) == []
    finally:
        disk.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(writing, DEADLINE_SECONDS)
    await asyncio.wait_for(following, DEADLINE_SECONDS)
    assert await names(sqlite) == ["a", "b"]


async def test_a_database_that_cannot_hold_every_text_is_refused(postgres: PostgresServer) -> None:
    """One of PostgreSQL's that was created without a locale counts bytes and translates nothing; the error says the fix."""
    url = postgres.fresh_url(template="template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
    database = Database(url)
    with pytest.raises(ConfigurationError, match="the encoding SQL_ASCII, and texts need UTF8: create it with"):
        async with database.glance():
            pass
    await database.close()
