"""Who used the processor: this process's threads by role, and a process beside it. Linux only (/proc)."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def readable() -> bool:
    """Tell whether this system shows it."""
    return Path("/proc/self/schedstat").exists()


def by_thread() -> Counter[str]:
    """Return CPU seconds so far by the role of this process's threads (schedstat's first field is nanoseconds)."""
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        try:
            used = int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # a thread that ended meanwhile
            continue
        seconds[_role(python.get(int(task.name)))] += used
    return seconds


def of_process(pid: int) -> float:
    """Return CPU seconds so far of a process (proc_pid_stat(5): fields 14 and 15, in clock ticks)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def of_tree(pid: int) -> float:
    """Return CPU seconds so far of a process and its descendants, those included that have ended and were waited for."""
    return sum(_with_ended_children(each) for each in _tree(pid))


def _with_ended_children(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # it ended meanwhile
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


def _role(name: str | None) -> str:
    if name is None:
        return "Temporal SDK core (Rust threads)"
    if name == "MainThread":
        return "event loop (API, activities, SQLite statements)"
    if name.startswith("turngate-commit"):
        return "SQLite commits"
    if name.startswith("temporal_workflow"):
        return "workflow threads"
    return f"other Python threads ({name.rstrip('0123456789_-')})"
