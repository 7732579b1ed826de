"""Notices an event loop that stalls: code in it holds the processor or waits without giving way (DESIGN §4, I14).

A loop that stalls can't say so itself. A thread looks at the loop's last sign of life, logs what the loop is doing, and keeps
when that was. ``/readyz`` asks for it after the stall; during the stall, ``/readyz`` does not answer at all. A process without
HTTP has a file whose time is that of the last sign of life: a probe looks at its age. Its one word is ``running``, or
``draining`` after a request to stop, while the process finishes what it has begun.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from turngate.domain.errors import ConfigurationError

logger = logging.getLogger(__name__)

LIMIT_SECONDS: Final = 5.0
"""Longer than any bounded check takes on a busy machine."""
BEAT_SECONDS: Final = 0.5
RUNNING: Final = "running"
DRAINING: Final = "draining"
REMEMBERED_SECONDS: Final = 15.0
"""After a stall: a readiness probe every ten seconds sees it once."""


class LoopWatch:
    """Watches the running event loop while the block runs: ``async with LoopWatch("worker") as watch``.

    Args:
        name: of the loop, for the log.
        limit_seconds: how long the loop may give no sign of life.
        file: gets the time of each sign and the state, and is removed at the end. None: none. Its directory must exist.
    """

    def __init__(self, name: str, *, limit_seconds: float = LIMIT_SECONDS, file: Path | None = None) -> None:
        self._name, self._limit, self._file = name, limit_seconds, file
        self._last_sign = time.monotonic()
        self._last_stall: float | None = None
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._signing: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True)

    @property
    def has_stalled(self) -> bool:
        """Whether the loop stalls now or did within the last 15 seconds. Callable from any thread."""
        if self._silence() > self._limit:
            return True
        return self._last_stall is not None and time.monotonic() - self._last_stall < REMEMBERED_SECONDS

    async def __aenter__(self) -> Self:
        """Start to watch. Raises ConfigurationError when the file cannot be written."""
        self._write(RUNNING)
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._last_sign = time.monotonic()
        self._signing = asyncio.create_task(self._sign(), name=f"signs-of-{self._name}")
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._ended.set()
        if self._signing is not None:
            self._signing.cancel()
            await asyncio.gather(self._signing, return_exceptions=True)
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def drain(self) -> None:
        """Say in the file that the process takes no new work and ends soon. Safe to repeat."""
        with suppress(ConfigurationError):
            self._write(DRAINING)

    async def _sign(self) -> None:
        while True:
            self._last_sign = time.monotonic()
            with suppress(ConfigurationError):  # the file grows old, which says it
                self._touch()
            await asyncio.sleep(min(BEAT_SECONDS, self._limit / 4))

    def _touch(self) -> None:
        # On the loop itself, not in a thread, which would live on without it.
        if self._file is None:
            return
        with self._writable(self._file):
            os.utime(self._file)

    def _write(self, state: str) -> None:
        if self._file is None:
            return
        with self._writable(self._file):
            # Renamed, so that a probe never reads an empty file.
            new = self._file.with_name(f".{self._file.name}.new")
            new.touch(mode=0o600)
            new.write_text(f"{state}\n", encoding="ascii")
            new.replace(self._file)

    @staticmethod
    @contextmanager
    def _writable(file: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(f"the health file {file} cannot be written: {error.strerror}") from None

    def _silence(self) -> float:
        return time.monotonic() - self._last_sign

    def _watch(self) -> None:
        is_stalled = False
        while not self._ended.wait(min(BEAT_SECONDS, self._limit / 4)):
            if self._loop is not None and not self._loop.is_running():
                # Between two `run_until_complete` of a program that embeds this: no code holds the loop, and no one waits in it.
                self._last_sign = time.monotonic()
            elif self._silence() > self._limit:
                self._last_stall = time.monotonic()
                if not is_stalled:
                    logger.error(
                        "the event loop of %s has stalled for %.1f s; it is at\n%s",
                        self._name,
                        self._silence(),
                        self._stack(),
                    )
                is_stalled = True
            elif is_stalled:
                logger.warning("the event loop of %s runs again", self._name)
                is_stalled = False

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the documented way to another thread's stack
        # Places only: a line of code is ours, the values in it are not.
        return "".join(traceback.format_stack(frame)) if frame is not None else "(its thread has ended)"
