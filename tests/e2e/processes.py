"""``turngate temporal``, ``api`` and ``worker`` as separate real processes over one data directory, to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from turngate.cli.api_link import read_cli_token
from turngate.client import Retries, SyncTurngateClient
from turngate.runtime import die_with_parent, ports
from turngate.runtime.locations import TEMPORAL_LOG, process_birth

NAMES = ("temporal", "api", "worker")
APP = "crash_app:app"
DEADLINE_SECONDS = 90.0
"""For anything to happen: generous, because a slow machine is no defect."""
PAUSE_SECONDS = 0.1
"""Between two looks: many processes share the machine, and each look costs one of them some work."""
TAIL_LINES = 40
READY_LINES = {"temporal": "Temporal serves", "api": "API serves", "worker": "worker runs"}
Found = TypeVar("Found")


async def until(look: Callable[[], Awaitable[Found | None]], what: str) -> Found:
    """Return what ``look`` finds, once it finds it; fails after the deadline saying what never came."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := await look()):
        assert time.monotonic() < deadline, f"after {DEADLINE_SECONDS} s: no {what}"
        await asyncio.sleep(PAUSE_SECONDS)
    return found


@dataclass
class Life:
    """One life of a process. ``log_start``: where its part of the log begins, in bytes."""

    process: subprocess.Popen[bytes]
    log_start: int


class Processes:
    """The processes of one data directory. Everything they say is kept in ``NAME.log`` beside it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.data_dir = directory / "state"
        self.api_port = ports.choose_port()
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("TURNGATE_", "TEMPORAL"))
        }
        self._environment = {**inherited, "TURNGATE_HEARTBEAT_TIMEOUT_SECONDS": "2", **environment}
        self._lives: dict[str, Life] = {}
        self.kills = 0

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    def client(self) -> SyncTurngateClient:
        """A new client with the token that the API left for this user; the API must have been ready once."""
        return SyncTurngateClient(self.api_url, token=read_cli_token(self.data_dir), retries=Retries(attempts=1))

    def start(self, *names: str) -> None:
        """Start processes; does not wait for them. Call it on the main thread, with which they die (die_with_parent)."""
        for name in names:
            log = self.log(name)
            with log.open("ab") as file:
                file.write(f"--- {name} starts\n".encode())
                file.flush()
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *self._command(name)],
                    cwd=Path(__file__).parent,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
                self._lives[name] = Life(process, file.tell())

    async def ready(self, *names: str) -> None:
        """Wait until these processes do their work."""
        for name in names:
            await until(lambda name=name: self._is_ready(name), f"{name} that is ready")

    async def restart(self, *names: str) -> None:
        """Start and wait."""
        self.start(*names)
        await self.ready(*names)

    async def kill(self, *names: str) -> None:
        """SIGKILL them all, then wait until each is gone."""
        self.kills += len(names)
        for name in names:
            self._lives[name].process.kill()
        for name in names:
            assert await self._gone(name) == -signal.SIGKILL, f"{name} had ended by itself:\n{self.tail(name)}"

    async def kill_temporal_server(self) -> None:
        """SIGKILL the server under ``turngate temporal``, which starts it again.

        Not before it has served: a server that dies while it is first started is a failed start, and said to be one.
        """
        if await self._is_ready("temporal"):
            for pid in self.children("temporal"):
                self.kills += 1
                os.kill(pid, signal.SIGKILL)

    async def terminate(self, name: str) -> int:
        """SIGTERM, wait until it is gone, return its exit code."""
        self._lives[name].process.terminate()
        return await self._gone(name)

    def children(self, name: str) -> list[int]:
        """Pids of a process's own children."""
        pid = self._lives[name].process.pid
        try:
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def check_alive(self) -> None:
        """Fail if a process ended by itself."""
        for name, life in self._lives.items():
            assert life.process.poll() is None, (
                f"{name} ended by itself ({life.process.returncode}):\n{self.tail(name)}"
            )

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def tail(self, name: str) -> str:
        logs = [self.log(name)] + ([self.data_dir / TEMPORAL_LOG] if name == "temporal" else [])
        return "\n".join(
            f"== {log.name} ==\n" + "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            for log in logs
            if log.exists()
        )

    async def end(self) -> None:
        """Kill what still runs, each by its pid, and wait until nothing of it is left."""
        children = [pid for name in self._lives for pid in self.children(name)]
        for life in self._lives.values():
            life.process.kill()
        for name in self._lives:
            await self._gone(name)
        for pid in children:

            async def gone(pid: int = pid) -> bool:
                return process_birth(pid) is None

            await until(gone, f"end of process {pid}")

    def _command(self, name: str) -> list[str]:
        program = str(Path(sys.executable).parent / "turngate")
        where = ["--data-dir", str(self.data_dir)]
        match name:
            case "worker":
                return [program, name, APP, *where]
            case "api":
                return [program, name, "--port", str(self.api_port), *where]
            case _:
                return [program, name, *where]

    async def _is_ready(self, name: str) -> bool:
        life = self._lives[name]
        assert life.process.poll() is None, f"{name} ended by itself:\n{self.tail(name)}"
        with self.log(name).open("rb") as file:
            file.seek(life.log_start)
            said = READY_LINES[name] in file.read().decode(errors="replace")
        return said and (name != "api" or await self._api_answers())

    async def _api_answers(self) -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                return (await client.get(f"{self.api_url}/readyz")).status_code == httpx.codes.OK
            except httpx.TransportError:
                return False

    async def _gone(self, name: str) -> int:
        process = self._lives[name].process

        async def look() -> bool:
            return process.poll() is not None

        await until(look, f"end of {name}")
        return process.returncode


@asynccontextmanager
async def running(directory: Path, environment: Mapping[str, str]) -> AsyncIterator[Processes]:
    """Run all three; a failure inside the block carries the end of their logs. At the end none of them may be left."""
    processes = Processes(directory, environment)
    try:
        processes.start(*NAMES)
        await processes.ready(*NAMES)
        yield processes
    except BaseException as error:
        for name in NAMES:
            error.add_note(processes.tail(name))
        raise
    finally:
        await processes.end()
