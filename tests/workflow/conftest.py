"""What the workflow tests share besides the parts of every test: replays, and runs whose days pass in a moment."""

from __future__ import annotations

import pytest
from support.engine.stack import Clock, Stack
from temporalio.client import Client


@pytest.fixture(autouse=True)
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no workflow in memory, so that every workflow task replays its history."""
    monkeypatch.setattr(Stack, "cached_workflows", 0)


@pytest.fixture
def clock(client: Client) -> Clock:
    return Clock(client)
