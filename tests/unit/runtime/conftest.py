"""What the runtime's tests share: an empty environment, and one embedded server for tests that accept any."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from turngate.runtime.embedded_temporal import EmbeddedTemporal


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TURNGATE_", "TEMPORAL_", "OPENAI_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="package")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedTemporal]:
    async with EmbeddedTemporal(tmp_path_factory.mktemp("temporal") / "data") as running:
        yield running


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def _until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


@pytest.fixture(scope="session")
def until():
    """Wait for a condition, at most a minute."""
    return _until
