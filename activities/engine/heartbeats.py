"""Background heartbeats: a lost worker is noticed, and a cancellation reaches a running activity with the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from temporalio import activity

INTERVAL_SECONDS = 0.3
"""The SDK sends at most one per its throttle interval (the worker sets 0.5 s at most), so more would change nothing."""


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeat for the current activity while the block runs; a handler that blocks the event loop blocks this too."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)  # most activities end before their first heartbeat, and need none
            activity.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
