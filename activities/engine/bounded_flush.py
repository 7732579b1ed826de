"""The last write for watchers: a store that is slow or away is given a moment, and holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

LAST_WRITE_SECONDS: Final = 1.0

_abandoned: set[asyncio.Task[Any]] = set()
"""Writes that were given up and have not noticed yet; the loop itself holds tasks only weakly."""


async def end_or_abandon(write: asyncio.Task[Any], tell: Callable[[str], None]) -> None:
    """Wait up to a second for a write; after that, or when this is cancelled, cancel it, ``tell`` why, and go on at once.

    Not waited for once more: a database that hangs may hang in its rollback, too.
    """
    try:
        await asyncio.wait({write}, timeout=LAST_WRITE_SECONDS)
    finally:
        if not write.done():
            write.cancel()
            _abandoned.add(write)
            write.add_done_callback(_abandoned.discard)
            tell("the store is too slow")
