"""The store on PostgreSQL: psycopg's own asyncio, with a pool that pings idle connections.

A pooler such as PgBouncer may give each transaction another session. So nothing outlives a transaction here: locks and settings
are the transaction's own. What a session alone can do (named statements, ``LISTEN``, a limit for ``VACUUM``'s lock, a store's
schema) is done without a pooler only, see :class:`_Sessions`.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import psycopg
import sqlalchemy
from sqlalchemy import Executable, event
from sqlalchemy.engine import CursorResult, Dialect, make_url
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from turngate.domain.errors import ConfigurationError
from turngate.store.connection import COMMITS, SHARES_SESSIONS, Binding, Fact, Parameters, Result
from turngate.store.prepared import is_one, prepared
from turngate.store.tables.content import TEXT_COLUMNS

PING_AFTER_SECONDS = 1.0
"""How long a connection may be idle before it is pinged."""
MOST_CONNECTIONS = 20
"""What one process opens at most; who finds all of them in use waits. No one may hold one and wait for another."""
MOST_PREPARED = 500
"""How many statements a session keeps a plan of. There are some 150; a null among the parameters makes another one."""
LISTEN_AGAIN_SECONDS = 1.0
"""Until a lost connection that listens is opened again."""


class _PostgresqlConnection:
    """Runs statements, each a transaction of its own until one begins. ``begun``: none is to begin before the next statement."""

    def __init__(self, connection: AsyncConnection, *, begun: bool = False) -> None:
        self._connection = connection
        self._dialect = connection.dialect
        self._driver = _driver_of(connection)
        self.begun = begun
        self.facts: list[Fact] | None = None

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        if not self.begun:
            await self.begin()
        return await self.look(statement, parameters)

    async def look(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        form = prepared(statement, parameters, self._dialect)
        if form is None or not is_one(parameters):
            return await self._connection.execute(statement, parameters)
        cursor = await self._send(form.sql, form.bind(parameters or {}), prepare=True)
        has_rows = cursor.rownumber is not None
        return form.result(await cursor.fetchall() if has_rows else [], cursor)

    execute_last = look

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        if not self.begun:
            await self.begin()
        if not self._connection.in_transaction():
            await self._connection.begin()  # sends nothing; else Alembic would commit for itself
        return await self._connection.run_sync(action)

    async def begin(self, mode: str = "") -> None:
        self.begun = True
        await self._send(f"BEGIN {mode}")

    async def commit(self) -> None:
        await self._send("COMMIT")

    async def _send(self, sql: str, values: Any = None, *, prepare: bool = False) -> psycopg.AsyncCursor[Any]:
        """Run SQL on the driver. ``prepare``: keep its plan in the session. Raises what SQLAlchemy raises."""
        try:
            return await self._driver.execute(sql, values, prepare=prepare)
        except psycopg.Error as error:
            if self._driver.closed:
                # SQLAlchemy finds out for itself, raises, and replaces all connections that it has.
                await self._connection.exec_driver_sql("SELECT 1")
            raise DBAPIError.instance(sql, None, error, psycopg.Error, dialect=self._dialect) from error
        except asyncio.CancelledError:
            await self._connection.invalidate()  # the server may still be at it
            raise


def _driver_of(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    pooled = connection.sync_connection
    if pooled is None or pooled.connection.driver_connection is None:
        raise LookupError("the connection is not open")
    return cast("psycopg.AsyncConnection[Any]", pooled.connection.driver_connection)


MOST_SCRUBBED_BYTES = 4 * 1024**3
SCRUB_LOCK_SECONDS = 5
"""How long a rewrite waits for a table; meanwhile everyone else who wants it waits, too."""
BEYOND_TABLES = (
    "PostgreSQL's write-ahead log, its archive, replicas and backups hold old bytes until they are recycled or expire."
)
NOT_REWRITTEN = (
    "The tables are too large to be rewritten while others use them, so their files still hold old bytes until PostgreSQL "
    "uses the space again: run `VACUUM FULL` in a quiet hour."
)
NOT_THROUGH_A_POOLER = (
    f"{SHARES_SESSIONS}. So the tables were not rewritten, and their files still hold old bytes: run `turngate erase --scrub` "
    "with one that leads to PostgreSQL itself."
)
_SCRUBBED = tuple(sorted(name for name, columns in TEXT_COLUMNS.items() if columns.content or columns.people))
_SIZE = "SELECT coalesce(sum(pg_total_relation_size(quote_ident(name)::regclass)), 0) FROM unnest(%s::text[]) AS name"


class Postgresql:
    """One database and its pool of connections."""

    def __init__(self, url: str, binding: Binding | None = None) -> None:
        address = make_url(url)
        self._channel = COMMITS
        if binding is not None:
            address, self._channel = binding.connecting(address), binding.channel
        # AUTOCOMMIT: SQLAlchemy sends no BEGIN of its own; `read` and `write` send theirs.
        # A new session has to plan every statement. So none is closed for being one too many, and the one that was used last is
        # used next: few of them do the work, unless many have to.
        self._engine = create_async_engine(
            address, isolation_level="AUTOCOMMIT", pool_size=MOST_CONNECTIONS, max_overflow=0, pool_use_lifo=True
        )
        self._sessions = _Sessions(binding)
        # Before SQLAlchemy examines it, which fails where the database's encoding isn't one that it reads.
        event.listen(self._engine.sync_engine, "connect", self._sessions.add, insert=True)
        _ping_idle_connections(self._engine.sync_engine)
        self._rings: set[Callable[[], None]] = set()

    @property
    def shares_sessions(self) -> bool:
        """Whether a pooler is between this process and the server; known from the first connection on."""
        return self._sessions.are_shared

    @asynccontextmanager
    async def read(self) -> AsyncIterator[_PostgresqlConnection]:
        """Open one view: every statement sees the same state."""
        async with self._engine.connect() as connection:
            # The default, READ COMMITTED, shows each statement another state: a page could list what its count leaves out.
            view = _PostgresqlConnection(connection)
            await view.begin("ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield view
            # There is nothing to commit, but after a rollback the driver forgets what it has prepared.
            await view.commit()

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[_PostgresqlConnection]:
        """Lend a connection on which each statement is its own transaction."""
        async with self._engine.connect() as connection:
            yield _PostgresqlConnection(connection, begun=True)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[_PostgresqlConnection]:
        """Open one transaction, which begins with its first write; it commits at the end of the block."""
        async with self._engine.connect() as connection:
            transaction = _PostgresqlConnection(connection)
            yield transaction
            if transaction.begun:  # else there is none; without the commit, the pool rolls back
                await transaction.commit()
        for ring in self._rings:
            ring()

    @asynccontextmanager
    async def commits(self, ring: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``ring`` after each commit of this object, and of others that took a number.

        The server announces those of others on a connection of its own, which takes longer; a pooler doesn't pass them on.
        """
        listening = asyncio.create_task(self._listen(ring), name="listen-to-commits")
        self._rings.add(ring)
        try:
            yield
        finally:
            self._rings.discard(ring)
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self, ring: Callable[[], None]) -> None:
        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        while True:
            # The server may be away: meanwhile the listener has to look.
            with suppress(psycopg.Error, OSError):
                async with await psycopg.AsyncConnection.connect(*arguments, **options, autocommit=True) as connection:
                    row = await (await connection.execute(_WHO)).fetchone()
                    if row is None or row[0] != connection.info.backend_pid:
                        return  # LISTEN would stay with a session that serves others next
                    await connection.execute(f"LISTEN {self._channel}")
                    ring()  # for what was committed before
                    async for notification in connection.notifies():
                        if notification.pid not in self._sessions.processes.values():
                            ring()
            await asyncio.sleep(LISTEN_AGAIN_SECONDS)

    async def scrub(self) -> Sequence[str]:
        """Rewrite the tables that hold content (``VACUUM FULL``), and checkpoint where this user may.

        An updated row's old version stays in its page until then: a plain ``VACUUM`` frees the place, and leaves the bytes.
        """
        remarks = [BEYOND_TABLES]
        async with self._engine.connect() as connection:
            driver = _driver_of(connection)
            if self._sessions.are_shared:
                return [*remarks, NOT_THROUGH_A_POOLER]
            await driver.execute(f"SET lock_timeout = '{SCRUB_LOCK_SECONDS}s'")
            try:
                row = await (await driver.execute(_SIZE, (list(_SCRUBBED),))).fetchone()
                full = "" if row is None or row[0] > MOST_SCRUBBED_BYTES else "FULL, "
                if not full:
                    remarks.append(NOT_REWRITTEN)
                for table in _SCRUBBED:
                    try:
                        await driver.execute(f'VACUUM ({full}ANALYZE) "{table}"')
                    except psycopg.errors.LockNotAvailable:
                        await driver.execute(f'VACUUM "{table}"')
                        remarks.append(
                            f"The table {table} was in use and was not rewritten: run `turngate erase --scrub` later."
                        )
                # The planner's statistics quote values; ANALYZE has replaced them by those that are there now.
                for after in ("VACUUM FULL pg_catalog.pg_statistic", "SELECT pg_switch_wal()", "CHECKPOINT"):
                    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable):
                        await driver.execute(after)
            finally:
                await driver.execute("RESET lock_timeout")
        return remarks

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


