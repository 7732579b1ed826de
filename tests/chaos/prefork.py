"""The process that every process of a chaos run is forked from: it has imported what they need, and done nothing else.

An import of Turngate's servers takes two seconds of processor time, and a chaos run starts processes by the hundred. What
runs in each is the command itself: its arguments, its settings, its app.

Reads one JSON object a line on stdin (``life``, ``executable``, ``argv``, ``environment``, ``directory``, ``log``), answers each
with ``{"pid": …}`` on stdout, and appends ``{"life": …, "pid": …, "code": …}`` to a file when one of them has ended. ``life``: a
number of the asker's, because the kernel uses pids again. Arguments: that file, the pid of the asker, and modules to import.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import warnings
from contextlib import suppress
from typing import Any, NoReturn

LOOK_SECONDS = 0.02
PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become(order: dict[str, Any], parent: int) -> NoReturn:
    """Run one command of Turngate in this new process, or the program ``executable`` in its place."""
    die_with(parent)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream, source in enumerate((nothing, log, log)):
        os.dup2(source, stream)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    if order["executable"]:
        os.execv(order["executable"], order["argv"])  # noqa: S606 - no shell; the wish to die with the parent outlives this
    sys.argv = order["argv"]
    sys.path.insert(0, order["directory"])
    from turngate.cli.main import main  # noqa: PLC0415 - imported already

    main()


def reap(exits: int, lives: dict[int, int]) -> None:
    """Write down how those ended that have. ``lives``: pid → life, of those that have not."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            line = {"life": lives.pop(ended[0]), "pid": ended[0], "code": os.waitstatus_to_exitcode(ended[1])}
            os.write(exits, (json.dumps(line) + "\n").encode())


def main() -> None:
    """Serve until stdin is closed."""
    warnings.simplefilter("ignore")
    die_with(int(sys.argv[2]))
    for name in sys.argv[3:]:  # after the wish to die with the parent
        importlib.import_module(name)

    gc.collect()
    gc.freeze()
    exits = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    here = os.getpid()
    lives: dict[int, int] = {}
    waiting = b""
    while True:
        readable, _, _ = select.select([0], [], [], LOOK_SECONDS)
        reap(exits, lives)
        if not readable:
            continue
        read = os.read(0, 65_536)
        if not read:
            return
        *lines, waiting = (waiting + read).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                os.close(exits)
                become(order, here)
            lives[pid] = order["life"]
            os.write(1, (json.dumps({"pid": pid}) + "\n").encode())


if __name__ == "__main__":
    main()
