"""The end of a process.

Of SIGINT and SIGTERM the first cancels a start or stops a running stack in order, and the second ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import typer

from turngate.cli import terminal
from turngate.cli.errors import EXIT_CTRL_C


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
