"""Confinement by bubblewrap: namespaces of its own, in which the rest of the machine isn't there.

The process sees a file system made of the system's programs, read-only, its workspace and a temporary directory; its own
processes and no others; a network with nothing in it. Source: bwrap(1).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from turngate.toolkits.confinement import system_paths
from turngate.toolkits.confinement.sandbox import KEPT_READ_ONLY, MIB, Sandbox

_COUNTS_IN_NAMESPACES = (5, 14)
_SHARED_MEMORY = 1024 * MIB
_SYSTEM = (*system_paths.PROGRAMS, system_paths.CONFIGURATION)

FILTER, RESOLVER = "FILTER", "RESOLVER"
"""The launcher replaces them by the numbers of the files that hold the filter, and the address that knows names."""


def arguments(program: str, sandbox: Sandbox, hidden: Sequence[Path], argv: Sequence[str], *, root: bool) -> list[str]:
    """Return bubblewrap's command line.

    Args:
        program: bubblewrap's path.
        sandbox: what the process may reach.
        hidden: files and directories that it must not see, even below its workspace.
        argv: the process.
        root: whether root runs bubblewrap: the kernel counts none of root's processes (setrlimit(2)).
    """
    line = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--seccomp", FILTER]
    line += _system()
    if sandbox.network:
        line += _resolver()
    # Read-only: /proc/sys has settings of the whole machine, and root needs no capability to write them.
    line += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    line += ["--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm", "--bind", str(sandbox.temporary), "/tmp"]  # noqa: S108
    for path in sandbox.readable:
        line += ["--ro-bind", str(path), str(path)]
    if sandbox.workspace is not None:
        line += _workspace(sandbox, sandbox.workspace)
    for path in sandbox.writable:
        line += ["--bind", str(path), str(path)]
    line += _without(hidden, sandbox)
    start = Path("/tmp") if sandbox.workspace is None else sandbox.workspace  # noqa: S108 - the sandbox's own
    # What is no bind is memory: without room to write there, a sandbox can't fill it.
    return [
        *line,
        "--remount-ro",
        "/",
        "--chdir",
        str(start),
        "--",
        *([] if root else _limited(sandbox.limits.processes)),
        *argv,
    ]


def _limited(processes: int) -> list[str]:
    """Return what makes the kernel count the sandbox's processes.

    Since Linux 5.14, a limit that is set inside a namespace counts what runs in it; before, all that the user runs.
    """
    if tuple(map(int, os.uname().release.split(".")[:2])) < _COUNTS_IN_NAMESPACES:
        return []
    return ["sh", "-c", 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0"; exec "$@"', str(processes)]


def _system() -> Iterator[str]:
    for path in system_paths.programs():
        if os.path.islink(path):  # noqa: PTH114 - /bin is a link to usr/bin on most systems
            yield from ("--symlink", os.readlink(path), path)  # noqa: PTH115
        else:
            yield from ("--ro-bind", path, path)
    configuration = str(system_paths.CONFIGURATION)
    yield from ("--ro-bind", configuration, configuration)
    for path in system_paths.configuration().private:
        yield from _hide(Path(path))


def _resolver() -> tuple[str, ...]:
    # Where it is a link, what it leads to is not there yet.
    return ("--ro-bind-data", RESOLVER, str(Path("/etc/resolv.conf").resolve()))


def _workspace(sandbox: Sandbox, workspace: Path) -> Iterator[str]:
    yield from ("--bind" if sandbox.workspace_writable else "--ro-bind", str(workspace), str(workspace))
    if not sandbox.workspace_writable:
        return
    # A mount of its own can't be renamed: the process could put a repository with other hooks in its place. A file `.git`
    # says where the repository is.
    repository = workspace / ".git"
    yield from ("--bind-try" if repository.is_dir() else "--ro-bind-try", str(repository), str(repository))
    for name in KEPT_READ_ONLY:
        place = str(workspace / name)
        yield from ("--ro-bind-try", place, place)


def _without(hidden: Sequence[Path], sandbox: Sandbox) -> Iterator[str]:
    """Cover what must not be seen. The directories around it are held before: a bind would uncover what lies below it."""
    topmost = [path for path in hidden if not any(path != each and path.is_relative_to(each) for each in hidden)]
    visible = [path for path in topmost if any(path.is_relative_to(place) for place in sandbox.places)]
    among_programs = [
        path
        for path in (*topmost, *map(Path, system_paths.private_programs()))
        if path not in visible and path.exists() and any(path.is_relative_to(place) for place in _SYSTEM)
    ]
    for path in visible:
        yield from _held(path, sandbox)
    for path in (*visible, *among_programs):
        yield from _hide(path)


def _held(path: Path, sandbox: Sandbox) -> Iterator[str]:
    """Hold the directories between what may be changed and a hidden path: renamed, they would take it to another name."""
    changeable = (*([sandbox.workspace] if sandbox.workspace and sandbox.workspace_writable else []), *sandbox.writable)
    for parent in reversed(path.parents):
        if any(parent != place and parent.is_relative_to(place) for place in changeable):
            yield from ("--bind", str(parent), str(parent))


def _hide(path: Path) -> Iterator[str]:
    if path.is_dir():
        yield from ("--tmpfs", str(path))
    else:
        yield from ("--ro-bind", os.devnull, str(path))
