"""The store on SQLite. It runs on the event loop's own thread (docs/adr/0002).

A statement takes tens of microseconds, a hop to a driver thread and back several times that. What can take long does not
block the loop: the wait for the write lock is an ``asyncio.sleep``, and a commit, which waits for the disk, runs in a thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import sqlalchemy
from sqlalchemy import Executable, NullPool, event
from sqlalchemy.engine import CursorResult, Dialect, make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from turngate.domain.text.sqlite_urls import sqlite_file
from turngate.store.connection import Fact, Parameters, Result
from turngate.store.prepared import Prepared, is_one, prepared

WRITE_LOCK_SECONDS = 10.0
"""How long a write waits for another process that writes to the same file."""

MOST_SCRUBBED_BYTES = 4 * 1024**3
"""Files up to this size are rewritten while others wait to write; a larger one would make their writes fail."""

MOST_IDLE = 4
"""How many connections stay open while no one uses them."""


class _SqliteConnection:
    """Runs statements on the event loop's thread. It stays open: checking one out of a pool takes longer than a look-up."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        # SQLAlchemy sends nothing for it, but thinks that there is a transaction. Else Alembic would commit for itself.
        connection.begin()
        self.sync = connection
        self.facts: list[Fact] | None = None
        self._dialect = connection.dialect
        self._driver = cast("sqlite3.Connection", connection.connection.driver_connection)

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        form = prepared(statement, parameters, self._dialect)
        if form is None:
            return self.sync.execute(statement, parameters)
        return run_prepared(self._driver, form, parameters)

    look = execute_last = execute

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        return action(self.sync)

    def send(self, command: str) -> None:
        """Begin or end a transaction. Raises what SQLAlchemy raises."""
        try:
            self._driver.execute(command)
        except sqlite3.Error as error:
            raise DBAPIError.instance(command, None, error, sqlite3.Error) from error

    def roll_back(self) -> None:
        """Roll back, unless SQLite has done so itself (a full disk): a second ROLLBACK would hide the error that caused it."""
        if self._driver.in_transaction:
            self.send("ROLLBACK")


class Sqlite:
    """One writer at a time, and readers as needed. Writers of this process queue; those of others are waited for."""

    shares_sessions = False

    def __init__(self, url: str) -> None:
        path = make_url(url).set(drivername="sqlite", database=str(sqlite_file(url)))
        # AUTOCOMMIT: SQLAlchemy sends no BEGIN or COMMIT of its own; `read` and `write` send theirs.
        self._engine = sqlalchemy.create_engine(
            path,
            isolation_level="AUTOCOMMIT",
            connect_args={"check_same_thread": False, "timeout": 0},
            poolclass=NullPool,
        )
        event.listen(self._engine, "connect", _on_connect)
        self._idle: list[_SqliteConnection] = []
        self._closed = False
        self._writing = asyncio.Lock()
        self._rings: set[Callable[[], None]] = set()
        self._committer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turngate-commit")

    def _take(self) -> _SqliteConnection:
        # The one used last: SQLite keeps pages in memory for each, and forgets them when another one has written.
        return self._idle.pop() if self._idle else _SqliteConnection(self._engine.connect())

    def _give_back(self, connection: _SqliteConnection) -> None:
        if self._closed or len(self._idle) == MOST_IDLE:
            connection.sync.close()
        else:
            self._idle.append(connection)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[_SqliteConnection]:
        """Open one view: every statement sees the same state."""
        connection = self._take()
        try:
            connection.send("BEGIN DEFERRED")
            yield connection
        finally:
            self._end(connection)

    def glance(self) -> AbstractAsyncContextManager[_SqliteConnection]:
        """Lend a connection on which each statement is its own transaction."""
        return _Glance(self._take, self._give_back)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[_SqliteConnection]:
        """Open one transaction once earlier writers are done; it commits at the end of the block."""
        # Counted from here: else each writer in the queue would wait as long again for the same lock.
        deadline = asyncio.get_running_loop().time() + WRITE_LOCK_SECONDS
        async with self._writing:
            connection = self._take()
            try:
                await self._begin(connection, deadline)
                yield connection
                await self._commit(connection)
            finally:
                self._end(connection)

    def _end(self, connection: _SqliteConnection) -> None:
        try:
            connection.roll_back()
        except DBAPIError:
            connection.sync.close()
            raise
        self._give_back(connection)

    @asynccontextmanager
    async def commits(self, ring: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``ring`` after each commit of this object. SQLite doesn't announce those of other processes."""
        self._rings.add(ring)
        try:
            yield
        finally:
            self._rings.discard(ring)

    async def _begin(self, connection: _SqliteConnection, deadline: float) -> None:
        """Take the write lock at once: a read transaction that upgrades later fails whatever the timeout."""
        pause = 0.001
        while True:
            try:
                connection.send("BEGIN IMMEDIATE")
            except OperationalError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.02)
            else:
                return

    async def _commit(self, connection: _SqliteConnection) -> None:
        """Commit in a thread. A cancelled caller still waits for it, so no one else gets the connection half-way.

        However often it is cancelled: a worker that shuts down cancels its tasks more than once.
        """
        loop = asyncio.get_running_loop()
        commit = loop.run_in_executor(self._committer, connection.send, "COMMIT")
        cancelled: asyncio.CancelledError | None = None
        while not commit.done():
            try:
                await asyncio.wait([commit])
            except asyncio.CancelledError as error:
                cancelled = error
        failure = commit.exception()
        if failure is None:
            for ring in self._rings:
                ring()
        if (stopped := cancelled or failure) is not None:
            raise stopped

    async def scrub(self) -> Sequence[str]:
        """Rewrite the file (``VACUUM``) and empty its write-ahead log, in a thread and on a connection of its own.

        ``secure_delete`` would not be enough: it leaves what was moved when pages were split.
        """
        async with self._writing:  # writers of this process queue; those of others try again for a while
            return await asyncio.to_thread(_scrub, make_url(self._engine.url).database or "")

    async def close(self) -> None:
        """Close every connection, after the last commit."""
        self._closed = True
        while self._idle:
            self._idle.pop().sync.close()
        self._committer.shutdown(wait=True)


