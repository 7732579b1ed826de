"""The store on SQLite. It runs on the event loop's own thread (docs/adr/0002).

A statement takes tens of microseconds, a hop to a driver thread and back several times that. What can take long does not
block the loop: the wait for the write lock is an ``asyncio.sleep``, and a commit, which waits for the disk, runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import Executable, event
from sqlalchemy.engine import CursorResult, Dialect, make_url
from sqlalchemy.exc import OperationalError

from turngate.store.connection import Parameters, Result
from turngate.store.prepared import prepared

WRITE_LOCK_SECONDS = 10.0
"""How long a write waits for another process that writes to the same file."""


class _SqliteConnection:
    """Runs statements on the event loop's thread."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self.sync = connection

    @property
    def dialect(self) -> Dialect:
        return self.sync.dialect

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        form = prepared(statement, parameters, self.sync.dialect)
        driver = self.sync.connection.driver_connection
        if form is None or driver is None:
            return self.sync.execute(statement, parameters)
        return form.run(driver, parameters)

    look = execute_last = execute

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        return action(self.sync)


class Sqlite:
    """One writer connection, and readers as needed. Writers of this process queue; those of others are waited for."""

    def __init__(self, url: str) -> None:
        path = make_url(url).set(drivername="sqlite")
        # AUTOCOMMIT: SQLAlchemy sends no BEGIN or COMMIT of its own; `read` and `write` send theirs.
        self._engine = sqlalchemy.create_engine(
            path,
            isolation_level="AUTOCOMMIT",
            connect_args={"check_same_thread": False, "timeout": 0},
            pool_size=4,
            max_overflow=-1,
        )
        event.listen(self._engine, "connect", _on_connect)
        self._writing = asyncio.Lock()
        self._rings: set[Callable[[], None]] = set()
        self._committer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turngate-commit")

    @asynccontextmanager
    async def read(self) -> AsyncIterator[_SqliteConnection]:
        """Open one view: every statement sees the same state."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN DEFERRED")
            try:
                yield _SqliteConnection(connection)
            finally:
                _roll_back(connection)

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[_SqliteConnection]:
        """Lend a connection on which each statement is its own transaction."""
        with self._engine.connect() as connection:
            yield _SqliteConnection(connection)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[_SqliteConnection]:
        """Open one transaction once earlier writers are done; it commits at the end of the block."""
        # Counted from here: else each writer in the queue would wait as long again for the same lock.
        deadline = asyncio.get_running_loop().time() + WRITE_LOCK_SECONDS
        async with self._writing:
            with self._engine.connect() as connection:
                await self._begin(connection, deadline)
                try:
                    yield _SqliteConnection(connection)
                except BaseException:
                    _roll_back(connection)
                    raise
                await self._commit(connection)

    @asynccontextmanager
    async def commits(self, ring: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``ring`` after each commit of this object. SQLite doesn't announce those of other processes."""
        self._rings.add(ring)
        try:
            yield
        finally:
            self._rings.discard(ring)

    async def _begin(self, connection: sqlalchemy.Connection, deadline: float) -> None:
        """Take the write lock at once: a read transaction that upgrades later fails whatever the timeout."""
        pause = 0.001
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            except OperationalError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.02)
            else:
                return

    async def _commit(self, connection: sqlalchemy.Connection) -> None:
        """Commit in a thread. A cancelled caller still waits for it, so no one else gets the connection half-way.

        However often it is cancelled: a worker that shuts down cancels its tasks more than once.
        """
        loop = asyncio.get_running_loop()
        commit = loop.run_in_executor(self._committer, connection.exec_driver_sql, "COMMIT")
        cancelled: asyncio.CancelledError | None = None
        while not commit.done():
            try:
                await asyncio.wait([commit])
            except asyncio.CancelledError as error:
                cancelled = error
        failure = commit.exception()
        if failure is not None:
            _roll_back(connection)
        else:
            for ring in self._rings:
                ring()
        if (stopped := cancelled or failure) is not None:
            raise stopped

    async def close(self) -> None:
        """Close every connection, after the last commit."""
        self._engine.dispose()
        self._committer.shutdown(wait=True)


def _roll_back(connection: sqlalchemy.Connection) -> None:
    """Roll back, unless SQLite has done so itself (a full disk): a second ROLLBACK would hide the error that caused it."""
    driver = connection.connection.driver_connection
    if driver is not None and driver.in_transaction:
        connection.exec_driver_sql("ROLLBACK")


def _on_connect(dbapi_connection: Any, _record: Any) -> None:
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA busy_timeout=5000")  # for the two pragmas below, while another process opens the file
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA busy_timeout=5")  # from here on a lock is waited for without blocking the event loop
    cursor.close()
