"""The command line as its user meets it: real processes, with a pipe or a terminal at the other end."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

TURNGATE = Path(sys.executable).parent / "turngate"
DEADLINE_SECONDS = 90.0
"""For anything to happen: generous, because a slow machine is no defect."""


def clean_environment(**more: str) -> dict[str, str]:
    """Our environment without what would change the command line's behaviour."""
    prefixes = ("TURNGATE_", "TEMPORAL_", "OPENAI_", "VISUAL", "EDITOR", "NO_COLOR", "FORCE_COLOR")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**inherited, "TERM": "xterm", "COLUMNS": "200", "TURNGATE_APPROVAL_PACE": "0", **more}


def turngate(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [TURNGATE, *arguments],
        cwd=cwd,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


class Background:
    """A command that runs in the background; its output is read line by line."""

    def __init__(self, *arguments: str, cwd: Path, program: Path = TURNGATE, **environment: str) -> None:
        self.process = subprocess.Popen(
            [program, *arguments],
            cwd=cwd,
            env=clean_environment(PYTHONUNBUFFERED="1", **environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._screen = Screen(self.process.stdout.fileno())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until something new that was printed matches."""
        return self._screen.wait_for(pattern)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float, str]:
        """Send a signal and wait for the end; returns exit code, seconds, and everything printed."""
        begun = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(DEADLINE_SECONDS)
        took = time.monotonic() - begun
        self._screen.read_rest()
        return code, took, self._screen.text


class InTerminal:
    """A command with a terminal on both ends, as a person has it."""

    def __init__(self, *arguments: str, cwd: Path, **environment: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [TURNGATE, *arguments],
            cwd=cwd,
            env=clean_environment(**environment),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - only a session's own terminal turns Ctrl-C into SIGINT
        )
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


def _own_terminal() -> None:
    import fcntl  # noqa: PLC0415 - between fork and exec
    import termios  # noqa: PLC0415

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


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
