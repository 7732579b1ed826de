"""Background heartbeats: a lost worker is noticed, and a cancellation reaches a running activity with the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from temporalio import activity

INTERVAL_SECONDS = 0.3
"""The SDK sends at most one per its throttle interval (the worker sets 0.5 s at most), so more would change nothing."""


@dataclass
class Heartbeat:
    """The heartbeat of one activity. ``until``: the monotonic time at which it stops; None: it doesn't."""

    until: float | None = None


@asynccontextmanager
async def heartbeating(*, seconds: float | None = None) -> AsyncIterator[Heartbeat]:
    """Heartbeat for the current activity while the block runs; a handler that blocks the event loop blocks this too.

    ``seconds``: what is still not over then counts as lost, because its heartbeat stops; None: no bound.
    """
    heartbeat = Heartbeat(None if seconds is None else time.monotonic() + seconds)

    async def beat() -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)  # most activities end before their first heartbeat, and need none
            if heartbeat.until is not None and time.monotonic() > heartbeat.until:
                return
            activity.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield heartbeat
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
