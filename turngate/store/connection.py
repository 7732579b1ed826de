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

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        """Run a synchronous function on the underlying connection (migrations)."""
