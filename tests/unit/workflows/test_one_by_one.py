"""I4: what competes for a gate goes through one by one, in an order that merged workflow tasks do not change."""

from __future__ import annotations

import asyncio

from workflows.one_by_one import Came, OneByOne


async def passing(lock: OneByOne, came: Came, name: str, order: list[str]) -> None:
    async with lock.turn(came):
        order.append(name)
        await asyncio.sleep(0)


async def test_i4_messages_go_before_the_clock_and_each_kind_in_its_order() -> None:
    """I4, I11: whoever waits while the lock is held goes on by how it came, whichever of them asked first."""
    lock, order = OneByOne(), list[str]()
    async with lock.turn(Came.AS_A_MESSAGE):
        waiting = [
            asyncio.create_task(passing(lock, came, name, order))
            for came, name in [
                (Came.BY_THE_CLOCK, "expiry"),
                (Came.AS_A_MESSAGE, "first"),
                (Came.BY_THE_CLOCK, "rung"),
                (Came.AS_A_MESSAGE, "second"),
            ]
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order == ["first", "second", "expiry", "rung"]


async def test_i4_nobody_overtakes_whoever_was_handed_the_lock() -> None:
    """I4: between the end of one turn and the start of the next there is no gap to slip through."""
    lock, order = OneByOne(), list[str]()
    async with lock.turn(Came.AS_A_MESSAGE):
        waiting = asyncio.create_task(passing(lock, Came.BY_THE_CLOCK, "waited", order))
        await asyncio.sleep(0)
    await asyncio.gather(passing(lock, Came.AS_A_MESSAGE, "new", order), waiting)
    assert order == ["waited", "new"]


async def test_i4_a_cancelled_waiter_hands_the_lock_on() -> None:
    """I4: a call whose run is torn while it waits, or in the moment in which it is its turn, holds up nobody."""
    lock, order = OneByOne(), list[str]()
    async with lock.turn(Came.AS_A_MESSAGE):
        early = asyncio.create_task(passing(lock, Came.AS_A_MESSAGE, "cancelled while it waited", order))
        late = asyncio.create_task(passing(lock, Came.AS_A_MESSAGE, "cancelled as it was handed", order))
        last = asyncio.create_task(passing(lock, Came.AS_A_MESSAGE, "last", order))
        await asyncio.sleep(0)
        early.cancel()
    late.cancel()
    await asyncio.gather(early, late, return_exceptions=True)
    await asyncio.wait_for(last, 1)
    assert order == ["last"]
    async with lock.turn(Came.BY_THE_CLOCK):
        pass


async def test_i4_an_error_inside_a_turn_ends_it() -> None:
    """I4: a decision that is refused inside its turn does not keep the next one out."""
    lock = OneByOne()
    try:
        async with lock.turn(Came.AS_A_MESSAGE):
            raise LookupError  # noqa: TRY301 - what a refusal does
    except LookupError:
        pass
    async with asyncio.timeout(1), lock.turn(Came.AS_A_MESSAGE):
        pass
