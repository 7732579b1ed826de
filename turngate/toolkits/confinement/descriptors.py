"""Paths opened component by component, so that a link which a confined process made leads no one anywhere.

Below a directory that agents write, a path is text that they can turn into another one at any instant. Here a link there is
an error, and what was opened stays what it is: mounts, rules and file tools take the descriptor. Links elsewhere belong to the
system or its operators, and are followed.

Imports the standard library only: the launcher runs it by path. Sources: open(2), path_resolution(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Collection, Sequence

Inode = tuple[int, int]
"""Device and number."""

_ENTER = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_PATH") else os.O_RDONLY | os.O_NOFOLLOW
_OPENAT2, _NO_LINKS, _BENEATH = 437, 0x04, 0x08
_MOST_LINKS = 40
"""As many as the kernel follows."""

_libc = ctypes.CDLL(None, use_errno=True)


class LinkError(OSError):
    """A path leads through a link where agents write. Its text names the place."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, f"{path} is a link, and no link is followed where agents write", path)


def inode(descriptor: int) -> Inode:
    """Return what identifies an open file or directory."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def inodes(directories: Collection[str]) -> frozenset[Inode]:
    """Return the directories' inodes; those that are not there have none."""
    listed: set[Inode] = set()
    for each in directories:
        try:
            status = os.stat(each)  # noqa: PTH116 - the launcher imports little
        except OSError:
            continue
        listed.add((status.st_dev, status.st_ino))
    return frozenset(listed)


def open_place(path: str, agents_write: Collection[Inode] | None = None) -> int:
    """Open what an absolute path leads to, to find out about it or to mount it. The caller closes the descriptor.

    Args:
        path: absolute.
        agents_write: the directories below which no link is followed; None: none is followed anywhere.

    Raises:
        LinkError: there is a link where none may be.
        OSError: the path can't be opened.
    """
    way = _Way(agents_write)
    waiting = path.split("/")[::-1]
    links = 0
    try:
        while waiting:
            name = waiting.pop()
            target = way.enter(name)
            if target is None:
                continue
            links += 1
            if way.is_guarded or links > _MOST_LINKS:
                raise LinkError(path)
            waiting += target.split("/")[::-1]
            if target.startswith("/"):
                way.leave_to(1)
        return os.dup(way.open[-1])
    finally:
        way.leave_to(0)


class _Way:
    """The directories that a path has led through, from the root on, each open.

    ``..`` is where the path came from, so a directory that is moved meanwhile changes nothing.
    """

    def __init__(self, agents_write: Collection[Inode] | None) -> None:
        self.open: list[int] = []
        self._agents_write = agents_write
        self._guarded_from = 0 if agents_write is None else sys.maxsize
        self._add(os.open("/", _ENTER))

    @property
    def is_guarded(self) -> bool:
        return len(self.open) > self._guarded_from

    def enter(self, name: str) -> str | None:
        """Enter an entry; of a link, return where it leads instead."""
        if name == "..":
            self.leave_to(max(1, len(self.open) - 1))
        if name in {"", ".", ".."}:
            return None
        below, target = _step(self.open[-1], name)
        if below is None:
            return target
        self._add(below)
        return None

    def leave_to(self, many: int) -> None:
        while len(self.open) > many:
            os.close(self.open.pop())
        if self._agents_write is not None and not self.is_guarded:
            self._guarded_from = sys.maxsize

    def _add(self, directory: int) -> None:
        self.open.append(directory)
        if not self.is_guarded and inode(directory) in (self._agents_write or ()):
            self._guarded_from = len(self.open) - 1


def open_beneath(directory: int, path: str, flags: int) -> int:
    """Open a relative path below an open directory by one system call, which is fast; Linux only. The caller closes it.

    Unlike :func:`open_below` it doesn't say where there is a link. With O_PATH and O_NOFOLLOW, the last name may be one.

    Raises OSError: it can't be opened, is longer than 4,095 bytes, or there is a link in it. Source: openat2(2).
    """
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _NO_LINKS | _BENEATH)
    opened = int(_libc.syscall(_OPENAT2, directory, os.fsencode(path), how, ctypes.c_size_t(len(how))))
    if opened < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return opened


def open_below(directory: int, names: Sequence[str]) -> int:
    """Open what lies below an open directory, as :func:`open_place` does, following no link. The caller closes it.

    Raises:
        LinkError: a component is a link.
        FileNotFoundError, NotADirectoryError, OSError: it can't be opened.
    """
    current = os.dup(directory)
    for at, name in enumerate(names, 1):
        try:
            below, _target = _step(current, name)
        finally:
            os.close(current)
        if below is None:
            raise LinkError("/".join(names[:at]))
        current = below
    return current


def _step(directory: int, name: str) -> tuple[int | None, str]:
    """Open an entry of a directory; of a link, return where it leads instead."""
    try:
        below = os.open(name, _ENTER, dir_fd=directory)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return None, os.readlink(name, dir_fd=directory)
    if not stat.S_ISLNK(os.fstat(below).st_mode):
        return below, ""
    try:
        return None, os.readlink("", dir_fd=below)
    finally:
        os.close(below)


def real_path(path: str, agents_write: Collection[Inode]) -> str:
    """Return where an absolute path leads, without a link in it. Raises as :func:`open_place` does.

    Source: proc_pid_fd(5).
    """
    place = open_place(path, agents_write)
    try:
        return os.readlink(f"/proc/self/fd/{place}")  # noqa: PTH115 - the launcher imports little
    except FileNotFoundError:  # another system than Linux
        return os.path.realpath(path)
    finally:
        os.close(place)
