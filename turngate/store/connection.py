"""What store functions are given, whichever database it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import sqlalchemy
from sqlalchemy import Executable
from sqlalchemy.engine import CursorResult, Dialect

Result = TypeVar("Result")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Connection(Protocol):
    """What store functions are given: one open transaction."""

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
