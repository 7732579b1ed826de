"""One database: its connections, its transactions and its migrations.

SQLite (WAL) is the embedded default, PostgreSQL (psycopg 3) is for production. Store functions see one
:class:`Connection` and do not know which it is.

SQLite runs on the event loop's own thread (docs/adr/0002): a statement takes tens of microseconds, a hop to a driver
thread and back several times that. What can take long does not block the loop: the wait for the write lock is an
``asyncio.sleep``, and a commit, which waits for the disk, runs in a thread.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psycopg
import sqlalchemy
from sqlalchemy import Executable, event
from sqlalchemy.engine import CursorResult, Dialect, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from turngate.domain.errors import UnavailableError

WRITE_LOCK_SECONDS = 10.0
"""How long a write waits for another process that writes to the same SQLite file."""
PING_AFTER_SECONDS = 1.0
"""How long a connection to PostgreSQL may rest before it is asked whether it still stands."""
MIGRATION_LOCK = 7_488_321
"""Key of PostgreSQL's advisory lock around migrations; any number that nobody else uses."""

Answer = TypeVar("Answer")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Connection(Protocol):
    """What store functions are given: one open transaction."""

    @property
    def dialect(self) -> Dialect:
        """The database's own language, for what has no common form."""

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run one statement; the rows are there when it returns."""

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Answer], /) -> Answer:
        """Run a synchronous function on the underlying connection (migrations)."""


class _Backend(Protocol):
    def read(self) -> Any:  # an async context manager of Connection
        ...

    def glance(self) -> Any: ...

    def write(self) -> Any: ...

    async def close(self) -> None: ...


class Database:
    """A store's database and the ways to use it: :meth:`read` and :meth:`write`, and :meth:`glance` without a common view."""

    def __init__(self, url: str) -> None:
        self.url = url
        sqlite = make_url(url).get_backend_name() == "sqlite"
        self._backend: _Backend = _Sqlite(url) if sqlite else _Postgresql(url)
        self._needs_migration_lock = not sqlite

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Connection]:
        """Open one consistent view for reading. Raises UnavailableError when the database is away."""
        async with _reported(), self._backend.read() as connection:
            yield connection

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[Connection]:
        """Open a connection for statements that read, each for itself: no transaction around them saves PostgreSQL two trips.

        For one statement, or for several that need no common view. Raises UnavailableError when the database is away.
        """
        async with _reported(), self._backend.glance() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Connection]:
        """Open one write transaction; it commits at the end of the block and rolls back on any exception.

        Raises UnavailableError when the database is away, or busy for more than 10 s.
        """
        async with _reported(), self._backend.write() as connection:
            yield connection

    async def close(self) -> None:
        """Close every connection."""
        await self._backend.close()

    async def migrate(self) -> None:
        """Bring the schema to the newest version (Alembic ``head``). Safe to repeat and to run in two processes."""
        async with self.write() as connection:
            if self._needs_migration_lock:
                await connection.execute(sqlalchemy.text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            await connection.run_sync(_upgrade)


class _Postgresql:
    """psycopg's own asyncio; nothing to add."""

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(url, pool_size=10, max_overflow=10)
        _ping_what_idled(self._engine.sync_engine)
        # The default, READ COMMITTED, shows each statement another state: a page could list what its count leaves out.
        self._reading = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._glancing = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        async with self._reading.connect() as connection:
            yield connection

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[AsyncConnection]:
        async with self._glancing.connect() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.begin() as connection:
            yield connection

    async def close(self) -> None:
        await self._engine.dispose()


class _SqliteConnection:
    """Runs statements where it stands: on the event loop's thread."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self.sync = connection

    @property
    def dialect(self) -> Dialect:
        return self.sync.dialect

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        return self.sync.execute(statement, parameters)

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Answer], /) -> Answer:
        return action(self.sync)


class _Sqlite:
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
        self._committer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turngate-commit")

    @asynccontextmanager
    async def read(self) -> AsyncIterator[_SqliteConnection]:
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN DEFERRED")
            try:
                yield _SqliteConnection(connection)
            finally:
                _roll_back(connection)

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[_SqliteConnection]:
        with self._engine.connect() as connection:
            yield _SqliteConnection(connection)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[_SqliteConnection]:
        # From here, not from this writer's turn: else each in a queue would wait as long again for the same lock.
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
        """Commit in a thread. A cancelled caller still waits for it, so nobody else gets the connection half-way.

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
        if (stopped := cancelled or failure) is not None:
            raise stopped

    async def close(self) -> None:
        self._engine.dispose()
        self._committer.shutdown(wait=True)


def _roll_back(connection: sqlalchemy.Connection) -> None:
    """Roll back, unless SQLite has done so itself (a full disk): a second ROLLBACK would hide the error that caused it."""
    driver = connection.connection.driver_connection
    if driver is not None and driver.in_transaction:
        connection.exec_driver_sql("ROLLBACK")


def _ping_what_idled(engine: sqlalchemy.Engine) -> None:
    """Ask a connection that lay in the pool whether it still stands, before anybody gets it.

    SQLAlchemy's own ``pool_pre_ping`` asks each time: one trip more for each of a turn's many short transactions.
    """

    def note(_connection: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    def ping(connection: Any, record: Any, _proxy: Any) -> None:
        if time.monotonic() - record.info.get("idle_since", math.inf) < PING_AFTER_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except psycopg.Error as error:
            raise InvalidatePoolError("the connection did not outlive its rest") from error

    event.listen(engine, "checkin", note)
    event.listen(engine, "checkout", ping)


def _on_connect(dbapi_connection: Any, _record: Any) -> None:
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA busy_timeout=5000")  # for the two pragmas below, while another process opens the file
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA busy_timeout=5")  # from here on a lock is waited for without blocking the event loop
    cursor.close()


def _upgrade(connection: sqlalchemy.Connection) -> None:
    from alembic import command  # noqa: PLC0415 - Alembic is slow to import and needed only here
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@asynccontextmanager
async def _reported() -> AsyncIterator[None]:
    """Turn "the database is away" into Turngate's own error; integrity errors and bugs pass as they are."""
    try:
        yield
    except PoolTimeoutError as error:
        raise UnavailableError("the database is busy: no connection became free") from error
    except (OperationalError, InterfaceError) as error:
        # SQLite's driver says OperationalError of a statement that is wrong, too ("no such table").
        if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            raise
        raise UnavailableError(f"the database cannot be reached or is busy: {error.orig}") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise UnavailableError("the connection to the database was lost") from error
        raise
