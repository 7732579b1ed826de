"""The killer's waits on real processes: each ends, or fails with the name and the state of what it waits for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import killer
import pytest
from killer import Killer
from processes import DEADLINE_SECONDS, Layout, Processes, Program, StuckError
from scene import Scene

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
MUTE = "import time; time.sleep(600)"


class Sleepers(Layout):
    """A worker that ignores SIGTERM, and one that never says that it is up."""

    temporal = servers = apis = ()
    workers = ("deaf", "mute")

    def program(self, name: str, data_dir: Path) -> Program:
        code = DEAF if name == "deaf" else MUTE
        return Program(executable=sys.executable, arguments=("-c", code), ready_line="up")

    def address(self, data_dir: Path) -> str:
        raise NotImplementedError


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    started = Processes(tmp_path_factory.mktemp("sleepers"), {}, Sleepers())
    yield started
    asyncio.run(started.end())


@pytest.fixture
async def on(processes: Processes, tmp_path: Path) -> AsyncIterator[Killer]:
    """A killer over a deaf worker that is up, and a mute one that is not."""
    processes.start("deaf", "mute")
    await processes.ready("deaf")
    staged = Scene(processes, tmp_path / "ledger.jsonl", f"sqlite:///{tmp_path}/turngate.db")
    yield Killer(staged, "seed", heartbeat_seconds=1)
    await processes.kill(*processes.names)
    await staged.close()


async def terminate_deaf(killers: Killer) -> None:
    killers._workers = ("deaf",)
    await killers._terminate_worker()


@pytest.mark.exhaustive
async def test_a_worker_that_does_not_stop_or_come_up_is_named(
    on: Killer, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there long after its SIGTERM is a failure with its state, not a wait without an end.

    Once it was killed, its exit code is that of its own life: the wait comes to the one that is not up.
    """
    monkeypatch.setattr(killer, "STOP_SECONDS", 0.5)
    await terminate_deaf(on)
    with pytest.raises(StuckError, match=rf"deaf \(process {processes.pid('deaf')}: S .*SIGTERM came \d+ s ago"):
        await asyncio.wait_for(on.all_up(), DEADLINE_SECONDS)
    monkeypatch.setattr(killer, "UP_SECONDS", 0.5)
    await processes.kill("deaf")
    processes.start("deaf")
    await processes.ready("deaf")
    with pytest.raises(StuckError, match=rf"mute \(process {processes.pid('mute')}: S .*not up for 0 s"):
        await asyncio.wait_for(on.all_up(), DEADLINE_SECONDS)
