"""Programs that tests start and end: forked from one process that has imported Turngate's commands, for all test processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from select import select

from support.programs import prefork

IMPORTS = (
    "turngate.approvals_api.app",
    *(f"turngate.cli.commands.{each}" for each in ("access.tokens", "events.audit", "requests.requests", "runs.runs")),
    *(
        f"turngate.cli.commands.serve.{each}"
        for each in ("api", "dev", "migrate", "status", "temporal", "up", "worker")
    ),
    *(f"turngate.cli.commands.setup.{each}" for each in ("doctor", "init")),
    "turngate.cli.main",
    "turngate.toolkits",
    "uvicorn.protocols.http.auto",
)
"""What most of the programs that tests start import; a command imports the rest itself."""
FORK_SECONDS = 120.0
"""For the process that all are forked from to answer; it imports everything first."""


@dataclass(eq=False)
class Forked:
    """A program that was started: the part of ``Popen`` that tests need."""

    args: Sequence[str]
    pid: int
    _exits: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout)
        return code

    def send_signal(self, number: signal.Signals | int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float) -> int | None:
        if self.returncode is None and select([self._exits], [], [], seconds)[0]:
            code = os.read(self._exits, 16)
            os.close(self._exits)
            assert code, f"{self.args}: the process that it was forked from is gone"
            self.returncode = int(code)
        return self.returncode


@dataclass(eq=False)
class Origin:
    """The process that all are forked from, and the socket of each test process to it."""

    process: subprocess.Popen[bytes]
    first: socket.socket
    own: dict[int, socket.socket] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self) -> socket.socket:
        """Return this process's socket: one that has been forked since has none yet."""
        if os.getpid() not in self.own:
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                socket.send_fds(self.first, [b"{}"], [theirs.fileno()])
            self.own = {os.getpid(): ours}
        return self.own[os.getpid()]


_started: list[Origin] = []


def prepare() -> Origin:
    """Start the process that all are forked from, once; test processes that are forked later share it."""
    if not _started:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        arguments = [prefork.__file__, str(theirs.fileno()), str(os.getpid()), *IMPORTS]
        with theirs:
            process = subprocess.Popen([sys.executable, "-P", *arguments], pass_fds=[theirs.fileno()])
        _started.append(Origin(process, ours))
    return _started[0]


def close() -> None:
    """End that process, and with it every program that still runs."""
    while _started:
        origin = _started.pop()
        origin.first.close()
        origin.process.wait(FORK_SECONDS)


def start(
    arguments: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    *,
    executable: str = "",
    paths: Sequence[str] = (),
    owns_terminal: bool = False,
) -> Forked:
    """Start a command of Turngate, or the program ``executable``.

    ``paths``: where it finds modules besides the environment's. ``owns_terminal``: its stdin is the terminal of its session.
    """
    order = {
        "argv": [executable or "turngate", *arguments],
        "directory": str(directory),
        "environment": dict(environment),
        "executable": executable,
        "paths": list(paths),
        "owns_terminal": owns_terminal,
    }
    origin = prepare()
    reads, writes = os.pipe()
    with origin.lock:
        client = origin.client()
        client.settimeout(FORK_SECONDS)
        socket.send_fds(client, [json.dumps(order).encode()], [*streams, writes])
        os.close(writes)
        pid = client.recv(16)
    assert pid, "the process that programs are forked from is gone"
    return Forked(order["argv"], int(pid), reads)
