"""Orders about the same call work one after the other in a process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from turngate.activities.engine.engine import OrderLocks


async def test_i13_orders_about_one_call_wait_for_each_other() -> None:
    """I13: a second order waits, also past the first one's bound if that has ended in time; other calls and steps don't wait."""
    locks, held = OrderLocks(), AsyncExitStack()
    first = await held.enter_async_context(locks.hold("run", "c1"))
    first.bound(0.05)
    waiting = AsyncExitStack()
    second = asyncio.create_task(waiting.enter_async_context(locks.hold("run", "c1")))
    third = asyncio.create_task(AsyncExitStack().enter_async_context(locks.hold("run", "c1")))
    for other in (("run", "c2"), ("run", 1), ("another", "c1")):
        async with asyncio.timeout(5), locks.hold(*other):
            assert not second.done()
    await held.aclose()
    assert (await second) is first
    await asyncio.wait([third], timeout=0.2)
    assert not third.done()
    await waiting.aclose()
    assert (await third) is first


async def test_i14_code_that_does_not_stop_is_not_waited_for() -> None:
    """I14: author's code that continues after its time holds up no later order; its end gives nothing away."""
    locks = OrderLocks()
    async with locks.hold("run", "c1") as first:
        first.bound(0.02)
        for _ in range(2):
            async with asyncio.timeout(5), locks.hold("run", "c1") as later:
                assert later is not first


async def test_a_cancelled_wait_leaves_the_lock_alone() -> None:
    """An order that is cancelled while it waits passes that on, and the one after it gets its turn."""
    locks = OrderLocks()
    async with locks.hold("run", "c1"):
        waiting = asyncio.create_task(AsyncExitStack().enter_async_context(locks.hold("run", "c1")))
        await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(5), locks.hold("run", "c1"):
        pass
