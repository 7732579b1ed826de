"""SIGINT and SIGTERM, as something a program can wait for."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from turngate.cli import terminal
from turngate.cli.failing import EXIT_CTRL_C


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Give an event that the first SIGINT or SIGTERM sets. The second one ends the process at once.

    Ending at once loses nothing: runs are durable, and the kernel ends the embedded Temporal with us.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            terminal.note("stopped at once; runs go on at the next start")
            os._exit(EXIT_CTRL_C)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
