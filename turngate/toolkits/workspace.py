"""The workspace boundary: which paths a tool may touch, and how it opens them without being led outside.

Owns confinement. A path is judged by where it really leads (every symlink in it followed), then opened from the system's root one
component at a time without following a symlink, so one that was put in its way after the check is refused.

Turngate's own files are refused under any name: also when the workspace is or lies in the data directory, and through a
hard link or bind mount (:mod:`turngate.toolkits.private_files`).

What is left: a hard link or bind mount made inside the workspace leads to any other place that it leads to, and a directory
that is moved out while it is open is still written to. Processes have their own confinement
(:mod:`turngate.toolkits.confinement`).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from turngate import ToolContext, ToolFailure
from turngate.toolkits.confinement import descriptors, machine
from turngate.toolkits.private_files import PRIVATE_FILES

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO no one writes to would hang forever; regular files ignore the flag.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_PRIVATE = "that directory is Turngate's own; it is not part of the workspace"
PRIVATE_NAMES = frozenset({".turngate"})
"""The default data directory lies where `turngate up` was started, which may well be the workspace. It holds an operator's
token: an agent that could read it could decide its own requests (I10)."""


class OutsideWorkspace(ToolFailure):
    """The path leads out of the workspace. ``path`` as it was given."""

    path: str
    reason: str


class FileUnavailable(ToolFailure):
    """The path is inside, but cannot be used so: missing, a directory, no permission, no space. ``reason`` says which."""

    path: str
    reason: str

    def is_missing(self) -> bool:
        """Tell whether there simply is no such file yet."""
        return isinstance(self.__cause__, FileNotFoundError)


def resolve_inside(workspace: Path, path: str) -> Path:
    """Return where ``path`` really leads, with no symlink and no ``..`` left in it; it need not exist.

    Relative paths start at the workspace; absolute ones are fine when they lie inside. ``~`` is an ordinary name. Parts
    that do not exist yet are taken literally *after* their deepest existing ancestor was resolved, so a new file
    below a symlinked grandparent is judged by that symlink's target.

    Raises:
        OutsideWorkspace: it leads outside, or cannot be a path at all (NUL, not encodable).
    """
    root = _real_root(workspace)
    if "\0" in path or not _is_encodable(path):
        raise OutsideWorkspace(path=printable(path), reason="a path must not hold NUL or unpaired surrogates")
    real = Path(os.path.realpath(root / path))
    if not real.is_relative_to(root):
        raise OutsideWorkspace(path=path, reason="the path leads outside the workspace; use one inside it")
    if PRIVATE_NAMES.intersection(real.relative_to(root).parts) or PRIVATE_FILES.holds(real):
        raise OutsideWorkspace(path=path, reason=_PRIVATE)
    return real


def _real_root(workspace: Path) -> Path:
    """Return the workspace's real path. A link below a directory where agents write isn't followed to it."""
    try:
        return Path(descriptors.real_path(str(workspace), machine.agents_write()))
    except descriptors.LinkError as link:
        raise OutsideWorkspace(
            path=str(workspace), reason=f"the run's workspace can't be used: {link.strerror}"
        ) from link
    except OSError:  # not there (yet): what opens it says so
        return Path(os.path.realpath(workspace))


def printable(name: str) -> str:
    """Return a file name as text that every store and page can hold: no unpaired surrogates, no NUL."""
    return name.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _is_encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def os_errors_as_failures(path: str) -> Iterator[None]:
    """Turn what the operating system says about ``path`` into a FileUnavailable the model can act on."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise FileUnavailable(path=printable(path), reason=reason) from error


