"""The process beside the worker of ``turngate dev``: watches the app's files, and starts a new worker when one changes.

The app is never loaded in this process, which serves the API and the pages. So a changed module is a fresh one, and an error in
it leaves the worker that runs as it is. What a run may have changed is loaded once the person at the terminal has accepted it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import termios
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from turngate.cli import terminal
from turngate.cli.dev.script_steps import script_steps
from turngate.cli.dev.worker_process import MOST_LINE_BYTES
from turngate.cli.parts.worker import SIGN_OFF_SECONDS
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.tool import ToolManifest
from turngate.models.registry import Models, ModelSettings
from turngate.models.scripted import ScriptedModel
from turngate.runtime import import_guard
from turngate.runtime.import_guard import ImportGuard, Seen
from turngate.runtime.settings import Settings, environment_names
from turngate.store import clock
from turngate.store.database import Database
from turngate.store.runs import executions
from turngate.text.plain_text import plain
from turngate.wire.playground import PaceOrder, RunMessages, ScriptSteps, Trial, TrialOrder

LOOK_SECONDS: Final = 0.3
"""Between two looks at the files' times. Two looks that are alike end a change, as editors write more than once."""
MOST_FILES: Final = 5_000
MOST_SPANS: Final = 10_000
CLOCK_SECONDS: Final = 0.05
"""As far as the times of files may be earlier than the clock says: a tick of the kernel's."""
PROCESS_END_SECONDS: Final = SIGN_OFF_SECONDS + 4
TRIAL_SECONDS: Final = 60.0
_TOOLS: Final = TypeAdapter(dict[str, list[ToolManifest]])
WORKER: Final = "turngate.cli.dev.worker_process"
FIRST: Final = Path(import_guard.__file__).read_bytes()
"""What a worker runs before it may import anything that a run may have changed, as it is now."""

Times = dict[str, tuple[int, int] | None]
"""File → when it was changed (ns) and its size; None: it is not there."""


def times_of(files: Iterable[str]) -> Times:
    """Return when each of these files was changed last."""
    times: Times = {}
    for file in sorted(files)[:MOST_FILES]:
        try:
            status = os.stat(file)  # noqa: PTH116 - one system call, hundreds of times a minute
        except OSError:
            times[file] = None
        else:
            times[file] = (status.st_mtime_ns, status.st_size)
    return times


def _merged(times: Iterable[tuple[datetime, datetime | None]]) -> tuple[tuple[float, float], ...]:
    """Return when handlers ran, in seconds since 1970, as few spans. Beyond ``MOST_SPANS`` the older ones count as one."""
    spans: list[tuple[float, float]] = []
    for start, end in times:
        start_at = start.timestamp() - CLOCK_SECONDS
        end_at = 1e12 if end is None else end.timestamp() + CLOCK_SECONDS
        if spans and start_at <= spans[-1][1]:
            start_at, end_at = spans[-1][0], max(spans.pop()[1], end_at)
        spans.append((start_at, end_at))
    older = spans[:-MOST_SPANS]
    return (*([(older[0][0], older[-1][1])] if older else []), *spans[-MOST_SPANS:])


@dataclass
class RunningWorker:
    """A worker's process. ``agents``: a line about each, once it has loaded the app.

    ``grace_seconds``: what its activities get at a stop.
    """

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    agents: list[str]
    grace_seconds: int
    _asked_to_stop: bool = False

    async def stop(self) -> None:
        """Let running tools finish for some seconds, then end the process. Safe to repeat, also while it is stopping.

        One that has not begun to serve ends at once.
        """
        if not self._asked_to_stop and self.process.returncode is None:
            self._asked_to_stop = True  # a second signal would cut its tools off
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
        try:
            async with asyncio.timeout(self.grace_seconds + PROCESS_END_SECONDS):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        self.writer.close()  # after its end: a closed channel, too, asks it to stop


