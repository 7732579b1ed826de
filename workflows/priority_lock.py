"""A lock whose order does not depend on how Temporal cuts history into activations."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum
from itertools import count


class Source(IntEnum):
    """What asks for the lock. A message goes first: a decision that is on its way wins over a timer."""

    MESSAGE = 0
    TIMER = 1


class PriorityLock:
    """A lock that its waiters get by source, then by arrival.

    A plain lock goes by arrival alone, and arrival is not stable: workflow tasks without commands (heartbeats of a local
    activity) are merged on replay, and of a merged task Temporal delivers messages before timers. The set of waiters is the
    same either way, so an order within that set is safe where an order of arrival is not.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._waiters: list[tuple[Source, int, asyncio.Future[None]]] = []
        self._tickets = count()

    @asynccontextmanager
    async def hold(self, source: Source) -> AsyncIterator[None]:
        """Hold the lock; at once if it is free."""
        await self._acquire(source)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, source: Source) -> None:
        if not self._is_held:
            self._is_held = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (source, next(self._tickets), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # we got the lock in the moment in which we were cancelled
                self._release()
            raise

    def _release(self) -> None:
        """Hand the lock to the first waiter, without a gap that a newcomer could use; free it if there is none."""
        while self._waiters:
            _, _, turn = heapq.heappop(self._waiters)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_held = False
