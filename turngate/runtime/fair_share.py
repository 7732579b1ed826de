"""Room for every tenant of a process: one with thousands of waiting tasks gives way to the others.

Slots alone don't make room. Each tenant has its own, but all share processors, often with the store and Temporal, too, and what
keeps these busy delays everyone's next task. So while processors are busy, a tenant that has begun more tasks lately than any
other asks Temporal for its next one later. Where processors have room, or the others have nothing to do, no one waits (ADR 0063).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    WorkerTuner,
)

WINDOW_SECONDS: Final = 5.0
"""What was begun longer ago doesn't count."""
LONGEST_SECONDS: Final = 0.5
"""How long a tenant gives way before each request for a task: some of its tasks begin, whatever the others do."""
PAUSE_SECONDS: Final = 0.01
LOOK_SECONDS: Final = 0.1
LEFT: Final = 0.9
"""Of a load after each such time without one: a moment's rest is no room for a hundred tasks."""
WORKFLOW_TASKS: Final = 100
"""At once, as the SDK has it."""
PROCESSORS: Final = Path("/proc/stat")


class FairShare:
    """Who of a process's tenants has begun how much lately. Safe to use from any thread.

    ``at``: how busy processors must be, of 1.0, before anyone gives way; 1.0: no one ever does.
    """

    def __init__(self, *, at: float, window_seconds: float = WINDOW_SECONDS) -> None:
        self._load = _Load()
        self._at, self._window = at, window_seconds
        self._lock = threading.Lock()
        self._begun: deque[tuple[float, str]] = deque()
        self._counts: Counter[str] = Counter()

    def begin(self, tenant: str) -> None:
        """Count a task that a tenant begins."""
        with self._lock:
            self._begun.append((time.monotonic(), tenant))
            self._counts[tenant] += 1

    def must_wait(self, tenant: str) -> bool:
        """Tell whether a tenant gives way now."""
        if self._at >= 1:
            return False
        with self._lock:
            self._forget(time.monotonic() - self._window)
            others = max((many for name, many in self._counts.items() if name != tenant), default=0)
            return 0 < others < self._counts[tenant] and self._load.now() >= self._at

    def _forget(self, before: float) -> None:
        while self._begun and self._begun[0][0] < before:
            self._counts[self._begun.popleft()[1]] -= 1


class FairSlots(CustomSlotSupplier):
    """The slots of one tenant for one kind of task. They call it from the worker's loop, and from threads of the SDK's."""

    def __init__(self, share: FairShare, tenant: str, slots: int) -> None:
        self._share, self._tenant, self._free = share, tenant, slots
        self._lock = threading.Lock()
        self._freed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Return a permit to ask for a task, once the tenant has a slot and doesn't give way."""
        del ctx
        self._loop = asyncio.get_running_loop()
        until = time.monotonic() + LONGEST_SECONDS
        while self._share.must_wait(self._tenant) and time.monotonic() < until:  # noqa: ASYNC110 - nothing tells when processors have room
            await asyncio.sleep(PAUSE_SECONDS)
        while not self._take():
            self._freed.clear()
            if self._free <= 0:  # none came back while the event was cleared
                await self._freed.wait()
        return SlotPermit()

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return a permit for a task that comes with an answer of Temporal's; None: not now."""
        del ctx
        return None if self._share.must_wait(self._tenant) or not self._take() else SlotPermit()

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Count the task that begins."""
        del ctx
        self._share.begin(self._tenant)

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Take the permit back."""
        del ctx
        with self._lock:
            self._free += 1
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no one waits
                self._loop.call_soon_threadsafe(self._freed.set)

    def _take(self) -> bool:
        with self._lock:
            is_there = self._free > 0
            self._free -= is_there
        return is_there


def fair_tuner(share: FairShare, tenant: str, *, activities: int) -> WorkerTuner:
    """Return what gives a tenant's worker its slots. ``activities``: at once."""
    unused = FixedSizeSlotSupplier(1)
    return WorkerTuner.create_composite(
        workflow_supplier=FairSlots(share, tenant, WORKFLOW_TASKS),
        activity_supplier=FairSlots(share, tenant, activities),
        local_activity_supplier=unused,
        nexus_supplier=unused,
    )


class _Load:
    """How busy the machine's processors are, or this process is, whichever is more."""

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._idle, self._total = _processor_times()
        self._own = time.process_time()
        self._load = 0.0

    def now(self) -> float:
        """Return it as a number up to 1.0, measured over some tenths of a second. A process with one core's work has 1.0."""
        at = time.monotonic()
        passed = at - self._looked_at
        if passed >= LOOK_SECONDS:
            (idle, total), own = _processor_times(), time.process_time()
            machine = 1 - (idle - self._idle) / (total - self._total) if total > self._total else 0.0
            self._load = min(
                1.0, max(machine, (own - self._own) / passed, self._load * LEFT ** (passed / LOOK_SECONDS))
            )
            self._looked_at, self._idle, self._total, self._own = at, idle, total, own
        return self._load


def _processor_times() -> tuple[int, int]:
    """Return (idle, total) of all processors since the machine started; zeros where the system doesn't say it so."""
    try:
        times = [int(each) for each in PROCESSORS.read_text(encoding="ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return times[3] + times[4], sum(times)
