"""Turngate's own files, which no file tool opens under any name: the data directory, the store's and Temporal's files.

A path says little: a workspace may be the data directory itself, lie in it, or hold a hard link or a bind mount that leads
there. Files and directories are therefore compared by device and inode. The composition root says once per process which ones
are private. Blocking: looks at the file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_ENTRIES: Final = 10_000
"""Of the private directories, when a hard link is compared with their files. Beyond it every hard link is refused."""
BESIDE_A_DATABASE: Final = ("", "-wal", "-shm", "-journal")
"""SQLite's files next to a database. Source: https://www.sqlite.org/tempfiles.html"""

_Inode = tuple[int, int]


class PrivateFiles:
    """Which files and directories are private. Empty until :meth:`add` is called."""

    def __init__(self) -> None:
        self._directories: dict[Path, None] = {}
        self._files: dict[Path, None] = {}

    def add(
        self, *, directories: Iterable[Path] = (), databases: Iterable[Path] = (), files: Iterable[Path] = ()
    ) -> None:
        """Make directories with all they hold, SQLite databases with the files beside them, and files private.

        Safe to repeat.
        """
        self._directories |= dict.fromkeys(Path(os.path.realpath(each)) for each in directories)
        self._files |= dict.fromkeys(Path(os.path.realpath(each)) for each in files)
        self._files |= {
            Path(f"{os.path.realpath(each)}{suffix}"): None for each in databases for suffix in BESIDE_A_DATABASE
        }

    def clear(self) -> None:
        """Forget everything that was added: the process serves no store any more."""
        self._directories.clear()
        self._files.clear()

    def is_directory(self, status: os.stat_result) -> bool:
        """Tell whether this is a private directory itself."""
        return bool(self._directories) and _inode(status) in _inodes(self._directories)

    def holds(self, real: Path) -> bool:
        """Tell whether a real path is, or lies in, a private directory. Parts that do not exist yet are passed over."""
        if not self._directories:
            return False
        private = _inodes(self._directories)
        return any(_inodes([each]) & private for each in (real, *real.parents))

    def lie_in(self, real: Path) -> bool:
        """Tell whether a directory is private, or something private lies in it."""
        places = (each for private in (*self._directories, *self._files) for each in (private, *private.parents))
        return bool(_inodes([real]) & _inodes(places))

    def is_file(self, status: os.stat_result) -> bool:
        """Tell whether this is a private file, under whatever name it was opened."""
        if _inode(status) in _inodes(self._files):
            return True
        # A file with one name has it where the walk to it was checked; only another hard link could lie elsewhere.
        return status.st_nlink > 1 and bool(self._directories) and self._has_link_to(_inode(status))

    def inodes(self) -> tuple[list[_Inode], bool]:
        """Return everything private by device and inode, and whether that is all; for a search in another process."""
        listed = _inodes(self._directories) | _inodes(self._files)
        for number, entry in enumerate(_entries(self._directories)):
            if number >= MAX_ENTRIES:
                return sorted(listed), False
            with suppress(OSError):
                listed.add(_inode(entry.stat(follow_symlinks=False)))
        return sorted(listed), True

    def _has_link_to(self, wanted: _Inode) -> bool:
        listed, complete = self.inodes()
        return not complete or wanted in listed


PRIVATE_FILES: Final = PrivateFiles()
"""Of this process."""


def _inode(status: os.stat_result) -> _Inode:
    return status.st_dev, status.st_ino


def _inodes(paths: Iterable[Path]) -> set[_Inode]:
    listed: set[_Inode] = set()
    for each in paths:
        with suppress(OSError):
            listed.add(_inode(each.stat()))
    return listed


def _entries(directories: Iterable[Path]) -> Iterator[os.DirEntry[str]]:
    waiting = [str(each) for each in directories]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as listed:
            for entry in listed:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
