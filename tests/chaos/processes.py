"""Temporal, APIs and workers as separate real processes over one store, to be killed.

Which processes there are is a :class:`Layout`'s: :class:`Embedded` is ``turngate temporal``, one API and some workers over one
data directory. ``tests/cluster`` has another one, with Temporal's own services and two APIs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from support.programs import forked_programs
from support.programs.forked_programs import Forked

from turngate.runtime import embedded_temporal
from turngate.runtime.locations import TEMPORAL_LOG, TEMPORAL_PORT, process_birth

APP = "app_here:app"
"""The chaos app under another name, so that its directory, where scripts may be, is that of the run."""
DEADLINE_SECONDS = 150.0
"""For anything to happen: generous, because a slow machine is no defect."""
PAUSE_SECONDS = 0.2
"""Between two looks: many processes share the machine, and each look costs one of them some work."""
TAIL_LINES = 40
API_READY = "API serves"
WORKER_READY = "worker runs"
CONNECT_SECONDS = 2.0
SERVER = "temporal-server"
"""The server under ``turngate temporal``, as a target."""
Value = TypeVar("Value")


async def until(look: Callable[[], Awaitable[Value | None]], what: str, seconds: float = DEADLINE_SECONDS) -> Value:
    """Return what ``look`` finds, once it finds it; fails after the deadline saying what never came."""
    deadline = time.monotonic() + seconds
    while not (value := await look()):
        assert time.monotonic() < deadline, f"after {seconds} s: no {what}"
        await asyncio.sleep(PAUSE_SECONDS)
    return value


class StuckError(AssertionError):
    """A process did not do in time what it was to do; the message names it and its state."""


@dataclass(kw_only=True)
class Life:
    """One life of a process.

    ``log_start``: where its part of the log begins, in bytes. ``was_up``: it did its work.
    """

    name: str
    process: Forked
    log_start: int
    was_up: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it lasts."""
        return self.process.poll()

    @property
    def state(self) -> str:
        """Return what the kernel says of it, for an error message."""
        if self.code is not None:
            return f"ended with {self.code}"
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
            where = Path(f"/proc/{self.pid}/wchan").read_text()
        except OSError:
            return "gone, and its end is not recorded"
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        return f"{facts['State'].strip()}, in {where or '?'}, {facts['Threads'].strip()} threads"


@dataclass(frozen=True, kw_only=True)
class Program:
    """How a process is started, and what shows that it does its work.

    ``arguments``: of ``turngate``, or of ``executable``. ``ready_line``: what it prints then. ``port``: what it listens at on
    loopback. ``ready_path``: what answers 200 there; without one, a connection is enough.
    """

    arguments: Sequence[str]
    executable: str = ""
    ready_line: str = ""
    port: int | None = None
    ready_path: str = ""


