"""The end of a process.

Of SIGINT and SIGTERM the first cancels a start or stops a running stack in order, and the second ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from turngate.cli import terminal
from turngate.cli.errors import EXIT_CTRL_C

logger = logging.getLogger(__name__)

LEFTOVER_SECONDS: Final = 2.0
"""How long a server that has stopped waits for tasks that it has cancelled."""


class StopRequest:
    """Whether the process should stop. Until :meth:`running` is called, a signal cancels the task that starts the parts."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self._starting = asyncio.current_task()

    def running(self) -> None:
        """Mark the start as complete. From now on the caller itself waits for :attr:`requested`."""
        self._starting = None

    def on_signal(self) -> None:
        """Handle a signal."""
        if self.requested.is_set():
            terminal.note("stopped at once; runs continue at the next start")
            # Ending at once loses nothing: runs are durable, and the kernel ends the embedded Temporal with this process.
            os._exit(EXIT_CTRL_C)
        self.requested.set()
        if self._starting is not None:
            self._starting.cancel()


@contextmanager
def stop_on_posix_signals() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM. Raises typer.Exit when one comes before the start is complete."""
    stop = StopRequest()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.on_signal)
    try:
        yield stop
    except asyncio.CancelledError:
        if not stop.requested.is_set():
            raise
        terminal.note("stopped before the start was complete")
        raise typer.Exit(EXIT_CTRL_C) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def run_server(serving: Coroutine[Any, Any, None]) -> None:
    """Run a server until it ends, as ``asyncio.run`` does, and wait only for a moment for what has not ended.

    ``asyncio.run`` waits without a limit for the tasks that it cancels, and for its threads. A worker whose Temporal was killed
    while it stopped said that it had, and stayed for minutes. The caller must :func:`leave` afterwards.
    """
    runner = asyncio.Runner()
    try:
        runner.run(serving)
    finally:
        left = runner.run(_end_leftovers())
        if left:
            logger.warning("ended without waiting longer for: %s", "; ".join(left))
        else:
            runner.get_loop().close()  # not the runner, which would wait for the executor's threads


async def _end_leftovers() -> list[str]:
    """Cancel all other tasks, and say which of them have not ended after :data:`LEFTOVER_SECONDS`, and where they wait."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _ended, left = await asyncio.wait(left, timeout=LEFTOVER_SECONDS)
    return sorted(f"{task.get_name()} at {_place(task)}" for task in left)


def _place(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: the functions that await each other, the innermost last."""
    awaited: Any = task.get_coro()
    places = []
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")
        awaited = awaited.cr_await
    return " > ".join(places)


def leave(code: int) -> NoReturn:
    """End the process at once, with its streams flushed.

    The interpreter's own end will not do: the Temporal SDK's threads hand log lines to Python, and one that does so while the
    interpreter shuts down aborts the process (``PyGILState_Release: thread state must be current``). That happened once in
    some dozens of orderly stops.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader may be gone
            stream.flush()
    os._exit(code)
