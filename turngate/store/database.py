"""One database: its connections, its transactions and its migrations.

SQLite (WAL) is the embedded default (``sqlite``), PostgreSQL (psycopg 3) is for production (``postgresql``). Store
functions see one :class:`Connection` and do not know which it is.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from turngate.domain.errors import ConfigurationError, MissingExtraError, UnavailableError
from turngate.store import schema
from turngate.store.connection import SHARES_SESSIONS, Binding, Connection, Fact, Meter, TransactionKind, binding_of
from turngate.store.sqlite import Sqlite

if TYPE_CHECKING:
    from turngate.store.encryption.connection import SealedConnection
    from turngate.store.encryption.key_ring import KeyRing

__all__ = ["Connection", "Database"]

MIGRATION_LOCK = 7_488_321
"""Key of PostgreSQL's advisory lock around migrations; any number that no one else uses."""

DISK_FULL: Final = "53100"
"""PostgreSQL's SQLSTATE."""


class _Backend(Protocol):
    @property
    def shares_sessions(self) -> bool: ...

    def read(self) -> Any:  # an async context manager of Connection
        ...

    def glance(self) -> Any: ...

    def write(self) -> Any: ...

    def commits(self, ring: Callable[[], None]) -> Any: ...

    async def scrub(self) -> Sequence[str]: ...

    async def close(self) -> None: ...


class Database:
    """A store's database and the ways to use it: :meth:`read` and :meth:`write`, and :meth:`glance` without a common view.

    ``url``: SQLAlchemy's. On PostgreSQL, ``schema`` and ``role`` in its query bind every connection to one schema, under a role
    that may enter no other (:class:`turngate.store.connection.Binding`).
    ``meter``: counts its transactions and what they did; None: nothing counts.
    """

    meter: Meter | None = None

    def __init__(self, url: str) -> None:
        self.url = url
        sqlite = make_url(url).get_backend_name() == "sqlite"
        self.binding = None if sqlite else binding_of(url)
        self._backend: _Backend = Sqlite(url) if sqlite else _postgresql(url, self.binding)
        self._is_server = not sqlite
        self._ring: KeyRing | None = None
        self._wrote_at = float("-inf")

    @property
    def is_encrypted(self) -> bool:
        """Whether content is sealed when it is written."""
        return self._ring is not None

    @property
    def ring(self) -> KeyRing | None:
        """The keys that content is sealed with; None: it isn't."""
        return self._ring

    def encrypt_with(self, ring: KeyRing) -> None:
        """Seal content from now on, and open what is sealed. ``ring``: loaded from this database."""
        self._ring = ring

    def read(self) -> AbstractAsyncContextManager[Connection]:
        """Open one consistent view for reading. Raises UnavailableError when the database is away."""
        return self._reported("read", self._backend.read())

    def glance(self) -> AbstractAsyncContextManager[Connection]:
        """Open a connection for statements that read, each for itself: no transaction around them saves PostgreSQL two trips.

        For one statement, or for several that need no common view. Raises UnavailableError when the database is away.
        """
        return self._reported("glance", self._backend.glance())

    def write(self) -> AbstractAsyncContextManager[Connection]:
        """Open one write transaction; it commits at the end of the block and rolls back on any exception.

        Raises UnavailableError when the database is away, or busy for more than 10 s.
        """
        return self._reported("write", self._backend.write())

    def _reported(
        self, kind: TransactionKind, opened: AbstractAsyncContextManager[Connection]
    ) -> AbstractAsyncContextManager[Connection]:
        reported = _Reported(opened, self._ring)
        return reported if self.meter is None else _Metered(reported, kind, self.meter)

    @asynccontextmanager
    async def commits(self, ring: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``ring`` soon after commits, on the event loop of the caller, until the block ends.

        After each of this object; on PostgreSQL also after those of other processes that took a number of a sequence. A hint
        that comes at once, and not a promise: who must not miss anything also looks now and then.
        """
        async with self._backend.commits(ring):
            yield

    async def server_time(self) -> datetime | None:
        """Return what the database server's clock says; None for a file on this machine, which has no clock of its own."""
        if not self._is_server:
            return None
        async with self.glance() as connection:
            at: datetime = (await connection.execute(sqlalchemy.select(sqlalchemy.func.clock_timestamp()))).scalar_one()
        return at

    @property
    def shares_sessions(self) -> bool:
        """Whether a pooler shares PostgreSQL's sessions among its clients; known from the first connection on."""
        return self._backend.shares_sessions

    async def require_own_sessions(self, what: str) -> None:
        """Raise ConfigurationError if sessions are shared. ``what``: what to do with a session of one's own, as an order.

        Raises UnavailableError when the database is away.
        """
        async with self.glance():
            if self.shares_sessions:
                raise ConfigurationError(f"{SHARES_SESSIONS}: {what} with one that leads to PostgreSQL itself")

    async def try_to_write(self, *, unless_within: timedelta = timedelta()) -> None:
        """Commit a write that changes nothing. Raises UnavailableError, or SQLAlchemy's error, where none can be committed.

        ``unless_within``: one that succeeded so lately counts.
        """
        if time.monotonic() - self._wrote_at < unless_within.total_seconds():
            return
        async with self.write() as connection:
            await connection.execute(sqlalchemy.text("UPDATE alembic_version SET version_num = version_num"))
        self._wrote_at = time.monotonic()

    async def scrub(self) -> Sequence[str]:
        """Rewrite the database's files, so that nothing is left in them of rows that were emptied or deleted.

        It takes some seconds a gigabyte, in which others wait to write. Returns sentences about what may still hold old bytes.
        Raises UnavailableError when the database is away.
        """
        try:
            return await self._backend.scrub()
        except SQLAlchemyError as error:
            _raise_outage(error)
            raise

    async def close(self) -> None:
        """Close every connection."""
        await self._backend.close()

    async def migrate(self, *, restoring: bool = False) -> None:
        """Bring the schema to the newest revision. Safe to repeat and to run in two processes.

        ``restoring``: the caller restores a backup into it. Raises UnknownSchemaError, and changes nothing, when the database
        has a revision that this version doesn't know; UnfinishedRestoreError when a restore into it was cut off.
        """
        async with self.write() as connection:
            if self._is_server:
                of_schema = "" if self.binding is None else f", hashtext('{self.binding.schema}')"
                await connection.execute(sqlalchemy.text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK}{of_schema})"))
            await connection.run_sync(partial(schema.upgrade, restoring=restoring))
            if self.binding is not None:
                await connection.execute(sqlalchemy.text(self.binding.announcing))

    async def schema_revision(self) -> str | None:
        """Return the revision of the database's schema; None for an empty database.

        Raises UnknownSchemaError when it is one that this version doesn't know; UnfinishedRestoreError as :meth:`migrate`.
        """
        async with self.read() as connection:
            return await connection.run_sync(schema.known_revision)