class Layout(ABC):
    """Which processes there are, by name.

    ``temporal``: those that Temporal consists of. ``servers``: which of them can be lost alone, as targets of
    :meth:`Processes.send`. ``environment``: of all our own processes, besides what the scene sets. ``prepares``:
    :meth:`prepare` has to be called before ours are started. ``directory``: in which they run; None: that of the scene.
    """

    temporal: Sequence[str]
    servers: Sequence[str]
    apis: Sequence[str]
    workers: Sequence[str]
    namespace = embedded_temporal.NAMESPACE
    environment: Mapping[str, str] = {}
    prepares = False
    directory: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the order in which they are started."""
        return (*self.temporal, *self.apis, *self.workers)

    @abstractmethod
    def program(self, name: str, data_dir: Path) -> Program:
        """Return how this one is started."""

    @abstractmethod
    def address(self, data_dir: Path) -> str:
        """Return where Temporal is."""

    async def prepare(self) -> None:
        """Do what Temporal needs before ours are started; its own processes are ready. Only called with ``prepares``."""
        raise NotImplementedError


class Embedded(Layout):
    """``turngate temporal``, an API and ``workers`` workers: ``worker``, ``worker2`` and so on."""

    temporal = ("temporal",)
    servers = (SERVER,)
    apis = ("api",)

    def __init__(self, *, workers: int = 1) -> None:
        self.workers = numbered("worker", workers)
        self._api_port = embedded_temporal.choose_port()

    def program(self, name: str, data_dir: Path) -> Program:
        """Return how this one is started."""
        where = ("--data-dir", str(data_dir))
        if name == "temporal":
            return Program(arguments=(name, *where), ready_line="Temporal serves")
        if name == "api":
            return api_program(self._api_port, where)
        return Program(arguments=("worker", APP, *where), ready_line=WORKER_READY)

    def address(self, data_dir: Path) -> str:
        """Return where Temporal is, once it has run."""
        return f"127.0.0.1:{int((data_dir / TEMPORAL_PORT).read_text())}"


def numbered(name: str, count: int) -> tuple[str, ...]:
    """Return so many names: ``worker``, ``worker2`` and so on."""
    return tuple(name if number == 1 else f"{name}{number}" for number in range(1, count + 1))


def api_program(port: int, where: Sequence[str], app: str = APP) -> Program:
    """Return how an API is started. With the app, so that the instants are in this process, too."""
    arguments = ("api", app, "--port", str(port), *where)
    return Program(arguments=arguments, ready_line=API_READY, port=port, ready_path="/readyz")


class Processes:
    """The processes of one layout. Everything they say is kept in ``NAME.log`` beside the data directory.

    ``environment``: of our own processes that start from now on. ``sent``: what was done to whom, target and signal → times.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], layout: Layout) -> None:
        self.directory = directory
        self.data_dir = directory / "state"
        self.layout = layout
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("TURNGATE_", "TEMPORAL"))
        }
        self._inherited = inherited
        self.environment = {**inherited, **layout.environment, **environment}
        (directory / "app_here.py").write_text("from chaos_app import app as app\n")
        for script in Path(__file__).parent.glob("*.yaml"):
            shutil.copy(script, directory)
        self._lives: dict[str, Life] = {}
        self._names: dict[int, str] = {}
        self.sent: Counter[tuple[str, str]] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        return self.layout.names

    @property
    def api_urls(self) -> list[str]:
        """Where the APIs are."""
        return [f"http://127.0.0.1:{self.program(name).port}" for name in self.layout.apis]

    @property
    def temporal_address(self) -> str:
        return self.layout.address(self.data_dir)

    def program(self, name: str) -> Program:
        """Return how a process is started."""
        return self.layout.program(name, self.data_dir)

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(times for (_target, how), times in self.sent.items() if how == "SIGKILL")

    def start(self, *names: str) -> None:
        """Start processes; does not wait for them."""
        for name in names:
            program = self.program(name)
            with self.log(name).open("ab") as log, Path(os.devnull).open() as nothing:
                log.write(f"--- {name} starts\n".encode())
                log.flush()
                log_start = log.tell()
                process = forked_programs.start(
                    program.arguments,
                    self.layout.directory or self.directory,
                    self._inherited if program.executable else self.environment,
                    (nothing.fileno(), log.fileno(), log.fileno()),
                    executable=program.executable,
                    paths=[str(self.directory), str(Path(__file__).parent)],
                )
                self._lives[name] = Life(name=name, process=process, log_start=log_start)
            self._names[process.pid] = name

    async def ready(self, *names: str) -> None:
        """Wait until these processes do their work."""
        for name in names:
            await until(lambda name=name: self._is_ready(name), f"{name} that is ready")

    async def kill(self, *names: str) -> None:
        """SIGKILL them all, then wait until each is gone."""
        for name in names:
            self.send(name, signal.SIGKILL)
        for name in names:
            assert await self.gone(name) == -signal.SIGKILL, f"{name} had ended by itself:\n{self.tail(name)}"

    async def kill_server(self, target: str) -> None:
        """SIGKILL one of Temporal's servers.

        The one under ``turngate temporal``, which starts it again, not before it has served: a server that dies while it is
        first started is a failed start, and said to be one.
        """
        if target != SERVER or (self.exit_code("temporal") is None and await self.is_up("temporal")):
            self.send(target, signal.SIGKILL)

    def send(self, target: str, number: signal.Signals) -> None:
        """Send a signal to a process, or to the children of ``turngate temporal``; to none that is gone."""
        pids = self.children("temporal") if target == SERVER else [self._lives[target].pid]
        if target != SERVER and self.exit_code(target) is not None:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                self.sent[target, number.name] += 1

    async def terminate(self, name: str) -> int:
        """SIGTERM, wait until it is gone, return its exit code."""
        self.send(name, signal.SIGTERM)
        return await self.gone(name)

    def children(self, name: str) -> list[int]:
        """Pids of a process's own children."""
        pid = self._lives[name].pid
        try:
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def name_of(self, pid: int) -> str:
        """Return which process has, or had, this pid."""
        return self._names[pid]

    def pid(self, name: str) -> int:
        """Return the pid of a process's present life."""
        return self._lives[name].pid

    def life(self, name: str) -> Life:
        """Return the present life of a process. It stays the same object when a new one begins."""
        return self._lives[name]

    def exit_code(self, name: str) -> int | None:
        """Return how a process ended; None while it lives."""
        return self._lives[name].code

    def check_alive(self) -> None:
        """Fail if a process of the layout has ended by itself."""
        for name in self.names:
            code = self.exit_code(name)
            assert code is None, f"{name} ended by itself ({code}):\n{self.tail(name)}"

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def tail(self, name: str) -> str:
        logs = [self.log(name)] + ([self.data_dir / TEMPORAL_LOG] if name == "temporal" else [])
        return "\n".join(
            f"== {log.name} ==\n" + "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            for log in logs
            if log.exists()
        )

    async def gone(self, name: str) -> int:
        """Wait until a process has ended, return its exit code."""

        async def look() -> bool:
            return self.exit_code(name) is not None

        await until(look, f"end of {name}")
        code = self.exit_code(name)
        assert code is not None
        return code

    async def end(self) -> None:
        """Kill what still runs, each by its pid, and wait until nothing of it is left."""
        pids = [pid for name in self._lives for pid in self.children(name)]
        for name, life in self._lives.items():
            if self.exit_code(name) is None:
                pids.append(life.pid)
                with suppress(ProcessLookupError):
                    os.kill(life.pid, signal.SIGKILL)
        for pid in pids:

            async def gone(pid: int = pid) -> bool:
                return process_birth(pid) is None

            await until(gone, f"end of process {pid}")

    def had_come_up(self, name: str) -> bool:
        """Tell whether this life of a process has said that it does its work, or was seen to."""
        line = self.program(name).ready_line
        if not line:
            return self._lives[name].was_up
        with self.log(name).open("rb") as file:
            file.seek(self._lives[name].log_start)
            return line in file.read().decode(errors="replace")

    async def is_up(self, name: str) -> bool:
        """Tell whether a process that lives does its work."""
        program, life = self.program(name), self._lives[name]
        if program.ready_line and not self.had_come_up(name):
            return False
        if program.port is not None and not await _answers(program.port, program.ready_path):
            return False
        life.was_up = True
        return True

    async def _is_ready(self, name: str) -> bool:
        code = self.exit_code(name)
        assert code is None, f"{name} ended by itself ({code}):\n{self.tail(name)}"
        return await self.is_up(name)


async def _answers(port: int, path: str) -> bool:
    """Tell whether this path answers 200 at one of our ports; without a path, whether something accepts a connection."""
    try:
        if not path:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - loopback: it reads no certificates
            return (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == httpx.codes.OK
    except (OSError, TimeoutError, httpx.TransportError):
        return False


@asynccontextmanager
async def running(directory: Path, environment: Mapping[str, str], layout: Layout) -> AsyncIterator[Processes]:
    """Run all of them; a failure inside the block carries the end of their logs. At the end none of them may be left."""
    processes = Processes(directory, environment, layout)
    try:
        first, *others = layout.temporal
        processes.start(first)
        if layout.prepares:
            # Services that start at the same moment on an empty database all want to describe the cluster there, and one wins.
            await processes.ready(first)
            processes.start(*others)
            await processes.ready(*others)
            await layout.prepare()
        processes.start(*layout.apis, *layout.workers)
        await processes.ready(*layout.names)
        yield processes
    except BaseException as error:
        for name in processes.names:
            error.add_note(processes.tail(name))
        raise
    finally:
        await processes.end()
