"""Totals in the store: exact under concurrency, one window after the other."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from turngate.domain.policy.totals import Share, Total
from turngate.store import tables
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.policy import totals

DAY = Total(at="/cents", most=100, per="day")


def share(units: int, total: Total = DAY, owner: str = "rule:small") -> Share:
    return Share(meter=total.meter(owner), total=total, units=units)


async def take(database: Database, wanted: Share) -> bool:
    async with database.write() as conn:
        return await totals.take(conn, wanted)


async def used(database: Database, total: Total = DAY, owner: str = "rule:small") -> int:
    async with database.read() as conn:
        sums = await totals.sums(conn, [total.meter(owner), "rule:none"])
    return sums[total.meter(owner)].within(total) if sums else 0


async def test_i2_of_64_calls_at_once_as_many_fit_as_the_total_says(database: Database) -> None:
    """I2: 64 transactions at once of 7.000001 each into 100: fourteen fit, to the last millionth, and nothing is lost."""
    taken = await asyncio.gather(*(take(database, share(7_000_001)) for _ in range(64)))
    assert taken.count(True) == 14
    assert await used(database) == 14 * 7_000_001
    assert await take(database, share(100_000_000 - 14 * 7_000_001))
    assert not await take(database, share(1))
    assert await take(database, share(0))
    assert await used(database) == 100_000_000


async def test_i2_what_is_rolled_back_or_given_back_is_not_counted(database: Database) -> None:
    """I2: a call whose transaction fails has taken nothing, nor has one that was refused for another reason."""

    async def fail() -> None:
        async with database.write() as conn:
            assert await totals.take(conn, share(60_000_000))
            raise RuntimeError("too late")

    with pytest.raises(RuntimeError, match="too late"):
        await fail()
    async with database.write() as conn:
        assert await totals.take(conn, share(60_000_000))
        await totals.give_back(conn, share(60_000_000))
    assert await take(database, share(100_000_000))
    assert await used(database) == 100_000_000


@pytest.mark.parametrize("lost", [timedelta(days=8), timedelta(days=-8)])
async def test_i2_a_new_window_begins_at_zero_and_none_is_counted_twice(sqlite: Database, lost: timedelta) -> None:
    """I2: the next window has all of the total; a worker whose clock is late counts into the window that has begun."""
    assert await take(sqlite, share(90_000_000))
    async with sqlite.write() as conn:
        begun = as_text(DAY.window(now() - lost)[0])
        await conn.execute(update(tables.totals).values(since=begun))
    is_new = lost > timedelta(0)
    assert await used(sqlite) == (0 if is_new else 90_000_000)
    assert await take(sqlite, share(20_000_000)) is is_new
    assert await take(sqlite, share(10_000_000))
    assert await used(sqlite) == (30_000_000 if is_new else 100_000_000)
    async with sqlite.read() as conn:
        rows: Any = (await conn.execute(select(func.count()).select_from(tables.totals))).scalar_one()
    assert rows == 1


async def test_owners_and_kinds_of_windows_count_apart(sqlite: Database) -> None:
    """Another rule, another window and another amount are other sums; what is more than all of a total never fits."""
    hour = Total(at="/cents", most=100, per="hour")
    other = Total(at="/fee", most=100, per="day")
    for each in (
        share(100_000_000),
        share(100_000_000, hour),
        share(100_000_000, other),
        share(100_000_000, owner="rule:b"),
    ):
        assert await take(sqlite, each)
        assert not await take(sqlite, share(1, each.total, each.meter.split(" ")[0]))
    assert not await take(sqlite, share(100_000_001, owner="rule:c"))
    assert await take(sqlite, share(1, owner="rule:\x00\ud800"))
    assert await used(sqlite, owner="rule:\x00\ud800") == 1
