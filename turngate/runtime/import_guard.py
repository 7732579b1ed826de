"""Modules that a run may have changed: no worker imports them later, a new one of ``turngate dev`` once a person accepted them.

No one can say who changed a file; but a run can only have done so while a tool call ran, and no program can set the time at which
a file's inode was changed. So a file in a directory where runs work counts as a run's if that time lies in a call's. The same for
what leads to it: renaming a directory changes the time of that directory, and not of what is in it. A file's time is that of the
descriptor that the module's code is read from.

A worker of ``turngate dev`` begins with this file, as it was when that was started, on its standard input: before ``site`` and
all else that a run may have changed (:func:`main`). So this module imports the standard library only.
"""

from __future__ import annotations

import json
import os
import site
import socket
import stat
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    ExtensionFileLoader,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType

COMPILED = tuple(BYTECODE_SUFFIXES)
Seen = dict[str, list[str]]
"""A module's name, or the path of another file → the path that was opened, and the state of what was there."""


@dataclass
class ImportGuard:
    """Which files a run may have changed; see :meth:`watch_imports`.

    ``places``: where runs work. ``spans``: when tool calls ran, in seconds since 1970, in order and apart. ``since``: from then
    on every change counts; None: none does. ``of_servers``: what MCP servers may change at any time since ``servers_since``.
    ``accepted``: what a former worker has loaded, or a person accepted. ``accepted_at``: when that worker began to. ``loaded``,
    ``refused``: what was imported by this process, and what wasn't.
    """

    places: Sequence[Path | str] = ()
    spans: Sequence[tuple[float, float]] = ()
    since: float | None = None
    of_servers: Sequence[Path | str] = ()
    servers_since: float = 0
    accepted: Seen = field(default_factory=dict)
    accepted_at: float = 0
    loaded: Seen = field(default_factory=dict)
    refused: Seen = field(default_factory=dict)

    @property
    def as_json(self) -> str:
        """Its fields, on one line: they make another guard like it."""
        return json.dumps(vars(self), default=str)

    def refuses(self, name: str, path: str | Path, descriptor: int) -> bool:
        """Tell whether a file, which is open and read as ``name``, may be a run's and was not accepted; then it is noted."""
        spelled, real, status = Path(path).absolute(), _real(path, descriptor), os.fstat(descriptor)
        state = f"{status.st_dev} {status.st_ino} {status.st_ctime_ns} {status.st_size}"
        if name in self.loaded and self.loaded[name][0] != str(spelled):  # loaders of plugins use one name for several
            name = str(spelled)
        is_refused = self.accepted.get(name) != [str(spelled), state] and (
            self._may_be_of_run(real, status)
            or self._was_led_there(spelled, real)
            or self._is_another(name, spelled, real, status)
        )
        (self.refused if is_refused else self.loaded)[name] = [str(spelled), state]
        return is_refused

    def _may_be_of_run(self, place: Path, status: os.stat_result) -> bool:
        changed = status.st_ctime_ns / 1e9
        # A directory or link can be replaced by those who may change the directory that it is in.
        changeable = place if stat.S_ISREG(status.st_mode) else place.parent
        if changed >= self.servers_since and _is_below(changeable, self.of_servers):
            return True
        before = bisect_right(self.spans, changed, key=lambda span: span[0])
        is_in_time = (self.since is not None and changed >= self.since) or (
            before > 0 and changed <= self.spans[before - 1][1]
        )
        return is_in_time and _is_below(changeable, self.places)

    def _was_led_there(self, spelled: Path, real: Path) -> bool:
        """Tell whether a link on the way may be a run's, or a directory of which nothing is loaded: an older file may be there.

        A directory of which something is loaded may get other files: each of them is judged by itself.
        """
        if spelled == real and not _is_below(real, (*self.places, *self.of_servers)):
            return False
        return any(
            self._may_be_of_run(place, status)
            and (stat.S_ISLNK(status.st_mode) or not _holds_loaded(place, besides=real))
            for place, status in _way(spelled, real)
        )

    def _is_another(self, name: str, spelled: Path, real: Path, status: os.stat_result) -> bool:
        """Tell whether a known name leads to another file than before, which no one has written meanwhile."""
        if name not in self.accepted or not _is_below(real, (*self.places, *self.of_servers)):
            return False
        return self.accepted[name][0] != str(spelled) or status.st_ctime_ns / 1e9 < self.accepted_at

    def watch_imports(self) -> None:
        """Refuse such modules in this process from now on: a module's import raises ImportError, compiled code isn't used.

        However they are found: by Python's own finder, or by another one that takes Python's loaders, as editable installs do.
        No compiled code is written any more: to another worker, the directory that it goes to would look changed by a run.
        """
        guard = self
        sys.dont_write_bytecode = True

        def get_data(loader: SourceFileLoader | SourcelessFileLoader, path: str) -> bytes:
            if path == loader.path:
                return guard.read(loader.name, path)
            if path.endswith(COMPILED):  # it stands for its source
                guard.read(loader.name, loader.path)
            return guard.read(path, path, FileNotFoundError)

        create_module = ExtensionFileLoader.create_module

        def create_guarded(loader: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
            guard.read(loader.name, loader.path)
            return create_module(loader, spec)

        SourceFileLoader.get_data = SourcelessFileLoader.get_data = get_data  # type: ignore[method-assign,assignment]
        ExtensionFileLoader.create_module = create_guarded  # type: ignore[method-assign,assignment]

    def read(self, name: str, path: str | Path, error: type[Exception] = ImportError) -> bytes:
        """Return what is in a file, which is read as ``name``; raises ``error`` where it is refused."""
        with open(path, "rb") as file:  # noqa: PTH123 - as the loaders that this stands in for
            content = file.read()
            if self.refuses(name, path, file.fileno()):
                raise error(
                    f"{path} may have been changed by a run, and no one has accepted that: look at it, and restart the worker"
                )
        return content


def main() -> None:
    """Begin a process with ``python -P -S - MODULE DESCRIPTOR PATH [ARGUMENT…]``: guard its imports, run the module's main.

    That gets the guard and the socket of the descriptor, whose first line is the guard as JSON. PATH: what ``PYTHONPATH`` is.
    If the module can't be imported without what is refused, the other end gets the error.
    """
    module, descriptor, path = sys.argv[1:4]
    del sys.argv[1:4]
    channel = socket.socket(fileno=int(descriptor))
    channel.set_inheritable(False)  # no process that a tool starts gets it
    with channel.makefile("rb") as lines:  # nothing else comes before this process has answered
        guard = ImportGuard(**json.loads(lines.readline()))
    guard.watch_imports()
    if path:
        os.environ["PYTHONPATH"] = path
        sys.path[:0] = path.split(os.pathsep)
    add_package = site.addpackage

    def add_guarded(directory: str, name: str, known_paths: set[str] | None) -> set[str] | None:
        """Take no .pth file that a run may have changed: its lines are code, too."""
        try:
            guard.read(file := f"{directory}/{name}", file)
        except (OSError, ImportError):
            return known_paths
        return add_package(directory, name, known_paths)

    site.addpackage = add_guarded  # type: ignore[assignment]
    site.main()
    try:
        run = import_module(module).main
    except ImportError as error:
        if not guard.refused:
            raise
        message = {"error": str(error), "loaded": guard.loaded, "refused": guard.refused}
        channel.sendall(json.dumps(message).encode() + b"\n")
        sys.exit(2)
    run(guard, channel)


def _is_below(path: Path, places: Sequence[Path | str]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def _real(path: str | Path, descriptor: int) -> Path:
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - no link: where the file really is
    except OSError:  # another system than Linux
        return Path(path).resolve()


def _way(path: Path, real: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the links and directories that lead to a file, each by the name that it has without links above it."""
    for way in (*real.parents, *(() if path == real else (path, *path.parents))):
        status = way.lstat()
        if not stat.S_ISREG(status.st_mode):
            yield (way if path == real else Path(os.path.realpath(way.parent), way.name)), status


def _holds_loaded(directory: Path, *, besides: Path) -> bool:
    names = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = (Path(name).resolve() for name in names if name)
    return any(file.is_relative_to(directory) and file != besides for file in files)


if __name__ == "__main__":
    main()
