"""Where a process hangs: the stack of each of its threads and asyncio tasks, which it writes when it gets a signal.

The threads' stacks are written at once, whatever the threads do (faulthandler). Those of the tasks follow as soon as the main
thread runs Python again: at once when it waits for something, never when it is stuck in a library.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any

ASKED_BY = signal.SIGUSR1
WRITE_SECONDS = 5.0
LAST_LINE = "(end of the stacks)\n"


def write_stacks_when_asked(path: Path) -> None:
    """Let this process write its stacks to this file on the signal."""
    file = path.open("w", buffering=1)

    def write_tasks(_signal: int, _frame: FrameType | None) -> None:
        for line in task_lines():
            file.write(line)
        file.write(LAST_LINE)

    signal.signal(ASKED_BY, write_tasks)
    faulthandler.register(ASKED_BY, file, all_threads=True, chain=True)


def read_stacks(pid: int, path: Path) -> str:
    """Ask another process for its stacks; return what it has written when it is done, or after five seconds."""
    if not path.exists():
        return "(no stacks: it has not begun)"
    os.kill(pid, ASKED_BY)
    until = monotonic() + WRITE_SECONDS
    while not path.read_text().endswith(LAST_LINE) and monotonic() < until:
        sleep(0.05)
    return path.read_text()


def task_lines() -> Iterator[str]:
    """The stacks of the tasks that are not done, on each event loop of this process, as lines."""
    for task in [each for each in gc.get_objects() if issubclass(type(each), asyncio.Task)]:
        if not task.done():
            yield f"\nTask {task.get_name()}, which awaits (most recent call last):\n"
            yield from _awaited_lines(task.get_coro())


def _awaited_lines(awaited: Any) -> Iterator[str]:
    """One line for each coroutine or generator, from the outermost to what it awaits in the end."""
    while awaited is not None:
        for kind in ("cr", "ag", "gi"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                code = frame.f_code
                yield f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_qualname}\n'
                break
        else:
            yield f"  {type(awaited).__qualname__}\n"
            return
        awaited = getattr(awaited, f"{kind}_await" if kind != "gi" else "gi_yieldfrom", None)
