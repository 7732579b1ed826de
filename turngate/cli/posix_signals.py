"""SIGINT and SIGTERM: a start is given up, a running stack is stopped in order, and a second signal ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from turngate.cli import terminal
from turngate.cli.errors import EXIT_CTRL_C


class StopSignal:
    """Whether we were told to stop. Until :meth:`running` is called, being told cancels the task that starts the parts."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self._starting = asyncio.current_task()

    def running(self) -> None:
        """Say that everything has started: from here on the program itself waits for :attr:`told`."""
        self._starting = None

    def on_signal(self) -> None:
        """Take note of a signal."""
        if self.told.is_set():
            terminal.note("stopped at once; runs go on at the next start")
            # Ending at once loses nothing: runs are durable, and the kernel ends the embedded Temporal with us.
            os._exit(EXIT_CTRL_C)
        self.told.set()
        if self._starting is not None:
            self._starting.cancel()


@contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """Catch SIGINT and SIGTERM. Raises typer.Exit when one came before everything had started."""
    stop = StopSignal()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.on_signal)
    try:
        yield stop
    except asyncio.CancelledError:
        if not stop.told.is_set():
            raise
        terminal.note("stopped before everything had started")
        raise typer.Exit(EXIT_CTRL_C) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
