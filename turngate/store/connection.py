"""What store functions are given, whichever database it is of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import sqlalchemy
from sqlalchemy import Executable
from sqlalchemy.engine import CursorResult, Dialect

Result = TypeVar("Result")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]


TransactionKind = Literal["read", "glance", "write"]

Fact = tuple[str, Mapping[str, Any]]
"""Something that happened, for a meter: an event with its payload, or what no event says, under a name of its own."""


class Meter(Protocol):
    """Counts what a process does (:mod:`turngate.runtime.metrics`). It never raises and never waits."""

    def count(self, facts: Sequence[Fact]) -> None:
        """Count facts that are certain: committed, or about no transaction."""

    def transaction(self, kind: TransactionKind, seconds: float, *, failed: bool) -> None:
        """Count a transaction of the store. ``seconds``: with its wait for a lock or a connection. ``failed``: it was away."""

    def expect(self, *, tools: Iterable[str] = (), models: Iterable[str] = ()) -> None:
        """Keep labels for these names, whatever other names come first."""


class Connection(Protocol):
    """What store functions are given: one open transaction.

    ``facts``: what a meter counts once the transaction has committed; None: nothing counts.
    """

    facts: list[Fact] | None

    @property
    def dialect(self) -> Dialect:
        """The database's own language, for what has no common form."""

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run one statement; the rows are there when it returns."""

    async def look(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run one statement that reads and locks nothing. Before the first that writes, PostgreSQL needs no BEGIN for it."""

    async def execute_last(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run the last statement of a write transaction. If it is the only one but for looks, it is its own transaction.

        PostgreSQL then takes one trip in place of three. It is committed when this returns, so nothing may follow in the block
        unless it wrote nothing.
        """

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        """Run a synchronous function on the underlying connection (migrations)."""


def note(conn: Connection, name: str, **what: object) -> None:
    """Have a fact counted once the transaction has committed."""
    if conn.facts is not None:
        conn.facts.append((name, what))
