"""Run a program that the kernel kills when the process that started it dies, even by SIGKILL.

Run by path, before Turngate is imported: ``python -I -S die_with_parent.py PARENT_PID PROGRAM [ARGUMENT…]``.
It replaces itself, so the program keeps its pid. Our own programs call :func:`die_with` themselves.

Why not ``preexec_fn``: it runs Python between fork and exec, which can deadlock in a process with threads, and ours has
Temporal's. The setting survives exec (prctl(2), PR_SET_PDEATHSIG). It is tied to the *thread* that forked: start the
program from a thread that lives as long as the process, such as the main event loop's. Other systems than Linux don't have
it: there the program outlives a killed parent, and the next start finds the data directory locked.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, of this pid, dies; ends it if the parent is dead already."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != parent:
            sys.exit(1)  # The parent died before the setting took effect, so nothing else would end this process.


def main() -> None:
    """Ask to die with the parent, then become the program."""
    parent, *command = sys.argv[1:]
    die_with(int(parent))
    os.execv(command[0], command)  # noqa: S606  # an argument list, no shell


if __name__ == "__main__":
    main()
