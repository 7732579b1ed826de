"""Noticing that nobody reads stdout any more, also while there is nothing to write: ``turngate watch RUN | head -1``.

A write to a pipe without a reader fails, but a command that waits for a person's decision may not write for days.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


def when_unread(tell: Callable[[], None]) -> None:
    """Call ``tell``, on a thread of its own, once stdout is a pipe that has lost its reader; never for anything else."""
    with suppress(OSError, ValueError):  # closed, or none of the system's
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=_wait, args=(descriptor, tell), name="stdout-reader", daemon=True).start()


def _wait(descriptor: int, tell: Callable[[], None]) -> None:
    poller = select.poll()
    poller.register(descriptor, 0)  # for no event: errors and hang-ups are told always
    with suppress(OSError):
        poller.poll()
        tell()
