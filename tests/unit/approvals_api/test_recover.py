"""Doing the same with many things: in order, a few at a time."""

from __future__ import annotations

import asyncio

import pytest

from approvals_api.concurrency import for_each


async def test_items_begin_in_order_and_few_are_under_way() -> None:
    """Every item is done once, begun in order, and never more than so many at a time."""
    begun: list[int] = []
    under_way = most = 0

    async def act(item: int) -> None:
        nonlocal under_way, most
        begun.append(item)
        under_way += 1
        most = max(most, under_way)
        for _turn in range(1 + item % 3):
            await asyncio.sleep(0)
        under_way -= 1

    await for_each(range(20), act, at_once=3)
    assert (begun, most, under_way) == (list(range(20)), 3, 0)


async def test_the_first_error_ends_all_of_it_and_is_raised_as_it_is() -> None:
    """Nothing goes on behind the back of whoever caught it."""
    done: list[int] = []

    async def act(item: int) -> None:
        if item == 2:
            raise LookupError("two")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done.append(item)

    with pytest.raises(LookupError, match="two"):
        await for_each(range(20), act, at_once=3)
    assert done == []
