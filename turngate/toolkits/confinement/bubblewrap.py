"""Confinement by bubblewrap: namespaces of its own, in which the rest of the machine isn't there.

The process sees a file system made of the system's programs, read-only, its workspace and a temporary directory; its own
processes and no others; a network with nothing in it. Source: bwrap(1).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from turngate.toolkits.confinement import system_paths
from turngate.toolkits.confinement.held_places import HeldPlace
from turngate.toolkits.confinement.launcher import PLACE
from turngate.toolkits.confinement.left_behind import OF_REPOSITORY
from turngate.toolkits.confinement.sandbox import MIB, OBEYED, Sandbox, is_repository

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
    line += ["--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]  # noqa: S108 - the sandbox's own, as the next
    line += ["--bind-fd", f"{PLACE}{sandbox.temporary}", "/tmp"]  # noqa: S108
    for path in _topmost(sandbox.places):
        line += ["--bind-fd" if path in sandbox.changeable else "--ro-bind-fd", f"{PLACE}{path}", str(path)]
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


def _without(hidden: Sequence[Path], sandbox: Sandbox) -> Iterator[str]:
    """Cover what must not be seen of the system's programs. What lies in the sandbox's places is covered by :func:`held`."""
    among_programs = [
        path
        for path in (*_topmost(hidden), *map(Path, system_paths.private_programs()))
        if not system_paths.is_below(path, sandbox.places) and path.exists() and system_paths.is_below(path, _SYSTEM)
    ]
    for path in among_programs:
        yield from _hide(path)


def held(sandbox: Sandbox, hidden: Sequence[Path], loaded: Sequence[Path] = ()) -> dict[str, list[HeldPlace]]:
    """Return what is mounted below the sandbox's places from inside, because bubblewrap could be led elsewhere there.

    What is hidden, what the worker has loaded, what operators' programs obey, and places that lie in others. Directories come
    before what lies in them. Those between a place that can be changed and what is hidden, loaded, a copy or only read there (a
    directory on the PATH, say) are held, too: renamed, they would take it to another name, and something else could get its name.
    """
    listed = {str(place): _held_below(place, sandbox, hidden, loaded) for place in _topmost(sandbox.places)}
    return {
        place: sorted(held_here, key=lambda each: len(each.names)) for place, held_here in listed.items() if held_here
    }


def _held_below(place: Path, sandbox: Sandbox, hidden: Sequence[Path], loaded: Sequence[Path]) -> list[HeldPlace]:
    changeable = place in sandbox.changeable
    covered = [path.relative_to(place).parts for path in _below(place, _topmost(hidden))]
    only_read = [names for path in loaded for names in _spelled_below(place, path)] if changeable else []
    obeyed = [each for each in _obeyed(place, sandbox) if each.names not in covered]
    copies = [each.names for each in obeyed if each.copy is not None]
    others = [path for path in _below(place, sandbox.places) if (path in sandbox.changeable) != changeable]
    inner = [path.relative_to(place).parts for path in others]
    ways = _ways_to([*covered, *only_read, *copies, *inner]) if changeable else {}
    ways |= dict.fromkeys(only_read, "read")
    ways |= dict.fromkeys(inner, "read" if changeable else "write")
    ways |= dict.fromkeys(covered, "hide")
    return [*(HeldPlace(names, how) for names, how in ways.items()), *_compiled(only_read), *obeyed]


def _obeyed(place: Path, sandbox: Sandbox) -> Iterator[HeldPlace]:
    copies = [HeldPlace(names, "read", copy=str(copy)) for names, copy in sandbox.copies.items()]
    for directory in dict.fromkeys(sandbox.changeable):
        if directory.is_relative_to(place):
            start = directory.relative_to(place).parts
            held_here = OF_REPOSITORY if is_repository(directory) else OBEYED
            for each in (*held_here, *(copies if directory == sandbox.workspace else ())):
                yield each._replace(names=(*start, *each.names))


def _ways_to(places: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    return {names[:many]: "keep" for names in places for many in range(1, len(names))}


def _compiled(modules: Iterable[tuple[str, ...]]) -> list[HeldPlace]:
    """Return where Python looks for the modules' compiled code, which it runs instead of them (PEP 3147)."""
    return [
        HeldPlace(each, "read", "/")
        for each in {(*names[:-1], "__pycache__") for names in modules if names[-1].endswith(".py")}
    ]


def _spelled_below(place: Path, path: Path) -> set[tuple[str, ...]]:
    """Return the names by which a path is reached from a place: as it is spelled, and without links."""
    return {
        spelled.relative_to(parent).parts
        for spelled in (path, path.resolve())
        for parent in spelled.parents
        if parent.resolve() == place
    }


def _below(place: Path, paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if path != place and path.is_relative_to(place)]


def _topmost(paths: Sequence[Path]) -> list[Path]:
    return [path for path in dict.fromkeys(paths) if not any(path in _below(each, paths) for each in paths)]


def _hide(path: Path) -> Iterator[str]:
    if path.is_dir():
        yield from ("--tmpfs", str(path))
    else:
        yield from ("--ro-bind", os.devnull, str(path))
