"""Places of a sandbox that the process in it can't replace: held by mounts that are made inside its namespaces.

bubblewrap resolves paths where it runs, with the whole machine before it. What lies below a directory that agents write is
therefore mounted afterwards, from inside: there a link leads nowhere that the sandbox doesn't show anyway, and no link is
followed. A mount can't be renamed or removed by those who see it.

What is absent can't be mounted over, so an empty directory is made, and removed once no sandbox holds it. For each directory in
which something may be made, a file outside of every sandbox lists what was, and is the lock: so sandboxes whose workspaces lie in
each other wait for one another, too. Removed under a mount, a directory would take the mount away in every namespace.

Imports the standard library and ``descriptors`` only: the launcher runs it by path.
Sources: mount_setattr(2), open_tree(2), move_mount(2), fsopen(2), setns(2), ioctl_ns(2), flock(2), statx(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from turngate.toolkits.confinement import descriptors
else:
    try:
        from turngate.toolkits.confinement import descriptors
    except ImportError:  # the launcher has loaded it
        import descriptors

_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442
"""The same on every architecture."""
_CLONE_TREE, _CLOSE_ON_EXEC, _EMPTY_PATH = 1, os.O_CLOEXEC, 0x1000
_FROM_EMPTY_PATH, _TO_EMPTY_PATH = 0x4, 0x40
_CREATE, _READ_ONLY = 6, 1
_NEW_USERS, _NEW_MOUNTS = 0x10000000, 0x00020000
OWNING_USERS = 0xB701
_AT_LINK, _WITH_BIRTH = 0x100, 0x900

_libc = ctypes.CDLL(None, use_errno=True)
_LOCK_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


class HeldPlace(NamedTuple):
    """A place below a directory that a sandboxed process may change.

    Attributes:
        names: lead to it from the directory.
        how: ``keep`` (a directory that isn't empty can be changed, and not replaced; else as ``read``), ``read`` (only read),
            ``write`` (it can be changed, though what it lies in is only read) or ``hide`` (it is empty).
        absent: what is made where it isn't there: ``None`` (nothing), ``"/"`` (a directory), else a file with this text.
        copy: what is mounted there in place of the file, which has to be there; a path as the sandbox sees it.
    """

    names: tuple[str, ...]
    how: str
    absent: str | None = None
    copy: str | None = None


def find_links(directory: int, places: Iterable[HeldPlace]) -> list[str]:
    """Return the places that are links, or that links lead to: these can't be held. ``directory`` is open."""
    links: list[str] = []
    for place in places:
        try:
            os.close(descriptors.open_below(directory, place.names))
        except descriptors.LinkError as link:
            links.append(str(link.filename))
        except OSError:  # absent, or the way is through a file
            continue
    return list(dict.fromkeys(links))


def await_set_up(process: int) -> None:
    """Wait until bubblewrap has set up its sandbox: then it gives up its capabilities, and waits. Returns when it has ended."""
    while True:
        try:
            with open(f"/proc/{process}/status", encoding="ascii") as status:  # noqa: PTH123 - pathlib isn't loaded
                capabilities = next(line for line in status if line.startswith("CapEff:"))
        except (OSError, StopIteration):
            return
        if int(capabilities.split()[1], 16) == 0:
            return
        time.sleep(_PAUSE_SECONDS / 20)


def hold(process: int, held: Mapping[str, Sequence[HeldPlace]], mountpoints: Mountpoints) -> None:
    """Hold places of a sandbox. Call it in a process of its own: it enters the sandbox for good.

    Args:
        process: one of the sandbox, which is set up and hasn't started its program.
        held: a directory, as the sandbox sees it → what to hold below it. Directories come before what lies in them.
        mountpoints: where absent places may be made.

    Raises:
        descriptors.LinkError: one of the places is a link.
        OSError: it can't be held.
    """
    _enter(process)
    for directory, place in ((directory, place) for directory, places in held.items() for place in places):
        # Each time from the top: a path leads onto the mounts that exist by now, an open directory may lie below them.
        base = descriptors.open_place(directory)
        try:
            here = _open_or_make(base, place, mountpoints)
            if here is not None:
                _mount(here, place.how, place.copy)
                os.close(here)
            elif place.copy is not None:
                raise FileNotFoundError(errno.ENOENT, f"{'/'.join(place.names)} is no longer there")
        finally:
            os.close(base)


def _enter(process: int) -> None:
    mounts = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    users = fcntl.ioctl(mounts, OWNING_USERS)
    _call("setns(users)", _libc.setns, users, _NEW_USERS)
    _call("setns(mounts)", _libc.setns, mounts, _NEW_MOUNTS)


def _open_or_make(base: int, place: HeldPlace, mountpoints: Mountpoints) -> int | None:
    """Open a place, make it where that is wanted; None: it isn't there, and neither is it needed."""
    *above, name = place.names
    try:
        parent = descriptors.open_below(base, above)
        try:
            if place.absent is not None:
                mountpoints.make(parent, name, place.absent)
            return descriptors.open_below(parent, [name])
        finally:
            os.close(parent)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _mount(here: int, how: str, copy: str | None) -> None:
    """Mount a place, a copy of it, or something empty over it."""
    is_directory = stat.S_ISDIR(os.fstat(here).st_mode)
    if how != "hide":
        source = here if copy is None else descriptors.open_place(copy)
        tree = _call("open_tree", _libc.syscall, _OPEN_TREE, source, b"", _CLONE_TREE | _CLOSE_ON_EXEC | _EMPTY_PATH)
    elif is_directory:
        files = _call("fsopen", _libc.syscall, _FSOPEN, b"tmpfs", 1)
        _call("fsconfig", _libc.syscall, _FSCONFIG, files, _CREATE, None, None, 0)
        tree = _call("fsmount", _libc.syscall, _FSMOUNT, files, 1, 0)
        os.close(files)
    else:
        tree = _call("open_tree", _libc.syscall, _OPEN_TREE, -100, b"/dev/null", _CLONE_TREE | _CLOSE_ON_EXEC)
    read_only = how in {"read", "hide"} or (how == "keep" and not (is_directory and _has_entries(here)))
    if read_only or how == "write":
        attributes = struct.pack("=QQQQ", *((_READ_ONLY, 0) if read_only else (0, _READ_ONLY)), 0, 0)
        _call(
            "mount_setattr",
            _libc.syscall,
            _MOUNT_SETATTR,
            tree,
            b"",
            _EMPTY_PATH,
            attributes,
            ctypes.c_size_t(len(attributes)),
        )
    _call("move_mount", _libc.syscall, _MOVE_MOUNT, tree, b"", here, b"", _FROM_EMPTY_PATH | _TO_EMPTY_PATH)
    os.close(tree)


def _has_entries(directory: int) -> bool:
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        with os.scandir(listed) as entries:
            return any(True for _ in entries)
    finally:
        os.close(listed)


def _call(what: str, function: Any, *arguments: Any) -> int:
    result = int(function(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


class Mountpoints:
    """What a sandbox holds. For each directory in which something is made for that, a file lists it; its lock is shared."""

    def __init__(self, folder: str) -> None:
        """Open the folder of these files, which is made if it isn't there. Raises OSError: it isn't this user's alone."""
        self._folder = _own_folder(folder)
        self._files: dict[descriptors.Inode, tuple[int, int]] = {}
        """A directory → itself and its file, both open."""
        self._held: dict[tuple[int, tuple[str, ...]], bytes | None] = {}
        """An open directory and names below it → what is held there."""
        self._created: list[tuple[int, tuple[str, ...]]] = []

    def share(self, directory: int, places: Sequence[HeldPlace]) -> None:
        """Share the locks of the directories that absent places would be made in, until this process ends.

        Call it before looking what is absent: from then on no other sandbox removes it. ``directory``: what the places lie below,
        open, until this process ends. Raises OSError: another process keeps a lock.
        """
        for above in dict.fromkeys(place.names[:-1] for place in places if place.absent is not None):
            try:
                parent = descriptors.open_below(directory, above)
            except OSError:  # nothing is made there, or it is a link, which is found when it is held
                continue
            if descriptors.inode(parent) in self._files:
                os.close(parent)
                continue
            self._files[descriptors.inode(parent)] = parent, self._shared(_name_of(parent))
        for place in places:
            if place.how in {"read", "keep"}:
                self._held[directory, place.names] = _identity_of(directory, place.names)

    def _shared(self, name: str) -> int:
        until = time.monotonic() + _LOCK_SECONDS
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            file = os.open(name, flags, 0o600, dir_fd=self._folder)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.fstat(file).st_nlink:  # else it was removed before it was locked
                    return file
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
            os.close(file)
            time.sleep(_PAUSE_SECONDS)

    def make(self, parent: int, name: str, content: str) -> None:
        """Make what is absent, as ``HeldPlace.absent`` says, and note it before; not where no process of the sandbox can make it.

        Raises OSError: the lock of its directory isn't shared, because the directory was put there meanwhile.
        """
        if os.fstatvfs(parent).f_flag & os.ST_RDONLY:
            return
        if (key := descriptors.inode(parent)) not in self._files:
            raise OSError(errno.EBUSY, f"the directory of {name} was put there as the command started")
        try:
            os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            os.write(self._files[key][1], json.dumps([name, content]).encode() + b"\n")
            with suppress(FileExistsError, PermissionError):
                _make(parent, name, content)

    def note_created(self) -> None:
        """Note what was made. Call it when all is held, and before the process that could make something in its place begins."""
        self._created = [place for place, here in self._held.items() if here is None]
        self._held |= {place: _identity_of(*place) for place in self._created}

    def replaced(self) -> list[str]:
        """Return what is no longer what is held, because someone outside replaced or removed it.

        What was made and is removed is named only if something else is there.
        """
        lost = [
            (directory, names)
            for (directory, names), held in self._held.items()
            if (here := _identity_of(directory, names)) != held and (here or (directory, names) not in self._created)
        ]
        return ["/".join(names) for directory, names in lost if (directory, names[:-1]) not in lost]

    def remove(self) -> None:
        """Remove what was made and is still as it was, unless another sandbox holds something there: that removes it in turn."""
        for parent, file in reversed(self._files.values()):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.lseek(file, 0, os.SEEK_SET)
                with open(os.dup(file), encoding="utf-8") as lines:  # noqa: PTH123 - a descriptor
                    noted = [json.loads(line) for line in lines]
                for name, content in reversed(noted):
                    with suppress(OSError):
                        _remove(parent, name, content)
                os.unlink(_name_of(parent), dir_fd=self._folder)


def _identity_of(directory: int, names: tuple[str, ...]) -> bytes | None:
    """Return what identifies what has this name, a link too; None: nothing has it, or no way leads there without a link.

    The instant at which it was made is part of it: of something that is removed, the next thing may get the number.
    """
    *above, name = names
    try:
        parent = descriptors.open_below(directory, above)
    except OSError:
        return None
    status = ctypes.create_string_buffer(256)
    result = _libc.statx(parent, os.fsencode(name), _AT_LINK, _WITH_BIRTH, status)
    os.close(parent)
    return None if result else status.raw[32:40] + status.raw[80:92] + status.raw[136:144]  # inode, birth, device


def _name_of(directory: int) -> str:
    return "{:x}-{:x}".format(*descriptors.inode(directory))


def _make(parent: int, name: str, content: str) -> None:
    if content == "/":
        os.mkdir(name, 0o755, dir_fd=parent)
        return
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent)
    os.write(file, content.encode())
    os.close(file)


def _remove(parent: int, name: str, content: str) -> None:
    """Remove what ``_make`` has made, if nothing was added to it. A name that leads elsewhere is no name that was noted."""
    if "/" in name or name == "..":
        return
    if content == "/":
        os.rmdir(name, dir_fd=parent)
        return
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent), "rb") as file:  # noqa: PTH123
        is_unchanged = file.read(1 << 10) == content.encode()
    if is_unchanged:
        os.unlink(name, dir_fd=parent)


def _own_folder(path: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)  # noqa: PTH102
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(folder)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, f"{path} must belong to this user, with mode 700")
    return folder
