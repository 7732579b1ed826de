from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.servers.notification_receivers import Receiver, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A real HTTP server on loopback that gives the configured answers."""
    async with receiving() as server:
        yield server
