"""One at a time, in an order that does not depend on how history is cut into activations."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum
from itertools import count


class Source(IntEnum):
    """How something reached the workflow. What came as a message goes first: a decision on its way beats the clock."""

    MESSAGE = 0
    TIMER = 1


class PriorityLock:
    """A lock whose waiters go on by how they came, then by when.

    A plain lock hands over by arrival alone, and arrival is not stable: workflow tasks without commands (heartbeats of a
    local activity) are merged on replay, and of what is merged Temporal delivers messages before timers. Whoever waits
    while the lock is held is the same set either way, so an order within that set is safe where one of arrival is not.
    """

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[tuple[Source, int, asyncio.Future[None]]] = []
        self._tickets = count()

    @asynccontextmanager
    async def turn(self, came: Source) -> AsyncIterator[None]:
        """Hold the lock; at once where nobody holds it."""
        await self._take(came)
        try:
            yield
        finally:
            self._hand_over()

    async def _take(self, came: Source) -> None:
        if not self._taken:
            self._taken = True
            return
        handed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (came, next(self._tickets), handed))
        try:
            await handed
        except asyncio.CancelledError:
            if handed.done() and not handed.cancelled():  # it was handed to us in the moment in which we were cancelled
                self._hand_over()
            raise

    def _hand_over(self) -> None:
        while self._waiting:
            _, _, handed = heapq.heappop(self._waiting)
            if not handed.done():
                handed.set_result(None)
                return
        self._taken = False
