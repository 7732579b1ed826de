"""What the workflow tests share besides the parts of every test: replays, and a server on which days pass in a moment."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.engine.stack import Clock, Stack, frozen_clock


@pytest.fixture(autouse=True)
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no workflow in memory, so that every workflow task replays its history."""
    monkeypatch.setattr(Stack, "cached_workflows", 0)


@pytest.fixture(scope="session")
async def clock() -> AsyncIterator[Clock]:
    async with frozen_clock() as frozen:
        yield frozen