@dataclass(frozen=True, kw_only=True)
class Place:
    """A path that was checked: the real root and the real components below it (none: the root itself)."""

    root: Path
    path: str
    parts: tuple[str, ...]

    @staticmethod
    def inside(workspace: Path, path: str) -> Place:
        """Check ``path``; raises OutsideWorkspace."""
        root = _real_root(workspace)
        return Place(root=root, path=path, parts=resolve_inside(root, path).relative_to(root).parts)

    @staticmethod
    def of_call(ctx: ToolContext, path: str) -> Place:
        """Check the path of a call that runs: it must lead where it led when policy judged the call and a person approved it.

        The place is opened without following a link, so what is opened is what was judged. Raises OutsideWorkspace,
        NoWorkspaceError.
        """
        place = Place.inside(ctx.require_workspace(), path)
        approved = json.loads(ctx.precondition or "null")
        is_other = isinstance(approved, dict) and approved.get("path", place.relative) != place.relative
        if is_other or ctx.places.get(path, str(place.real)) != str(place.real):
            reason = "the path leads elsewhere than when the call was allowed, so nothing was done; send the call again"
            raise OutsideWorkspace(path=path, reason=reason)
        return place

    @property
    def real(self) -> Path:
        """The real path."""
        return self.root.joinpath(*self.parts)

    @property
    def relative(self) -> str:
        """The real path relative to the workspace: what a result, a diff or an operator is shown."""
        return printable("/".join(self.parts)) or "."

    @contextmanager
    def parent(self, *, create: bool = False) -> Iterator[int]:
        """Open the directory that holds the file, walking from the root; ``create`` makes what is missing.

        Raises OutsideWorkspace when a symlink was swapped in, FileUnavailable for the rest.
        """
        if not self.parts:
            raise FileUnavailable(path=self.path, reason="is a directory")
        with os_errors_as_failures(self.path):
            descriptor = self._walk(self.parts[:-1], create=create)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def open_file(self, parent: int) -> int:
        """Open the file for reading below an open parent. Returns a descriptor of a regular file; the caller closes it."""
        descriptor = self._open_below(parent, self.parts[-1], _FILE_FLAGS)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return self._unless_private(descriptor)
        os.close(descriptor)
        raise FileUnavailable(path=self.path, reason="is not a regular file")

    def open_any(self) -> int:
        """Open the place itself, a directory or a regular file, for reading. The caller closes the descriptor."""
        with os_errors_as_failures(self.path):
            if not self.parts:
                return self._walk(())
            with self.parent() as parent:
                descriptor = self._open_below(parent, self.parts[-1], _FILE_FLAGS)
        if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            return self._unless_private(descriptor)
        os.close(descriptor)
        raise FileUnavailable(path=self.path, reason="is neither a file nor a directory")

    def _walk(self, parts: tuple[str, ...], *, create: bool = False) -> int:
        descriptor = self._unless_private(self._open_root())
        for part in parts:
            try:
                below = self._open_directory(descriptor, part, create=create)
            finally:
                os.close(descriptor)
            descriptor = self._unless_private(below)
        return descriptor

    def _open_root(self) -> int:
        try:
            root = descriptors.open_place(str(self.root))
        except descriptors.LinkError as link:
            reason = (
                "the workspace changed while it was being opened: a symlink took the place of a directory around it"
            )
            raise OutsideWorkspace(path=self.path, reason=reason) from link
        try:
            return os.open(".", _DIRECTORY_FLAGS, dir_fd=root)
        finally:
            os.close(root)

    def _unless_private(self, descriptor: int) -> int:
        """Return the descriptor; close it and raise OutsideWorkspace when it is one of Turngate's own."""
        status = os.fstat(descriptor)
        private = PRIVATE_FILES.is_directory if stat.S_ISDIR(status.st_mode) else PRIVATE_FILES.is_file
        if not private(status):
            return descriptor
        os.close(descriptor)
        raise OutsideWorkspace(path=self.path, reason="that is Turngate's own; it is not part of the workspace")

    def _open_directory(self, parent: int, name: str, *, create: bool) -> int:
        try:
            return self._open_below(parent, name, _DIRECTORY_FLAGS)
        except FileNotFoundError:
            if not create:
                raise
        with suppress(FileExistsError):  # Another call of the same step may make it at the same time.
            os.mkdir(name, dir_fd=parent)
        return self._open_below(parent, name, _DIRECTORY_FLAGS)

    def _open_below(self, parent: int, name: str, flags: int) -> int:
        try:
            return os.open(name, flags, dir_fd=parent)
        except OSError as error:
            # A symlink met with O_NOFOLLOW is ELOOP, or ENOTDIR beside O_DIRECTORY (open(2)). The path was free of
            # symlinks when it was resolved, so this one was put there since.
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and self._is_symlink(parent, name):
                reason = "the path changed while it was being opened: a symlink took a component's place"
                raise OutsideWorkspace(path=self.path, reason=reason) from error
            raise

    def _is_symlink(self, parent: int, name: str) -> bool:
        with suppress(OSError):
            return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        return False
