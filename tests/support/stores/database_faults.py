"""A database as a process meets it on a bad day: away for a moment, or at a commit after which the process does nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from support.stores.sql_census import Kind, owner_of_transaction
from temporalio import activity

from turngate.store.database import Database


@dataclass(eq=False)
class Fault:
    """What happens to the first transaction that this function of the product opens.

    ``error``: it is raised before the transaction begins; None: the transaction commits, and its task never continues.
    ``kind``: None: read, glance or write. ``activity``: only in one of this name; None: wherever.
    """

    owner: str
    error: Exception | None = None
    kind: Kind | None = None
    activity: str | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has happened: with the error, or after the commit."""
    is_due: bool = True

    def concerns(self, owner: str, kind: Kind) -> bool:
        if not self.is_due or not owner.endswith(f":{self.owner}") or self.kind not in {None, kind}:
            return False
        return self.activity is None or (activity.in_activity() and activity.info().activity_type == self.activity)


class _FaultyBackend:
    """The way to a database, with faults on it."""

    def __init__(self, inner: Any, faults: tuple[Fault, ...]) -> None:
        self.inner, self._faults = inner, faults

    def read(self) -> Any:
        return self._opened("read")

    def glance(self) -> Any:
        return self._opened("glance")

    def write(self) -> Any:
        return self._opened("write")

    @asynccontextmanager
    async def _opened(self, kind: Kind) -> AsyncIterator[Any]:
        owner = owner_of_transaction()
        fault = next((each for each in self._faults if each.concerns(owner, kind)), None)
        if fault is not None:
            fault.is_due = False
            if fault.error is not None:
                fault.reached.set()
                raise fault.error
        async with getattr(self.inner, kind)() as connection:
            yield connection
        if fault is not None:
            fault.reached.set()
            await asyncio.Event().wait()

    def commits(self, ring: Callable[[], None]) -> Any:
        return self.inner.commits(ring)

    async def close(self) -> None:
        await self.inner.close()


class Faults:
    """A database has these faults inside the block, each once."""

    def __init__(self, database: Database, *faults: Fault) -> None:
        self._database, self._faults = database, faults

    def __enter__(self) -> Self:
        self._backend = self._database._backend
        self._database._backend = _FaultyBackend(self._backend, self._faults)
        return self

    def __exit__(self, *_error: object) -> None:
        self._database._backend = self._backend
