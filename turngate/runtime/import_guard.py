"""Modules that a run may have changed: no worker imports them later, a new one of ``turngate dev`` once a person accepted them.

No one can say who changed a file; but a run can only have done so while a tool call ran, and no program can set the time at which
a file's inode was changed. So a file in a directory where runs work counts as a run's if that time lies in a call's. It is
compared on the descriptor that the module's code is read from.

Must not import Temporal or the store.
"""

from __future__ import annotations

import os
import stat
import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel, ConfigDict

COMPILED = tuple(BYTECODE_SUFFIXES)


class ImportGuard(BaseModel):
    """Which files a run may have changed; see :meth:`watch_imports`.

    ``places``: where runs work. ``spans``: when tool calls ran, in seconds since 1970. ``since``: from then on every change
    counts; None: none does. ``of_servers``: what MCP servers may change at any time since ``servers_since``. ``accepted``: file →
    its state, as a person accepted it. ``refused``: likewise, what was not imported.
    """

    model_config = ConfigDict(extra="forbid")

    places: tuple[Path, ...] = ()
    spans: tuple[tuple[float, float], ...] = ()
    since: float | None = None
    of_servers: tuple[Path, ...] = ()
    servers_since: float = 0
    accepted: dict[str, str] = {}
    refused: dict[str, str] = {}

    def refuses(self, path: str | Path, descriptor: int) -> bool:
        """Tell whether a file, which is open, may be a run's and was not accepted; then it is noted."""
        real, status = _real(path, descriptor), os.fstat(descriptor)
        state = f"{status.st_dev} {status.st_ino} {status.st_ctime_ns} {status.st_size}"
        if self.accepted.get(str(real)) == state:
            return False
        if not self._may_be_of_run(real, status.st_ctime_ns / 1e9) and not self._was_led_there(path, real):
            return False
        self.refused[str(real)] = state
        return True

    def _may_be_of_run(self, real: Path, changed: float) -> bool:
        if changed >= self.servers_since and _is_below(real, self.of_servers):
            return True
        is_late = self.since is not None and changed >= self.since
        return (is_late or any(start <= changed <= end for start, end in self.spans)) and _is_below(real, self.places)

    def _was_led_there(self, path: str | Path, real: Path) -> bool:
        """Tell whether a link on the way, or a directory that no module was loaded from, has changed: an older file may be there.

        What the worker itself changes in a directory are the modules that it compiles, after the first one was loaded.
        """
        if self.since is None:
            return False
        spelled = Path(path).absolute()
        for way in (spelled, *spelled.parents, *real.parents):
            place = Path(os.path.realpath(way.parent), way.name)
            if place in self.places or not _is_below(place, self.places):
                continue
            status = way.lstat()
            is_link = stat.S_ISLNK(status.st_mode)
            is_new = is_link or (stat.S_ISDIR(status.st_mode) and not _holds_loaded(place, besides=real))
            if is_new and status.st_ctime_ns / 1e9 >= self.since:
                return True
        return False

    def watch_imports(self) -> None:
        """Refuse such modules in this process from now on: a module's import raises ImportError, compiled code isn't used."""
        guard = self

        class Source(SourceFileLoader):
            def get_data(self, path: str) -> bytes:
                return guard.read(path, FileNotFoundError if path.endswith(COMPILED) else ImportError)

        class Sourceless(SourcelessFileLoader):
            def get_data(self, path: str) -> bytes:
                return guard.read(path)

        class Extension(ExtensionFileLoader):
            def create_module(self, spec: ModuleSpec) -> ModuleType:
                guard.read(self.path)
                return super().create_module(spec)

        sys.path_hooks.insert(
            0,
            FileFinder.path_hook(
                (Extension, EXTENSION_SUFFIXES), (Source, SOURCE_SUFFIXES), (Sourceless, BYTECODE_SUFFIXES)
            ),
        )
        sys.path_importer_cache.clear()

    def read(self, path: str | Path, error: type[Exception] = ImportError) -> bytes:
        """Return what is in a file; raises ``error`` where it is refused."""
        with open(path, "rb") as file:  # noqa: PTH123 - as the loaders that this stands in for
            content = file.read()
            if self.refuses(path, file.fileno()):
                raise error(
                    f"{path} may have been changed by a run, and no one has accepted that: look at it, and restart the worker"
                )
        return content


def _real(path: str | Path, descriptor: int) -> Path:
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - no link: where the file really is
    except OSError:  # another system than Linux
        return Path(path).resolve()


def _holds_loaded(directory: Path, *, besides: Path) -> bool:
    names = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = (Path(name).resolve() for name in names if name)
    return any(file.is_relative_to(directory) and file != besides for file in files)


def _is_below(path: Path, places: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(place) for place in places)
