"""Doing one thing to many items: in order, a few at a time."""

from __future__ import annotations

import asyncio

import pytest

from turngate.approvals_api.concurrency import for_each


async def test_items_begin_in_order_and_few_run_at_once() -> None:
    """Every item is done once, begun in order, and never more than the limit run at a time."""
    begun: list[int] = []
    running = most = 0

    async def act(item: int) -> None:
        nonlocal running, most
        begun.append(item)
        running += 1
        most = max(most, running)
        for _turn in range(1 + item % 3):
            await asyncio.sleep(0)
        running -= 1

    await for_each(range(20), act, at_once=3)
    assert (begun, most, running) == (list(range(20)), 3, 0)


async def test_the_first_error_ends_everything_and_is_raised_unchanged() -> None:
    """After the error is raised, no item continues."""
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
