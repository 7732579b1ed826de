"""Restores a backup in processes that are killed one change of a file later each time, until one gets to its end.

Prints one line of JSON for each: what a process that opens the store then meets, and whether the next restore finishes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from turngate.cli.commands.recovery import restore as restoring
from turngate.domain.errors import UnfinishedRestoreError
from turngate.runtime import locations
from turngate.store.database import Database


def forked(work: Callable[[], object]) -> int:
    """Run ``work`` in a process of its own, and return how that ended: 0, or less the number of the signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:  # Nothing of this process may continue in the other one.
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def restore(backup: Path, home: Path) -> None:
    with redirect_stdout(StringIO()):
        restoring.restore(backup, replace=True, data_dir=home)


def killed_at(change: int, work: Callable[[], object]) -> Callable[[], None]:
    """Let ``work`` be killed right before the given change of a file, counted from the first in the store's directory."""

    def counted(change_file: Callable[..., Any]) -> Callable[..., Any]:
        def change_or_die(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return change_file(*args, **options)

        return change_or_die

    left = change

    def run() -> None:
        put_in_place = restoring._put_in_place

        def begin_counting(*args: Any) -> None:
            for name in ("replace", "unlink", "chmod", "write_text"):
                setattr(Path, name, counted(getattr(Path, name)))
            shutil.move = counted(shutil.move)  # type: ignore[assignment]
            restoring._sync = counted(restoring._sync)
            put_in_place(*args)

        restoring._put_in_place = begin_counting
        work()

    return run


def opened(store: Path) -> str:
    """Return what a process meets that opens the store: whose it is, or "refused"."""
    database = Database(f"sqlite:///{store}")

    async def look() -> None:
        try:
            await database.schema_revision()
        finally:
            await database.close()

    try:
        asyncio.run(look())
    except UnfinishedRestoreError:
        return "refused"
    with closing(sqlite3.connect(store)) as connection:
        return str(connection.execute("SELECT name FROM api_tokens WHERE name IN ('old', 'new')").fetchone()[0])


def instant_of(temporal: Path) -> int:
    """Return which of Temporal's databases this is."""
    with closing(sqlite3.connect(temporal)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def main(backup: Path, old: Path, scratch: Path, every: int) -> None:
    """``old``: a data directory with another store, which is restored over in copies under ``scratch``."""
    for change in count(step=every):
        home = scratch / str(change)
        shutil.copytree(old, home)
        ended = forked(killed_at(change, lambda home=home: restore(backup, home)))  # type: ignore[misc]
        met = opened(home / "turngate.db")
        again = ended if ended == 0 else forked(lambda home=home: restore(backup, home))  # type: ignore[misc]
        asides = sorted(each.name for each in home.glob("*.before-restore-*"))
        line = {
            "ended": ended,
            "met": met,
            "again": again,
            "then": opened(home / "turngate.db"),
            "temporal": instant_of(home / locations.TEMPORAL_DB),
            "aside": [opened(home / each) for each in asides if each.startswith("turngate.db.") and "-wal" not in each],
            "files": sorted(each.name for each in home.iterdir() if each.name not in asides),
        }
        print(json.dumps(line), flush=True)
        shutil.rmtree(home)
        if ended == 0:
            return


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), int(sys.argv[4]))
