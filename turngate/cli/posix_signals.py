"""SIGINT and SIGTERM: the first cancels a start or stops a running stack in order, the second ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

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
