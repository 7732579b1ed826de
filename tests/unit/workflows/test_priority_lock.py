"""I4: contenders for a gate pass one at a time, in an order that merged workflow tasks do not change."""

from __future__ import annotations

import asyncio

from workflows.priority_lock import PriorityLock, Source


async def passing(lock: PriorityLock, came: Source, name: str, order: list[str]) -> None:
    async with lock.hold(came):
        order.append(name)
        await asyncio.sleep(0)


async def test_i4_messages_go_before_the_clock_and_each_kind_in_its_order() -> None:
    """I4, I11: waiters continue by kind and then by arrival, whichever of them asked for the lock first."""
    lock, order = PriorityLock(), list[str]()
    async with lock.hold(Source.MESSAGE):
        waiting = [
            asyncio.create_task(passing(lock, came, name, order))
            for came, name in [
                (Source.TIMER, "expiry"),
                (Source.MESSAGE, "first"),
                (Source.TIMER, "rung"),
                (Source.MESSAGE, "second"),
            ]
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order == ["first", "second", "expiry", "rung"]


async def test_i4_no_waiter_overtakes_the_one_that_was_handed_the_lock() -> None:
    """I4: between the end of one turn and the start of the next there is no gap."""
    lock, order = PriorityLock(), list[str]()
    async with lock.hold(Source.MESSAGE):
        waiting = asyncio.create_task(passing(lock, Source.TIMER, "waited", order))
        await asyncio.sleep(0)
    await asyncio.gather(passing(lock, Source.MESSAGE, "new", order), waiting)
    assert order == ["waited", "new"]


async def test_i4_a_cancelled_waiter_hands_the_lock_on() -> None:
    """I4: a waiter that is cancelled, while it waits or at the moment of its turn, blocks no other."""
    lock, order = PriorityLock(), list[str]()
    async with lock.hold(Source.MESSAGE):
        early = asyncio.create_task(passing(lock, Source.MESSAGE, "cancelled while it waited", order))
        late = asyncio.create_task(passing(lock, Source.MESSAGE, "cancelled as it was handed", order))
        last = asyncio.create_task(passing(lock, Source.MESSAGE, "last", order))
        await asyncio.sleep(0)
        early.cancel()
    late.cancel()
    await asyncio.gather(early, late, return_exceptions=True)
    await asyncio.wait_for(last, 1)
    assert order == ["last"]
    async with lock.hold(Source.TIMER):
        pass


async def test_i4_an_error_inside_a_turn_ends_it() -> None:
    """I4: a decision that is refused inside its turn does not block the next one."""
    lock = PriorityLock()
    try:
        async with lock.hold(Source.MESSAGE):
            raise LookupError  # noqa: TRY301 - what a refusal does
    except LookupError:
        pass
    async with asyncio.timeout(1), lock.hold(Source.MESSAGE):
        pass
