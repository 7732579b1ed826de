"""A child process with everything it starts: one group, one pipe, one end.

Owns starting, draining and killing; ``process_tree`` finds what left the group. Why not
``asyncio.create_subprocess_exec``: its ``wait()`` may wait for every holder of the pipe (cpython issue 119710), so
``sleep 1000 &`` would hang the call; and it reaps the leader at once, after which the group's number may belong to
someone else by the time it is killed. Here the leader stays a zombie, and so holds the number, until its group is dead.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from turngate.toolkits.confinement.launcher import END_ALL
from turngate.toolkits.confinement.sandbox import Command
from turngate.toolkits.processes.head_tail import HeadTail

# Finding and killing what a command started, wherever it went.
#
# A process that made a session of its own (``setsid``, a daemon) has left its group, and once its parent is dead nothing
# ties it to the command but its environment, which every child inherits. So each command carries a mark there, and
# ``/proc`` is searched for it (proc_pid_environ(5)). What is left: of a command that runs unconfined, a process that cleared its
# environment *and* left the group; and systems without ``/proc``, where only the group is killed.


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
    any_killed = False
    with suppress(FileNotFoundError):  # no /proc
        for process in _PROC.iterdir():
            if process.name.isdecimal() and _holds(process, entry):
                any_killed |= _kill(int(process.name), process, entry)
    return any_killed


def _holds(process: Path, entry: bytes) -> bool:
    # Gone, a zombie (empty), or someone else's (refused): not ours.
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


DRAIN_SECONDS = 0.2
"""How long output may still come after the leader ended or the group was killed."""
_CHUNK = 65_536


class ProcessGroup:
    """One running group. Use: construct, ``exits_within``, then always ``end``; all on one event loop."""

    def __init__(self, command: Command, output: HeadTail) -> None:
        """Start a confined program as the leader of a new session, without stdin, stdout and stderr merged into ``output``.

        Raises OSError when it cannot be started.
        """
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._closed = asyncio.Event()
        self._mark = secrets.token_hex(16)
        self._leader_passes_on = command.passes_on_signals
        self._reader, writer = os.pipe()
        try:
            os.set_blocking(self._reader, False)
            self._process = subprocess.Popen(
                command.argv,
                cwd=command.directory,
                env={**command.environment, MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._reader)
            raise
        finally:
            os.close(writer)
        self._loop.add_reader(self._reader, self._read)
        self._exit = self._loop.create_task(self._wait_for_leader())

    @property
    def pid(self) -> int:
        """The leader's process id, which is also the number of its group and session."""
        return self._process.pid

    async def exits_within(self, seconds: float) -> bool:
        """Wait for the leader to end; False when it still runs. May be cancelled and called again."""
        done, _ = await asyncio.wait([self._exit], timeout=seconds)
        return bool(done)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the whole group; a group that is gone is no error. Not after :meth:`end`."""
        # PermissionError: macOS answers so when only zombies are left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def ask_to_end(self) -> None:
        """Send SIGTERM to what may have last words. Not after :meth:`end`.

        A leader that confines the others passes it on.
        """
        if self._leader_passes_on:
            os.kill(self.pid, signal.SIGTERM)
        else:
            self.send(signal.SIGTERM)

    async def end(self) -> int:
        """Kill what is left of the group and what left it, take the last output, reap the leader. Call it exactly once.

        Returns the exit code as a shell gives it: 128 + n for a leader that signal n ended. The group is killed before
        the first await, and a thread that sweeps up the rest is never called off: a cancellation can delay nothing but
        the cleaning up.
        """
        if self._leader_passes_on:
            with suppress(ProcessLookupError):
                os.kill(self.pid, END_ALL)
        else:
            self.send(signal.SIGKILL)
        sweep = self._loop.run_in_executor(None, self._sweep)
        try:
            await asyncio.wait([self._exit, sweep])
            await self.drained()
        finally:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            code = self._process.wait()  # It was killed; only the kernel's own delay is waited for.
        return code if code >= 0 else 128 - code

    def _sweep(self) -> None:
        """Kill what the leader has left. A leader that ends all it knows of needs a moment, and dead it couldn't."""
        until = time.monotonic() + SWEEP_SECONDS
        while not self._leader_has_ended() and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS)
        self.send(signal.SIGKILL)
        kill_marked(self._mark)

    def _leader_has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # and was reaped
            return True

    async def drained(self) -> bool:
        """Wait until no one holds the pipe any more, at most ``DRAIN_SECONDS``; False when someone still does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._closed.wait()
        return self._closed.is_set()

    def _read(self) -> None:
        try:
            chunk = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self._output.feed(chunk)
            return
        self._loop.remove_reader(self._reader)
        self._closed.set()

    async def _wait_for_leader(self) -> None:
        descriptor = _pidfd(self.pid)
        if descriptor is None:  # A thread waits, and reaps, for as long as the command runs.
            await asyncio.to_thread(self._process.wait)
            return
        ended = asyncio.Event()
        self._loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, without reaping it (pidfd_open(2)), or None."""
    if sys.platform == "linux":
        with suppress(OSError):  # Kernels before 5.3, and sandboxes that forbid it.
            return os.pidfd_open(pid)
    return None
