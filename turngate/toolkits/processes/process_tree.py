"""Finding and killing what a command started, wherever it went.

A process that made a session of its own (``setsid``, a daemon) has left its group, and once its parent is dead nothing
ties it to the command but its environment, which every child inherits. So each command carries a mark there, and
``/proc`` is searched for it (proc_pid_environ(5)). What is left: a process that cleared its environment *and* left
the group, and systems without ``/proc``, where only the group is killed.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "TURNGATE_COMMAND"
"""The environment variable that holds a command's mark."""
SWEEP_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.005

_PROC = Path("/proc")


def kill_marked(mark: str) -> None:
    """Kill every process whose environment holds ``MARK=mark``, until none is left or ``SWEEP_SECONDS`` are over.

    Blocking: call it from a thread. Safe to repeat. A process that forks meanwhile is found on the next round.
    """
    until = time.monotonic() + SWEEP_SECONDS
    while _kill_once(f"{MARK}={mark}".encode()) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)


def _kill_once(entry: bytes) -> bool:
    """Kill those there are now; returns whether there were any."""
    found = False
    with suppress(FileNotFoundError):  # no /proc
        for process in _PROC.iterdir():
            if process.name.isdecimal() and _holds(process, entry):
                found |= _kill(int(process.name), process, entry)
    return found


def _holds(process: Path, entry: bytes) -> bool:
    # Gone, a zombie (empty), or somebody else's (refused): none of ours.
    with suppress(OSError):
        return entry in (process / "environ").read_bytes().split(b"\0")
    return False


def _kill(pid: int, process: Path, entry: bytes) -> bool:
    # The number may belong to another process by now. A descriptor pins it; what is asked after it is about that one.
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if _holds(process, entry):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False
