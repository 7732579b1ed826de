"""Running the same operation on many items, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


async def for_each(items: Iterable[Item], act: Callable[[Item], Awaitable[None]], *, at_once: int) -> None:
    """Run ``act`` on each item, in order, at most ``at_once`` in flight.

    The first error cancels the rest and is raised as it is.
    """
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await act(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _place in range(at_once):
                group.create_task(work())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
