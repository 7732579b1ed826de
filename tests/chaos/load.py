"""Starts the runs of a chaos run, a few at a time, does to each what its fate says, and sees each end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from scene import Scene
from workload import Script

from turngate.domain.errors import ConflictError

LIVE_RUNS: Final = 16
"""At work at the same time."""
LOOK_SECONDS: Final = 0.4
EARLY_SECONDS: Final = (0.3, 6.0)
"""When a run is interrupted or paused, after its start."""


class Load:
    """Brings runs into being, a few at a time, and does to each what its fate says."""

    def __init__(self, on: Scene, wanted: Sequence[Script], seed: str, *, live_runs: int = LIVE_RUNS) -> None:
        self._on = on
        self.wanted = wanted
        self._seed = seed
        self._places = asyncio.Semaphore(live_runs)
        self._all_ended = asyncio.Event()
        self.live: set[str] = set()
        self.begun = 0
        self.ended = 0

    @property
    def progress(self) -> str:
        """How far it is, and which runs are at work, for an error message."""
        live = f"; at work: {', '.join(sorted(self.live))}" if self.live else ""
        return f"of {len(self.wanted)} runs {self.begun} began and {self.ended} ended{live}"

    async def work(self) -> None:
        """Return when every run has ended."""
        async with asyncio.TaskGroup() as doing:
            looking = doing.create_task(self._look())
            for script in self.wanted:
                await self._places.acquire()
                doing.create_task(self._one(script))
            await self._all_ended.wait()
            looking.cancel()

    async def _one(self, script: Script) -> None:
        interrupted = script.fate == "interrupt"
        run_id = await self._on.start(script.name, *script.steps, agent=script.agent, may_be_interrupted=interrupted)
        self.begun += 1
        self.live.add(run_id)
        if script.fate == "complete":
            return
        fate = random.Random(f"{self._seed}-{script.name}")  # noqa: S311 - chance, not secrecy
        await asyncio.sleep(fate.uniform(*EARLY_SECONDS))
        with suppress(ConflictError):  # it has ended already
            if interrupted:
                await self._on.insist(lambda client: client.interrupt(run_id, reason="chaos"), by="owner")
                return
            await self._on.insist(lambda client: client.pause(run_id, reason="chaos"), by="owner")
            await asyncio.sleep(fate.uniform(0.2, 2.0))
            await self._on.insist(lambda client: client.resume(run_id), by="owner")

    async def _look(self) -> None:
        while True:
            before = set(self.live)
            running = await self._on.insist(lambda client: client.list_runs(status="running", limit=200))
            for run_id in before - {run.id for run in running.items}:
                self.live.discard(run_id)
                self.ended += 1
                self._places.release()
            if self.ended == len(self.wanted):
                self._all_ended.set()
            await asyncio.sleep(LOOK_SECONDS)
