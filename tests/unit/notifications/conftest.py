from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.notification_receivers import Receiver, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A real HTTP server on loopback that answers as it is told."""
    async with receiving() as made:
        yield made
