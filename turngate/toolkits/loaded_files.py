"""What a worker has loaded: modules, the virtual environment, policy, models and scripts. No tool may change these.

A run whose workspace holds them could otherwise have its own code run by the worker, outside of every confinement.
File tools compare by device and inode, as with Turngate's own files. The composition root says once per process what was loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from turngate.toolkits.confinement.system_paths import is_below, python_directories, real_roots
from turngate.toolkits.private_files import PrivateFiles


class LoadedFiles(PrivateFiles):
    """What this process runs from, outside of the system's Python: what it imports later, too, once that is loaded.

    Iterating gives the directories and files as they were spelled when they were opened: where a link is a part of one, the link
    counts, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._spelled: dict[Path, None] = {}
        self._python: list[Path] = []
        self._roots: tuple[str, ...] = ()
        self._modules: set[str] | None = None
        """Those that were looked at; None: this process loads nothing that is held."""

    def begin(self, others: Iterable[Path] = (), agents_write: Iterable[Path] = ()) -> None:
        """Hold what is loaded from now on.

        Args:
            others: what the app was loaded from besides modules.
            agents_write: where agents may write. What lies there counts, also if that is a part of the system's Python.
        """
        self._modules = set()
        self._roots = real_roots(agents_write)
        self._python = python_directories(self._roots)
        self.add(directories=self._python)
        self._spelled |= dict.fromkeys(self._python)
        self._hold((*map(str, others), f"{sys.prefix}/pyvenv.cfg"))

    def clear(self) -> None:
        """Hold nothing any more."""
        super().clear()
        self._spelled.clear()
        self._modules = None

    def is_file(self, status: os.stat_result) -> bool:
        """Tell whether this is a loaded file, under whatever name it was opened."""
        self._look_again()
        return super().is_file(status)

    def __iter__(self) -> Iterator[Path]:
        self._look_again()
        return iter(tuple(self._spelled))

    def _look_again(self) -> None:
        """Hold the modules that were imported since."""
        if self._modules is not None and (names := sys.modules.keys() - self._modules):
            self._modules |= names
            self._hold(filter(None, (getattr(sys.modules.get(name), "__file__", None) for name in names)))

    def _hold(self, files: Iterable[str]) -> None:
        spelled, real_directories = tuple(map(str, self._python)), tuple(map(os.path.realpath, self._python))
        real_directory = cache(os.path.realpath)
        own: dict[Path, None] = {}
        for each in files:
            path = os.path.abspath(each)  # noqa: PTH100 - keeps links
            parent, name = os.path.split(path)
            real = os.path.realpath(path) if os.path.islink(path) else f"{real_directory(parent)}/{name}"  # noqa: PTH114
            is_of_python = is_below(path, (sys.prefix, sys.base_prefix)) and not is_below(real, self._roots)
            if not is_of_python and not is_below(real, real_directories):
                own[Path(real if is_below(path, spelled) else path)] = None
        self.add(files=own)
        self._spelled |= own


LOADED_FILES: Final = LoadedFiles()
"""Of this process, without what Python would only load later."""
