"""The last write for watchers: a store that is slow or away gets a moment, and delays nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

LAST_WRITE_SECONDS: Final = 1.0

_abandoned: set[asyncio.Task[Any]] = set()
"""Cancelled writes that have not ended yet; the event loop itself holds tasks only weakly."""


async def end_or_abandon(write: asyncio.Task[Any], on_failure: Callable[[str], None]) -> None:
    """Wait up to a second for a write. After that, or when this is cancelled: cancel it, say why, and return at once.

    The cancelled write is not waited for: a database that hangs may hang in its rollback, too.
    """
    try:
        await asyncio.wait({write}, timeout=LAST_WRITE_SECONDS)
    finally:
        if not write.done():
            write.cancel()
            _abandoned.add(write)
            write.add_done_callback(_abandoned.discard)
            on_failure("the store is too slow")