@dataclass
class Workshop:
    """The worker of an app under development. ``error``: why the app as it is now can't be loaded; empty: it runs.

    ``files``: what the app was loaded from, or what failed to load. ``tools``: agent → its tools, of the worker that runs.
    ``metrics``: where each worker serves its metrics, one after the other; None: nowhere.
    """

    target: str
    settings: Settings
    metrics: socket.socket | None = None
    temporal_address: str = ""
    worker: RunningWorker | None = None
    error: str = ""
    files: set[str] = field(default_factory=set)
    tools: Mapping[str, Sequence[ToolManifest]] = field(default_factory=dict)
    one_step_at_a_time: bool = False
    _scripts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _models: Models | None = None
    _started: list[RunningWorker] = field(default_factory=list)
    _began: datetime = field(default_factory=clock.now)
    _database: Database | None = None
    _server_places: tuple[Path, ...] = ()
    _refused: Seen = field(default_factory=dict)
    _accepted: Seen = field(default_factory=dict)
    _accepted_at: float = 0
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def try_call(self, order: TrialOrder) -> Trial:
        """Let the worker say what would happen to a call; see :mod:`turngate.cli.dev.trials`."""
        async with self._one_at_a_time:
            worker = self.worker
            if worker is None:
                return Trial(problem="the worker doesn't run: fix the app first")
            try:
                async with asyncio.timeout(TRIAL_SECONDS):
                    worker.writer.write(order.model_dump_json().encode() + b"\n")
                    line = await worker.reader.readline()
                return Trial.model_validate_json(line)
            except (TimeoutError, OSError, ValueError):
                # What it may still answer must not be taken for the answer to the next question.
                await worker.stop()
                return Trial(problem="the worker gave no answer, and was stopped; its log says why")

    def script_steps(self, agent: str, script: str = "", run: RunMessages | None = None) -> ScriptSteps | None:
        """Return a script of an agent, and what a run took of it; None: no model of it plays one. May read a file."""
        scripts = tuple(self._scripts.get(agent, ()))
        if self._models is None or not scripts:
            return None
        spec = script if script in scripts else scripts[0]
        try:
            model = self._models.resolve(spec)
        except ConfigurationError as error:
            return ScriptSteps(model=spec, of_agent=scripts, problem=error.message)
        if not isinstance(model, ScriptedModel):
            return None
        return script_steps(model, spec, run).model_copy(update={"of_agent": scripts})

    async def set_pace(self, order: PaceOrder) -> None:
        """Let runs pause after each answer of a scripted model, or not; also those of workers that start later."""
        async with self._one_at_a_time:
            self.one_step_at_a_time = order.one_step_at_a_time
            if self.worker is not None:
                with contextlib.suppress(OSError):  # it has ended: the next one gets it
                    self.worker.writer.write(order.model_dump_json().encode() + b"\n")
                    await self.worker.writer.drain()

    async def load(self) -> bool:
        """Load the app in a new process, which takes over if that works; else the former one runs on. Return whether it works."""
        ours, theirs = socket.socketpair()
        pace = PaceOrder(one_step_at_a_time=self.one_step_at_a_time)
        inherited = [theirs.fileno()] if self.metrics is None else [theirs.fileno(), self.metrics.fileno()]
        began, guard = clock.now().timestamp() - CLOCK_SECONDS, await self._guard()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-S", "-",  # -P: nothing beside the app is taken for a library
                WORKER, str(theirs.fileno()), os.environ.get("PYTHONPATH", ""),
                str(os.getpid()), self.target, "step" if pace.one_step_at_a_time else "run",
                "-" if self.metrics is None else str(self.metrics.fileno()),
                env=self._environment(), pass_fds=inherited, stdin=asyncio.subprocess.PIPE,
                process_group=0,  # Ctrl-C is for the process that stops the parts in order
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours, limit=MOST_LINE_BYTES)
        worker = RunningWorker(process, reader, writer, [], self.settings.stop_grace_seconds)
        self._started = [*(each for each in self._started if each.process.returncode is None), worker]
        if process.stdin is not None:
            process.stdin.write(FIRST)
            process.stdin.close()
        writer.write(guard.as_json.encode() + b"\n")
        line = b""
        with contextlib.suppress(OSError):  # it has ended without reading that
            line = await reader.readline()
        message: dict[str, Any] = {"error": f"the worker of {self.target} ended while it started; the log says why"}
        if line:
            message = json.loads(line)
        seen = ImportGuard(loaded=message.get("loaded", {}), refused=message.get("refused", {}))
        self._accepted, self._refused = self._accepted | seen.loaded, seen.refused
        self.files |= {*message.get("files", ()), *(path for path, _state in self._refused.values())}
        if "error" in message:
            await worker.stop()
            self.error = message["error"]
            return False
        former, self.error, self._accepted_at = self.worker, "", began
        worker.agents = message["agents"]
        self.worker, self.files = worker, set(message["files"])
        self.tools = _TOOLS.validate_python(message["tools"])
        self._server_places = tuple(map(Path, message["server_places"]))
        self._scripts, self._models = message["scripts"], Models(ModelSettings(script_base=Path(message["base"])))
        if pace.one_step_at_a_time != self.one_step_at_a_time:  # someone changed it meanwhile
            await self.set_pace(PaceOrder(one_step_at_a_time=self.one_step_at_a_time))
        if former is not None:
            async with self._one_at_a_time:
                await former.stop()
        return True

    async def _guard(self) -> ImportGuard:
        """Return which files a new worker must not load. The first one loads what is there: a person has started it."""
        places = tuple(each.resolve() for each in self.settings.workspaces or ())
        if self._database is None or not self.files:
            return ImportGuard(places=places)
        at = clock.now()
        async with self._database.read() as conn:
            times = await executions.times(conn)
        return ImportGuard(
            places=places,
            spans=_merged(times),
            since=at.timestamp() - CLOCK_SECONDS,
            of_servers=self._server_places,
            servers_since=self._began.timestamp(),
            accepted=self._accepted,
            accepted_at=self._accepted_at,
        )

    def _environment(self) -> dict[str, str]:
        """Return the worker's environment: this process's, with what its command line says."""
        settings = self.settings
        values = {
            "data_dir": str(settings.data_dir),
            "temporal_address": self.temporal_address,
            "workspaces": os.pathsep.join(map(str, settings.workspaces or ())),
            "allow_unconfined": "true" if settings.allow_unconfined else "",
            "metrics_port": "" if settings.metrics_port is None else str(settings.metrics_port),
        }
        named = {environment_names(name)[0]: value for name, value in values.items() if value}
        # Two changes in one second may leave a compiled module that is of the first.
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it gets that later
        return {**own, **named, "PYTHONDONTWRITEBYTECODE": "1"}

    @asynccontextmanager
    async def serving(
        self, temporal_address: str, database: Database | None = None
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Start the worker, and keep it up to date. Yields the task that does so. ``database``: knows when tool calls ran."""
        self.temporal_address, self._database = temporal_address, database
        task: asyncio.Task[None] | None = None
        try:
            if not await self.load():
                self._tell("fix it; the worker starts as soon as a file has changed")
            task = asyncio.create_task(self._keep_loaded(times_of(self.files)), name="worker")
            yield task
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            # During a reload there are two: the former one, and one that starts.
            await asyncio.gather(*(each.stop() for each in self._started))
            if self.metrics is not None:
                self.metrics.close()

    async def _keep_loaded(self, seen: Times) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._note_end()
            now = await asyncio.to_thread(times_of, self.files | set(seen))
            changed = sorted(file for file, time in now.items() if file in seen and time != seen[file])
            changed = changed or [seen[0] for name, seen in self._refused.items() if self._accepted.get(name) == seen]
            if not changed:
                seen = now
                continue
            now = await self._settled(now)
            names = ", ".join(plain(Path(file).name) for file in changed)
            if await self.load():
                agents = "; ".join(self.worker.agents) if self.worker else ""
                terminal.note(("reloaded", "bold green"), f" after a change of {names}: {agents}")
            elif self._refused:
                self._ask()
            else:
                self._tell("the former version runs on; fix it, and it is loaded again")
            seen = {file: now.get(file, time) for file, time in times_of(self.files).items()}

    async def _settled(self, now: Times) -> Times:
        """Return the files' times once two looks are alike."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            again = await asyncio.to_thread(times_of, list(now))
            if again == now:
                return again
            now = again

    def _ask(self) -> None:
        """Ask the person at the terminal whether what a run may have changed is loaded."""
        if not terminal.is_interactive() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
            self._tell(
                "the former version runs on; look at what has changed, and start `turngate dev` again to load it"
            )
            return
        termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before it was asked is no answer
        asyncio.get_running_loop().add_reader(sys.stdin, self._accept)
        self._tell("the former version runs on; look at what has changed, and press Enter to load it as it is now")

    def _accept(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin)
        if sys.stdin.readline():
            self._accepted |= self._refused

    def _note_end(self) -> None:
        """Say once that the worker ended by itself. The next change starts another one."""
        worker = self.worker
        if worker is not None and worker.process.returncode is not None:
            self.error = (
                f"the worker ended by itself, with exit code {worker.process.returncode}; the log above says why"
            )
            self.worker = None
            self._tell("its runs wait; the worker starts again as soon as a file has changed")

    def _tell(self, meanwhile: str) -> None:
        terminal.error(plain(self.error))
        terminal.note((meanwhile, "yellow"))
