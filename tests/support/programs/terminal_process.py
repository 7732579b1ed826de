"""The command line as its user meets it: processes of their own, with a pipe or a terminal at the other end.

They are forked from one that has imported their modules (:mod:`support.programs.forked_programs`), unless a test names the
program.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

from support.programs import forked_programs
from support.programs.forked_programs import Forked

TURNGATE = Path(sys.executable).parent / "turngate"
DEADLINE_SECONDS = 150.0
"""For anything to happen: generous, because a slow machine is no defect."""


def clean_environment(**more: str) -> dict[str, str]:
    """Our environment without what would change the command line's behaviour."""
    prefixes = ("TURNGATE_", "TEMPORAL_", "OPENAI_", "VISUAL", "EDITOR", "NO_COLOR", "FORCE_COLOR")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**inherited, "TERM": "xterm", "COLUMNS": "200", "TURNGATE_APPROVAL_PACE": "0", **more}


def turngate(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors, Path(os.devnull).open() as nothing:
        streams = (nothing.fileno(), output.fileno(), errors.fileno())
        program = forked_programs.start(arguments, cwd, clean_environment(**environment), streams)
        try:
            code = program.wait(DEADLINE_SECONDS)
        finally:
            program.kill()
        texts = [(each.seek(0), each.read())[1] for each in (output, errors)]
    return subprocess.CompletedProcess(["turngate", *arguments], code, *texts)


class Background:
    """A command that runs in the background; its output is read line by line.

    ``program``: is executed, instead of a fork that has none of ``environment`` in its ``/proc/PID/environ``.
    """

    def __init__(self, *arguments: str, cwd: Path, program: Path | None = None, **environment: str) -> None:
        reads, writes = os.pipe()
        variables = clean_environment(PYTHONUNBUFFERED="1", **environment)
        with ExitStack() as ends, Path(os.devnull).open() as nothing:
            ends.callback(os.close, writes)
            if program is None:
                streams = (nothing.fileno(), writes, writes)
                self.process: Forked | subprocess.Popen[bytes] = forked_programs.start(
                    arguments, cwd, variables, streams
                )
            else:
                ends_here = {"stdin": nothing, "stdout": writes, "stderr": writes}
                self.process = subprocess.Popen([str(program), *arguments], cwd=cwd, env=variables, **ends_here)
        self._screen = Screen(reads)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until something new that was printed matches."""
        return self._screen.wait_for(pattern)

    def exit_code(self) -> int:
        """Wait for the end."""
        return self.process.wait(DEADLINE_SECONDS)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and wait for the end; returns exit code and everything printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.exit_code()
        self._screen.read_rest()
        return code, self._screen.text


class InTerminal:
    """A command with a terminal on both ends, as a person has it."""

    def __init__(self, *arguments: str, cwd: Path, **environment: str) -> None:
        self._master, slave = pty.openpty()
        variables = clean_environment(**environment)
        self.process = forked_programs.start(arguments, cwd, variables, (slave, slave, slave), owns_terminal=True)
        os.close(slave)
        self._screen = Screen(self._master)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until something new on the screen matches."""
        return self._screen.wait_for(pattern)

    def press(self, keys: str) -> None:
        """Type something."""
        os.write(self._master, keys.encode())

    def exit_code(self) -> int:
        """Wait for the end."""
        self._screen.read_rest()
        code = self.process.wait(DEADLINE_SECONDS)
        os.close(self._master)
        return code


class Screen:
    """What came out of a descriptor, without colours."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._raw = b""
        self._seen = 0

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self._raw.decode(errors="replace")).replace("\r\n", "\n")

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            match = re.compile(pattern).search(self.text, self._seen)
            if match:
                self._seen = match.end()
                return match
            assert time.monotonic() < deadline, f"{pattern!r} did not come within {DEADLINE_SECONDS} s:\n{self.text}"
            assert self._read(1.0), f"{pattern!r} never came:\n{self.text}"

    def read_rest(self) -> None:
        while self._read(DEADLINE_SECONDS):
            pass

    def _read(self, seconds: float) -> bool:
        """Read what is there; False at the end."""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return True
        try:
            piece = os.read(self._descriptor, 65_536)
        except OSError:  # EIO: the terminal's other end is closed
            return False
        self._raw += piece
        return bool(piece)