def _scrub(path: str) -> Sequence[str]:
    size = Path(path).stat().st_size
    if size > MOST_SCRUBBED_BYTES:
        again = "Stop everything that uses it and run `turngate erase --scrub`"
        return [f"The database file ({size // 1024**2:,} MiB) was not rewritten, so it still holds old bytes. {again}."]
    driver = sqlite3.connect(path, isolation_level=None, timeout=WRITE_LOCK_SECONDS)
    try:
        driver.execute("VACUUM")
        deadline = time.monotonic() + WRITE_LOCK_SECONDS
        while driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # someone still reads from the log
            if time.monotonic() > deadline:
                return ["The write-ahead log is in use and still holds old bytes: run `turngate erase --scrub` later."]
            time.sleep(0.05)
    except sqlite3.Error as error:
        again = "run `turngate erase --scrub` when nothing else uses it"
        return [f"The database file could not be rewritten ({error}), so it still holds old bytes: {again}."]
    finally:
        driver.close()
    return []


def run_prepared(driver: sqlite3.Connection, form: Prepared, parameters: Parameters | None) -> CursorResult[Any]:
    """Run a statement on the driver. Raises what SQLAlchemy raises."""
    try:
        if is_one(parameters):
            cursor = driver.execute(form.sql, form.bind(parameters or {}))
        else:
            rows = cast("Sequence[Mapping[str, Any]]", parameters)
            cursor = driver.executemany(form.sql, [form.bind(row) for row in rows])
        fetched = cursor.fetchall()
    except sqlite3.Error as error:
        raise DBAPIError.instance(form.sql, None, error, sqlite3.Error) from error
    return form.result(fetched, cursor)


@dataclass
class _Glance:
    """A connection for a block, without a generator around it: a turn has more of these than of all other blocks."""

    take: Callable[[], _SqliteConnection]
    give_back: Callable[[_SqliteConnection], None]
    connection: _SqliteConnection | None = None

    async def __aenter__(self) -> _SqliteConnection:
        self.connection = self.take()
        return self.connection

    async def __aexit__(self, *_error: object) -> None:
        if self.connection is not None:
            self.give_back(self.connection)


def _on_connect(dbapi_connection: Any, _record: Any) -> None:
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA busy_timeout=5000")  # for the two pragmas below, while another process opens the file
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA busy_timeout=5")  # from here on a lock is waited for without blocking the event loop
    cursor.close()