def _postgresql(url: str, binding: Binding | None) -> _Backend:
    try:
        from turngate.store.postgresql import Postgresql  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise MissingExtraError("A PostgreSQL database", "postgres") from error
    return Postgresql(url, binding)


@dataclass
class _Reported:
    """Turns "the database is away" into Turngate's own error; integrity errors and bugs pass as they are."""

    opened: AbstractAsyncContextManager[Connection]
    ring: KeyRing | None = None
    sealed: SealedConnection | None = None

    async def __aenter__(self) -> Connection:
        try:
            connection = await self.opened.__aenter__()
        except SQLAlchemyError as error:
            _raise_outage(error)
            raise
        if self.ring is None:
            return connection
        from turngate.store.encryption.connection import SealedConnection  # noqa: PLC0415 - cryptography is slow to import

        self.sealed = SealedConnection(connection, self.ring)
        return self.sealed

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            suppressed = await self.opened.__aexit__(kind, error, traceback)
        except SQLAlchemyError as of_end:
            _raise_outage(of_end)
            raise
        if isinstance(error, SQLAlchemyError):
            _raise_outage(error)
        if error is None and self.sealed is not None:
            self.sealed.keys.keep()
        return suppressed


@dataclass
class _Metered:
    """Lets a meter count a transaction: how long it took, and what it did once that is committed."""

    opened: AbstractAsyncContextManager[Connection]
    kind: TransactionKind
    meter: Meter
    connection: Connection | None = None
    began: float = 0.0

    async def __aenter__(self) -> Connection:
        self.began = time.perf_counter()
        try:
            self.connection = await self.opened.__aenter__()
        except UnavailableError:
            self._count(failed=True)
            raise
        self.connection.facts = []
        return self.connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        facts: Sequence[Fact] = ()
        if self.connection is not None:  # taken off before another transaction may use the connection
            facts, self.connection.facts = self.connection.facts or (), None
        try:
            suppressed = await self.opened.__aexit__(kind, error, traceback)
        except UnavailableError:
            self._count(failed=True)
            raise
        self._count(failed=False)
        if error is None and facts:
            self.meter.count(facts)
        return suppressed

    def _count(self, *, failed: bool) -> None:
        self.meter.transaction(self.kind, time.perf_counter() - self.began, failed=failed)


def _is_full(error: BaseException | None) -> bool:
    """Tell whether a driver's error says that the database's disk has no room."""
    code = getattr(error, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_FULL or getattr(error, "sqlstate", None) == DISK_FULL


def _raise_outage(error: SQLAlchemyError) -> None:
    """Raise UnavailableError if it means that the database is away or busy, ConfigurationError if it will never answer."""
    if isinstance(error, PoolTimeoutError):
        raise UnavailableError("the database is busy: no connection became free") from error
    if isinstance(error, (OperationalError, InterfaceError)):
        # SQLite's driver says OperationalError of a statement that is wrong, too ("no such table").
        if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            return
        if _is_full(error.orig):
            raise UnavailableError(
                "the database's disk is full, so nothing can be stored until there is room"
            ) from error
        if "statement pooling mode" in str(error.orig):
            raise ConfigurationError(
                "TURNGATE_DATABASE_URL leads to PgBouncer in statement mode, which allows no transactions: set its pool_mode "
                "to transaction or session"
            ) from error
        raise UnavailableError(f"the database cannot be reached or is busy: {error.orig}") from error
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        raise UnavailableError("the connection to the database was lost") from error
