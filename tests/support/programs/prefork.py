"""The process that tests fork programs from: it has imported what they need, and done nothing else.

An import of Turngate's commands takes three seconds of processor time, and the tests start programs by the hundred. What runs
in each is the command itself: its arguments, its settings, its app. :mod:`support.programs.forked_programs` is the other side.

Arguments: a socket, the pid of the process that started this one, and modules to import. A message on a socket is a JSON object
with descriptors: one of :data:`START` starts a program, any other opens a further socket for another test process. The programs
that were started over a socket die with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import sys
import termios
import warnings
from contextlib import suppress
from select import select
from typing import Any, NoReturn

START = 4
"""Descriptors: stdin, stdout, stderr, and the pipe into which the exit code is written. The answer is the pid."""
MOST_BYTES = 1 << 17
PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Origin:
    """``clients``: their sockets. ``running``: pidfd → pid, exit pipe and client of a program that has not ended."""

    def __init__(self, first: socket.socket) -> None:
        self.clients = {first.fileno(): first}
        self.running: dict[int, tuple[int, int, int]] = {}

    def serve(self) -> None:
        """Serve until the first client is gone."""
        first = next(iter(self.clients))
        while first in self.clients:
            for ready in select([*self.clients, *self.running], [], [])[0]:
                if ready in self.running:
                    self.reap(ready)
                else:
                    self.answer(ready)

    def reap(self, pidfd: int) -> None:
        """Report how a program has ended."""
        pid, exits, _client = self.running.pop(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError):
            os.write(exits, str(code).encode())
        os.close(exits)
        os.close(pidfd)

    def answer(self, number: int) -> None:
        client = self.clients[number]
        message, descriptors, *_ = socket.recv_fds(client, MOST_BYTES, START)
        if not message:
            del self.clients[number]
            client.close()
            for pidfd in [each for each, (*_, owner) in self.running.items() if owner == number]:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return
        if len(descriptors) < START:
            other = socket.socket(fileno=descriptors[0])
            self.clients[other.fileno()] = other
            return
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for each in (
                *self.clients,
                *self.running,
                descriptors[-1],
                *(exits for _, exits, _ in self.running.values()),
            ):
                os.close(each)
            become(json.loads(message), parent, descriptors[:3])
        for each in descriptors[:3]:
            os.close(each)
        self.running[os.pidfd_open(pid)] = pid, descriptors[-1], number
        client.send(str(pid).encode())


def become(order: dict[str, Any], parent: int, streams: list[int]) -> NoReturn:
    """Run one command of Turngate in this new process, or the program ``executable`` in its place."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, source in enumerate(streams):
        os.dup2(source, stream)
        os.close(source)
    if order["owns_terminal"]:  # only a session's own terminal turns Ctrl-C into SIGINT
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    if order["executable"]:
        os.execv(order["executable"], order["argv"])  # noqa: S606 - no shell; the wish to die with the parent outlives this
    sys.argv = order["argv"]
    sys.path[:0] = order["paths"]
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
    from turngate.cli.main import main  # noqa: PLC0415 - imported already

    main()


def main() -> None:
    """Import, then serve."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the process that runs the tests
    die_with(int(sys.argv[2]))
    for name in sys.argv[3:]:  # after the wish to die with the parent
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    Origin(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
