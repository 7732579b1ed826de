"""How long an adapter waits for a provider that streams: measured on what it says, not on what it sends.

Comments, empty pieces and white space keep a connection open and say nothing. Without a bound of its own, a provider that says a
character now and then would be listened to until its activity's time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

MOST_SECONDS: Final = 14 * 60.0
"""For one whole answer: less than the activity has (``MODEL_REQUEST_SECONDS``), so that the run learns why."""

WaitOn = Callable[[float], None]
"""To be called whenever the provider has said something, with how many times the usual silence may follow."""


@asynccontextmanager
async def listening(silence: float, *, most: float = MOST_SECONDS) -> AsyncIterator[WaitOn]:
    """Raise TimeoutError in this block where no words came for ``silence`` seconds, or the answer takes ``most``."""
    loop = asyncio.get_running_loop()
    over_at = loop.time() + most
    async with asyncio.timeout(min(silence, most)) as limit:

        def wait_on(times: float = 1.0) -> None:
            limit.reschedule(min(loop.time() + silence * times, over_at))

        yield wait_on
