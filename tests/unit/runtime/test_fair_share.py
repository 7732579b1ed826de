"""Which tenant of a worker gives way, and that what gives way still moves."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from turngate.runtime import fair_share
from turngate.runtime.fair_share import FairShare, FairSlots

CONTEXT: Any = None
"""The suppliers look at nothing of what the SDK says with a call."""


@dataclass
class Load:
    """What processors are said to do."""

    value: float = 1.0

    def now(self) -> float:
        return self.value


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    own = Load()
    monkeypatch.setattr(fair_share, "_Load", lambda: own)
    return own


def begin(share: FairShare, **tasks: int) -> None:
    for tenant, many in tasks.items():
        for _ in range(many):
            share.begin(tenant)


def test_the_tenant_that_began_the_most_gives_way(load: Load) -> None:
    """Not the one with fewer, and no one where all have begun the same, where processors have room, or where it is off."""
    share = FairShare(at=0.3)
    begin(share, acme=5)
    assert not share.must_wait("acme"), "no one else has work"
    begin(share, bolt=4)
    assert (share.must_wait("acme"), share.must_wait("bolt")) == (True, False)
    load.value = 0.29
    assert not share.must_wait("acme")
    load.value = 0.3
    begin(share, bolt=1)
    assert (share.must_wait("acme"), share.must_wait("bolt")) == (False, False)
    begin(share, cedar=9)
    assert [share.must_wait(each) for each in ("acme", "bolt", "cedar")] == [False, False, True]
    never = FairShare(at=1)
    begin(never, acme=5, bolt=1)
    assert not never.must_wait("acme")


@pytest.mark.usefixtures("load")
def test_what_was_begun_long_ago_is_forgotten() -> None:
    share = FairShare(at=0.3, window_seconds=0.05)
    begin(share, acme=5, bolt=1)
    assert share.must_wait("acme")
    time.sleep(0.06)
    assert not share.must_wait("acme")
    begin(share, acme=1)
    assert not share.must_wait("acme")


@pytest.mark.usefixtures("load")
async def test_a_tenant_gives_way_for_a_bounded_time() -> None:
    """A request for a task is late by half a second at most, whatever the others do; an eager one is refused."""
    share = FairShare(at=0.3)
    begin(share, acme=5, bolt=1)
    slots, quiet = FairSlots(share, "acme", 2), FairSlots(share, "bolt", 2)
    assert slots.try_reserve_slot(CONTEXT) is None
    assert quiet.try_reserve_slot(CONTEXT) is not None
    began = time.monotonic()
    await quiet.reserve_slot(CONTEXT)
    assert time.monotonic() - began < fair_share.LONGEST_SECONDS
    await slots.reserve_slot(CONTEXT)
    assert time.monotonic() - began >= fair_share.LONGEST_SECONDS


async def test_no_more_slots_are_given_than_there_are() -> None:
    """Who waits for one gets it when another comes back, also from another thread; an ended wait takes none."""
    slots = FairSlots(FairShare(at=1), "acme", 2)
    for _ in range(2):
        await slots.reserve_slot(CONTEXT)
    assert slots.try_reserve_slot(CONTEXT) is None
    waiting = [asyncio.create_task(slots.reserve_slot(CONTEXT)) for _ in range(3)]
    await asyncio.sleep(0.02)
    assert not any(each.done() for each in waiting)
    waiting.pop(0).cancel()
    await asyncio.to_thread(slots.release_slot, CONTEXT)
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=5)
    assert (len(done), len(left)) == (1, 1)
    assert slots.try_reserve_slot(CONTEXT) is None
    slots.release_slot(CONTEXT)
    await asyncio.wait_for(asyncio.gather(*left), 5)


def test_the_load_of_the_machine_is_measured() -> None:
    """A process that works has a load, and one that is idle on an idle machine has less than all."""
    load = fair_share._Load()
    end = time.monotonic() + 2 * fair_share.LOOK_SECONDS
    while time.monotonic() < end:
        sum(range(1000))
    assert load.now() > 0.5