def _ping_idle_connections(engine: sqlalchemy.Engine) -> None:
    """Ping a connection that was idle in the pool before it is used.

    SQLAlchemy's own ``pool_pre_ping`` pings each time: one more trip for each of a turn's many short transactions.
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


_WHO: Final = "SELECT pg_backend_pid(), current_schemas(false)::text, current_user::text"


@dataclass
class _Sessions:
    """What is on the server's side of the pool's connections.

    A server tells each new connection the id of the process that serves it. A pooler makes one up, because the process changes
    with each transaction: an id that is not that of the process which answers is how it is recognized. Through a pooler, no
    statement gets a name: psycopg numbers them for each of its connections, so in a session that two of them share, one would
    run what another has prepared.

    ``processes``: connection → the id of its process. ``are_shared``: the newest connection leads to a pooler.
    """

    binding: Binding | None
    processes: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary)
    are_shared: bool = False

    def add(self, connection: Any, _record: Any) -> None:
        """Examine a new connection before it is used.

        Raises ConfigurationError when it isn't bound as it should be, or leads to a database that can't hold every text.
        """
        driver = connection.driver_connection
        name, encoding = driver.info.dbname, driver.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            connection.close()
            raise ConfigurationError(
                f"the database {name!r} has the encoding {encoding}, and texts need UTF8: create it with "
                "`createdb --encoding=UTF8 --template=template0`, and set TURNGATE_DATABASE_URL to that one"
            )
        cursor = connection.cursor()
        cursor.execute(_WHO)
        process, schemas, user = cursor.fetchone()
        self.are_shared = process != driver.info.backend_pid
        if self.are_shared:
            driver.prepare_threshold = None
        else:
            self.processes[driver] = process
            # Only statements of the hot path get a name, see `_PostgresqlConnection.look`, and one plan for all values: each
            # is about one run, request or call, or reads on from a number. Lists get a plan for what they look for.
            driver.prepare_threshold, driver.prepared_max = sys.maxsize, MOST_PREPARED
            cursor.execute("SET plan_cache_mode = force_generic_plan")
        cursor.close()
        connection.commit()
        binding = self.binding
        if binding is None:
            return
        if self.are_shared:
            connection.close()
            raise ConfigurationError(
                f"{SHARES_SESSIONS}, and a session for one schema sees only that ({binding.schema}): connect to "
                "PostgreSQL itself"
            )
        if schemas != f"{{{binding.schema}}}" or binding.role not in {None, user}:
            connection.close()
            raise ConfigurationError(
                f"a connection to PostgreSQL is not bound to the schema {binding.schema}: it sees {schemas} as {user}. Create it "
                "(`turngate migrate`), and check that nothing between drops the `options` of a connection"
            )
