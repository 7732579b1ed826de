"""I14: an event loop that stalls is noticed from outside of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from support.engine.stack import until

from turngate.approvals_api.app import health
from turngate.domain.errors import ConfigurationError
from turngate.runtime.loop_watch import LoopWatch

LIMIT_SECONDS = 1.0
"""More than a busy machine takes for a turn of the loop."""


def hold_the_loop(watch: LoopWatch, until: Callable[[], bool] = lambda: True) -> bool:
    """Block, as a runaway expression would, until the watch's thread has noticed and the condition holds; at most a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if watch._last_stall is not None and until():
            return watch.has_stalled
    return False


async def test_a_loop_that_runs_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that waits for something is alive."""
    async with LoopWatch("a test", limit_seconds=10) as watch:
        await asyncio.sleep(0.3)
        assert not watch.has_stalled
    assert "stalled" not in caplog.text


def test_a_loop_that_is_not_run_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    """A program that runs a loop in pieces, as pytest does around its fixtures: nothing holds it in between."""
    with asyncio.Runner() as pieces:
        watch = LoopWatch("a test", limit_seconds=0.1)
        pieces.run(watch.__aenter__())
        time.sleep(0.5)
        pieces.run(asyncio.sleep(0))
        assert not watch.has_stalled
        pieces.run(watch.__aexit__(None, None, None))
    assert "stalled" not in caplog.text


async def test_i14_a_probe_sees_a_loop_that_stalls_by_its_file(tmp_path: Path) -> None:
    """The file grows old while the loop stalls, gets a new time when it runs again, and is gone at the end."""
    file = tmp_path / "health"
    async with LoopWatch("a test", limit_seconds=0.2, file=file) as watch:
        begun = file.stat().st_mtime_ns
        hold_the_loop(watch)
        assert file.stat().st_mtime_ns == begun
        await until(lambda: asyncio.sleep(0, file.stat().st_mtime_ns > begun), "new time of the file")
        assert file.read_text() == "running\n"
        watch.drain()
        begun = file.stat().st_mtime_ns
        await until(lambda: asyncio.sleep(0, file.stat().st_mtime_ns > begun), "new time while it drains")
        assert file.read_text() == "draining\n"
    assert not file.exists()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        async with LoopWatch("a test", file=tmp_path / "no" / "health"):
            pass


class Answering:
    """Store and Temporal, which are there."""

    async def last_seq(self) -> int:
        return 0

    async def ready(self) -> bool:
        return True

    async def try_to_write(self, *, unless_within: timedelta) -> None:
        """Take it."""


async def test_i14_a_stalled_loop_is_noticed_while_it_stalls(caplog: pytest.LogCaptureFixture) -> None:
    """The thread logs where the loop is. For some seconds after the stall /readyz is 503 and says ``loop: false``."""
    app = FastAPI()
    app.include_router(health)
    app.state.draining = False
    app.state.services = SimpleNamespace(feed=Answering(), gateway=Answering(), database=Answering())
    transport = httpx.ASGITransport(app)
    async with (
        LoopWatch("a test", limit_seconds=LIMIT_SECONDS) as watch,
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        app.state.loop_watch = watch
        assert (await client.get("/readyz")).json()["loop"] is True
        assert not watch.has_stalled
        with caplog.at_level(logging.WARNING):
            assert hold_the_loop(watch, lambda: "a test has stalled" in caplog.text)
        answer = await client.get("/readyz")
        assert watch.has_stalled
    assert (answer.status_code, answer.json()["loop"], answer.json()["store"]) == (503, False, True)
    assert "hold_the_loop" in caplog.text
