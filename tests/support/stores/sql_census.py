"""Counts a database's round trips, by the transaction and by the function that opened it. The same on SQLite and PostgreSQL.

One call of ``Connection.execute`` is one statement, and one trip, also when it inserts several rows. PostgreSQL needs one more
for each BEGIN and COMMIT, also of a transaction that only reads. A glance has neither, nor has a transaction of one statement.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

import sqlalchemy
from sqlalchemy import Executable
from sqlalchemy.engine import CursorResult, Dialect
from sqlalchemy.engine.interfaces import CacheStats

from turngate.store.connection import Connection, Fact, Parameters, Result
from turngate.store.database import Database

OWNERS: Final = ("/activities/", "/approvals_api/", "/tests/")
"""Where a transaction's owner is looked for, from the innermost frame outwards."""
SEAMS: Final = ("/sql_census.py", "/database_faults.py")
"""Frames between a transaction and its owner."""
Kind = Literal["read", "glance", "write"]


@dataclass
class Transaction:
    """One transaction, or glance. ``compiled``: its statements that SQLAlchemy compiles each time they run.

    ``begun``: PostgreSQL needs a BEGIN and a COMMIT for it.

    ``began_at``, ``ended_at``: ``time.perf_counter()``; ``end_seconds``: of its end.
    """

    owner: str
    kind: Kind
    began_at: float
    statements: list[str] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    begun: bool = False
    sql_seconds: float = 0.0
    end_seconds: float = 0.0
    ended_at: float = 0.0


@dataclass
class _CountedConnection:
    """A connection that notes what runs on it."""

    inner: Connection
    transaction: Transaction
    facts: list[Fact] | None = None

    @property
    def dialect(self) -> Dialect:
        return self.inner.dialect

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        self.transaction.begun = self.transaction.kind != "glance"
        return await self._run(self.inner.execute, statement, parameters)

    async def look(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        return await self._run(self.inner.look, statement, parameters)

    async def execute_last(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        return await self._run(self.inner.execute_last, statement, parameters)

    async def _run(self, run: Any, statement: Executable, parameters: Parameters | None) -> CursorResult[Any]:
        began_at = time.perf_counter()
        text = " ".join(str(statement).split())
        try:
            result: CursorResult[Any] = await run(statement, parameters)
        finally:
            self.transaction.statements.append(text)
            self.transaction.sql_seconds += time.perf_counter() - began_at
        # Without a context it ran on the driver, compiled once (turngate.store.prepared).
        if result.context is not None and result.context.cache_hit is CacheStats.NO_CACHE_KEY:
            self.transaction.compiled.append(text)
        return result

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        return await self.inner.run_sync(action)


class _CountedBackend:
    """The way to a database, with a list of what went along it."""

    def __init__(self, inner: Any, done: list[Transaction]) -> None:
        self.inner, self._done = inner, done

    @asynccontextmanager
    async def read(self) -> AsyncIterator[_CountedConnection]:
        async with self._counted("read") as connection:
            yield connection

    @asynccontextmanager
    async def glance(self) -> AsyncIterator[_CountedConnection]:
        async with self._counted("glance") as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[_CountedConnection]:
        async with self._counted("write") as connection:
            yield connection

    @asynccontextmanager
    async def _counted(self, kind: Kind) -> AsyncIterator[_CountedConnection]:
        transaction = Transaction(owner=owner_of_transaction(), kind=kind, began_at=time.perf_counter())
        leaves_at = transaction.began_at
        try:
            async with getattr(self.inner, kind)() as connection:
                transaction.began_at = time.perf_counter()
                try:
                    yield _CountedConnection(connection, transaction)
                finally:
                    leaves_at = time.perf_counter()
        finally:
            transaction.ended_at = time.perf_counter()
            transaction.end_seconds = transaction.ended_at - leaves_at
            self._done.append(transaction)

    def commits(self, ring: Callable[[], None]) -> Any:
        return self.inner.commits(ring)

    async def close(self) -> None:
        await self.inner.close()


class SqlCensus:
    """Counts inside its block. ``transactions``: in the order of their ends."""

    def __init__(self, database: Database) -> None:
        self.transactions: list[Transaction] = []
        self._database = database

    def __enter__(self) -> Self:
        self._backend = self._database._backend
        self._database._backend = _CountedBackend(self._backend, self.transactions)
        return self

    def __exit__(self, *_error: object) -> None:
        self._database._backend = self._backend

    @property
    def of_product(self) -> list[Transaction]:
        """What the product itself did, without what tests and benches look up."""
        return [each for each in self.transactions if "/tests/" not in each.owner]

    @property
    def trips(self) -> int:
        """How many trips to a server the product's part takes."""
        return sum(len(each.statements) + 2 * each.begun for each in self.of_product)

    def report(self, turns: int) -> str:
        """Return one line per owner: how often per turn, its statements, and how long it held its connection."""
        by_owner: dict[tuple[str, Kind], list[Transaction]] = defaultdict(list)
        for transaction in self.transactions:
            by_owner[transaction.owner, transaction.kind].append(transaction)
        lines = [
            "per turn  statements  held ms  sql ms  end ms  transaction  (statements: excl. BEGIN/COMMIT/ROLLBACK)"
        ]
        for (owner, kind), transactions in by_owner.items():
            statements = sum(len(each.statements) for each in transactions)
            lines.append(
                f"{len(transactions) / turns:8.2f}  {statements / len(transactions):10.1f}"
                f"  {_mean_ms(each.ended_at - each.began_at for each in transactions):7.2f}"
                f"  {_mean_ms(each.sql_seconds for each in transactions):6.2f}"
                f"  {_mean_ms(each.end_seconds for each in transactions):6.2f}  {kind:6} {owner}"
            )
        kinds = Counter(each.kind for each in self.of_product)
        statements = sum(len(each.statements) for each in self.of_product)
        lines.append(
            f"sum per turn, the bench's own inbox polls left out: {statements / turns:.1f} statements in "
            f"{kinds['write'] / turns:.1f} write and {kinds['read'] / turns:.1f} read transactions and "
            f"{kinds['glance'] / turns:.1f} glances"
        )
        return "\n".join(lines)

    def listing(self) -> str:
        """Return every statement of the product, by transaction, in order."""
        lines: list[str] = []
        for each in self.of_product:
            lines.append(
                f"{each.kind} {each.owner}: {len(each.statements)}{' in BEGIN and COMMIT' if each.begun else ''}"
            )
            lines.extend(f"    {statement}" for statement in each.statements)
        return "\n".join(lines)


def _mean_ms(seconds: Iterable[float]) -> float:
    values = list(seconds)
    return sum(values) / len(values) * 1000


def owner_of_transaction() -> str:
    """Return ``file:function`` of the innermost caller that is not the store itself."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        for part in OWNERS:
            if part in path and not path.endswith(SEAMS):
                return f"{part}{path.rsplit(part, 1)[1]}:{frame.f_code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "?"
