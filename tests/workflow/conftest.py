"""What the workflow tests share besides the parts of every test: a server on which days pass in a moment."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.engine import Clock, frozen_clock


@pytest.fixture(scope="session")
async def clock() -> AsyncIterator[Clock]:
    async with frozen_clock() as frozen:
        yield frozen
