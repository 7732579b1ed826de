"""How the parts of a process end: when the user asks, or with an error of one of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from turngate.domain.errors import UnavailableError

logger = logging.getLogger(__name__)


async def until_stopped(stop: asyncio.Event, parts: list[asyncio.Task[None]]) -> None:
    """Return when ``stop`` is set. Raise a part's error, or UnavailableError, when the part ends by itself."""
    waiting = asyncio.create_task(stop.wait())
    try:
        done, _pending = await asyncio.wait([waiting, *parts], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    for part in parts:
        if part in done:
            await part
            raise UnavailableError(f"the {part.get_name()} stopped by itself; the log above says why")


async def bounded(stopping: Awaitable[None], seconds: float, otherwise: str) -> None:
    """Wait this long for a part to stop, and log ``otherwise`` when it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            await stopping
    except TimeoutError:
        logger.info("%s within %.1f s", otherwise, seconds)
