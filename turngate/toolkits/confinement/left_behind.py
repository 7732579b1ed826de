"""What a confined process leaves that the operator's own programs obey later, outside: found by looking before and after.

Of each directory that it may change: the places that editors and shells obey, and of each repository in it, at whatever depth,
what git takes commands from. Also what no git makes, and git would write through: links in a repository. A repository whose
directory another's index names is a submodule: git goes there by itself, so it is found however deep it lies.

Everything is opened by descriptor and no link is followed. What is looked at is bounded. Imports the standard library,
``descriptors`` and ``held_places`` only: the launcher runs it by path.
Sources: gitrepository-layout(5), gitformat-index(5), githooks(5).
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from turngate.toolkits.confinement import descriptors
    from turngate.toolkits.confinement.held_places import HeldPlace
else:
    try:
        from turngate.toolkits.confinement import descriptors
        from turngate.toolkits.confinement.held_places import HeldPlace
    except ImportError:  # the launcher has loaded them
        import descriptors
        from held_places import HeldPlace

OF_REPOSITORY = (
    *(HeldPlace((name,), "read", "/") for name in ("hooks", "info", "modules", "worktrees", "remotes", "branches")),
    *(HeldPlace((name,), "read", "") for name in ("config", "config.worktree")),
    HeldPlace(("commondir",), "read", ".\n"),
)
"""All of a repository from which git takes commands, or learns where they are; a commit needs none of it.

``commondir`` can't be empty: ``.`` means the repository itself.
"""
_OBEYED_DIRECTORIES = {"hooks", "remotes", "branches"}
_OBEYED_FILES = {"config", "config.worktree", "commondir", "gitdir", "attributes", "git-rebase-todo"}
_OF_NAMED_BRANCHES = {"refs", "logs", "objects"}
"""What lies there is named by branches and content."""
_OF_BARE = {*_OF_NAMED_BRANCHES, *(each.names[0] for each in OF_REPOSITORY)}
"""Where git writes in a repository without files of a project; a directory that only looks like one may hold others."""

_MOST_ENTRIES = 10_000
_MOST_OF_THEIR_OWN = 20
"""So many repositories, those nearest to the top, are looked at whatever the others hold."""
_MOST_OF_PLACE = 1_000
_MOST_SUBMODULES = 100
_MOST_SETTINGS = 10
_MOST_NAMED = 10
_MOST_OF_INDEX = 16 << 20
_MOST_OF_SETTINGS = 1 << 16
_SUBMODULE = 0o160000
_SUBMODULE_MODE = _SUBMODULE.to_bytes(4, "big")
_MODES = {_SUBMODULE, 0o100644, 0o100755, 0o120000, 0o040000}
_EXTENDED, _WITHOUT_PREFIXES = 0x4000, 4
"""A flag of an entry, and the version in which a path leaves out what it shares with the one before."""

_NAMES_PLACE = re.compile(rb"(?im)^[ \t]*(?:\[[^\]\n]*\][ \t]*)?(hooksPath|path)[ \t]*=[ \t]*([^#;\r\n\0]{1,200})")
"""A setting with which git takes commands from elsewhere: ``core.hooksPath``, ``include.path``, ``includeIf.….path``."""

Of = TypeVar("Of")
Names = tuple[str, ...]
Stamp = tuple[int, int]
"""A file's number, and when it or its name last changed: no process of the user's can set that back."""


class LeftBehind:
    """What lies in one directory that other programs obey; later, what a process has changed of it."""

    def __init__(self, path: str, places: Sequence[str]) -> None:
        """Look at a directory before a process begins.

        Args:
            path: the directory, without a link in it.
            places: names of files and directories of its top that editors and shells obey.

        Raises:
            OSError: it can't be opened.
        """
        self.path, self._places = path, places
        self._directory = descriptors.open_place(path)
        self._before = _Look(self._directory, path, places)

    def to_hold(self) -> list[HeldPlace]:
        """Return what to hold so that submodules, and what settings name, stay; directories come before what lies in them."""
        inside = [*self._before.submodules[:_MOST_SUBMODULES], *self._before.settings]
        ways = dict.fromkeys(names[:many] for names in inside for many in range(1, len(names)))
        places = [HeldPlace(names, "keep") for names in ways]
        places += [HeldPlace(names, "read", absent) for names, absent in self._before.settings.items()]
        for names in self._before.submodules[:_MOST_SUBMODULES]:
            of_repository = [each._replace(names=(*names, *each.names)) for each in OF_REPOSITORY]
            places += [
                HeldPlace(names, "keep"),
                *(each for each in of_repository if each.names not in self._before.links),
            ]
        return sorted(places, key=lambda each: len(each.names))

    def report(self, known: Sequence[str]) -> Iterator[str]:
        """Remove the links that git would write through, and say in sentences what is there now, or was changed.

        ``known``: places that the output names anyway.
        """
        after = _Look(self._directory, self.path, [*self._places, *map("/".join, self._before.settings)])
        removed = list(filter(self._remove, _changed(self._before.links, after.links)))
        if removed:
            yield f"removed {_listed(removed)} in {self.path}: git makes no links there, and would have changed what they lead to"
        new = after.repositories - self._before.repositories
        changed = _not_below(new, _changed(self._before.obeyed, after.obeyed))
        named = _not_below({tuple(each.split("/")) for each in known}, [*new, *changed])
        if named:
            obeyed = "your own git, editor or shell obeys it outside of the confinement: look at it before you use them there"
            yield f"{_listed(named)} in {self.path} is new or was changed while this command ran, and {obeyed}"
        submodules = set(after.submodules) - set(self._before.submodules)
        if submodules:
            yield f"{_listed(submodules)} in {self.path} is in the index now, so your `git status` at the top obeys its settings"
        if after.is_cut and not self._before.is_cut:
            yield f"{self.path} has so many files now that not all directories were searched for repositories"
        cut = after.cut - self._before.cut
        if cut:
            yield f"{_listed(cut)} in {self.path} has so many files now that not all of them were looked at"

    def _remove(self, names: Names) -> bool:
        with suppress(OSError):
            parent = descriptors.open_below(self._directory, names[:-1])
            try:
                os.unlink(names[-1], dir_fd=parent)
                return True
            finally:
                os.close(parent)
        return False


class _Look:
    """One look at a directory: repositories and files that are obeyed, by the names that lead there."""

    def __init__(self, directory: int, path: str, places: Sequence[str]) -> None:
        self.obeyed: dict[Names, Stamp] = {}
        self.links: dict[Names, Stamp] = {}
        self.repositories: set[Names] = set()
        self.submodules: list[Names] = []
        self.settings: dict[Names, str | None] = {}
        """What the settings of the repository at the top name → what is made where it is absent."""
        self.cut: set[Names] = set()
        """Repositories and places that weren't looked at to the end."""
        self._directory = directory
        self._left = _MOST_ENTRIES
        repositories = self._search()
        self.is_cut = self._left < 0
        self._left = _MOST_ENTRIES
        spelled = [*places, *(name for name in self._entries((), _is_directory) if name.casefold() in places)]
        self._read_settings(path, places)
        for place in dict.fromkeys([*(tuple(each.split("/")) for each in spelled), *self.settings]):
            self._left = _MOST_OF_PLACE
            self.obeyed |= {names: _stamp(status) for names, status in self._files(place)}
            self.cut |= {place} if self._left < 0 else set()
        self._left = _MOST_ENTRIES
        looked_at = set[Names]()
        while repositories:
            names = repositories.popleft()
            if names not in looked_at and self._status(names) is not None:
                looked_at.add(names)
                if len(looked_at) <= _MOST_OF_THEIR_OWN:
                    self._left = _MOST_ENTRIES
                self._look_at(names)
                self.cut |= {names} if self._left < 0 else set()
                submodules = [(*names[:-1], *inner, ".git") for inner in self._submodules(names)]
                self.submodules += [each for each in submodules if self._can_be_held(each)]
                repositories += submodules

    def _search(self) -> deque[Names]:
        """Return the repositories, those nearest to the top first."""
        repositories, waiting = deque[Names](), deque[Names]([()])
        while waiting:
            names = waiting.popleft()
            listed = self._entries(names, _is_directory)
            if ".git" in listed:
                repositories.append((*names, ".git"))
            if listed.keys() >= {"HEAD", "objects", "refs"}:
                repositories.append(names)
            waiting += [(*names, name) for name, is_directory in listed.items() if is_directory and name != ".git"]
        return repositories

    def _read_settings(self, path: str, places: Sequence[str]) -> None:
        """Find what the settings name below the directory, and what the files that they include do. No link is followed."""
        files: list[Names] = [(".git", "config"), (".git", "config.worktree")]
        for file in files:
            for key, value in _NAMES_PLACE.findall(self._read(file, _MOST_OF_SETTINGS)):
                is_hooks = key.lower() == b"hookspath"
                text = os.fsdecode(value).strip().replace('"', "")
                full = os.path.normpath(os.path.join(path, *([] if is_hooks else file[:-1]), text))  # noqa: PTH118
                names = tuple(os.path.relpath(full, path).split("/"))
                if names[0] in {"..", ".", ".git"} or len(self.settings) == _MOST_SETTINGS:
                    continue
                files += [] if is_hooks or names in files else [names]
                # `.husky/_` has what runs the hooks that lie above it.
                self.settings[names[:1] if names[0] in places else names] = "/" if is_hooks else None

    def _look_at(self, repository: Names) -> None:
        """Look at what git obeys in a repository, and at links where it writes.

        Where only placeholders are, which other commands hold at this moment, there is no repository.
        """
        is_one = False
        for names, status in self._files(repository, None if repository[-1:] == (".git",) else _OF_BARE):
            inner = names[len(repository) :]
            is_one = is_one or not self._is_placeholder(names, status)
            if inner and stat.S_ISLNK(status.st_mode):
                self.links[names] = _stamp(status)
            elif _is_obeyed(inner) and not self._is_placeholder(names, status):
                self.obeyed[names] = _stamp(status)
        if is_one or self._left < 0:
            self.repositories.add(repository)

    def _submodules(self, repository: Names) -> Iterator[Names]:
        """Yield where the repository's index has other repositories."""
        for name in self._entries(repository, _is_directory):
            if name != "index" and not name.startswith("sharedindex."):
                continue
            for path in _submodules_of(self._read((*repository, name), _MOST_OF_INDEX)):
                inner = tuple(os.fsdecode(path).split("/"))
                status = None if path else self._status((*repository, name))
                if status is not None:  # the path is in the index that this one is based on
                    self.obeyed[*repository, name] = _stamp(status)
                if not {"", ".", ".."} & set(inner):
                    yield inner

    def _can_be_held(self, names: Names) -> bool:
        status = self._status(names)
        return status is not None and not stat.S_ISLNK(status.st_mode) and names not in self.submodules

    def _is_placeholder(self, names: Names, status: os.stat_result) -> bool:
        """Whether this is what is made to hold an absent file, perhaps for another command."""
        return status.st_size == 0 or (names[-1] == "commondir" and self._read(names, 8) == b".\n")

    def _files(self, names: Names, within: Collection[str] | None = None) -> Iterator[tuple[Names, os.stat_result]]:
        """Yield all that is no directory; of a repository's objects, only what git finds by other names than their content's.

        ``within``: which directories at the top are entered; None: all.
        """
        status = self._status(names)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            yield names, status
        waiting = [names]
        while waiting:
            at = waiting.pop()
            for name, entry in self._entries(at, _status_of).items():
                if not stat.S_ISDIR(entry.st_mode):
                    yield (*at, name), entry
                elif not _holds_objects((*at, name)[len(names) :]) and (
                    within is None or at != names or name in within
                ):
                    waiting.append((*at, name))

    def _entries(self, names: Names, about: Callable[[os.DirEntry[str]], Of]) -> dict[str, Of]:
        """Return what a directory holds, by name; nothing of what is none, or what has gone."""
        listed: dict[str, Of] = {}
        with suppress(OSError):
            opened = self._open(names, os.O_RDONLY | os.O_DIRECTORY)
            try:
                with os.scandir(opened) as entries:
                    for entry in entries:
                        self._left -= 1
                        if self._left < 0:
                            break
                        with suppress(OSError):
                            listed[entry.name] = about(entry)
            finally:
                os.close(opened)
        return listed

    def _read(self, names: Names, most: int) -> bytes:
        with suppress(OSError), open(self._open(names, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 - a descriptor
            return file.read(most)
        return b""

    def _status(self, names: Names) -> os.stat_result | None:
        with suppress(OSError):
            opened = self._open(names, os.O_PATH | os.O_NOFOLLOW)
            try:
                return os.fstat(opened)
            finally:
                os.close(opened)
        return None

    def _open(self, names: Names, flags: int) -> int:
        """Open a path below the directory in one call, if it leads through no link."""
        return descriptors.open_beneath(self._directory, "/".join(names) or ".", flags)


def _holds_objects(inner: Names) -> bool:
    """Whether a directory of a repository, or of one in its ``modules``, has only files that are named by their content."""
    return inner[-2:-1] == ("objects",) and inner[-1] not in {"info", "pack"} and not {"refs", "logs"} & set(inner)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _status_of(entry: os.DirEntry[str]) -> os.stat_result:
    return entry.stat(follow_symlinks=False)


def _changed(before: Mapping[Names, Stamp], after: Mapping[Names, Stamp]) -> list[Names]:
    return [names for names, stamp in after.items() if before.get(names) != stamp]


def _not_below(places: Collection[Names], listed: Iterable[Names]) -> list[Names]:
    """Return the names that are none of these places, and lie in none."""
    return [names for names in listed if not any(names[: len(each)] == each for each in places)]


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_ctime_ns


def _is_obeyed(inner: Names) -> bool:
    """Whether git takes commands from a file of a repository, or ``.git`` is itself a file that says where the repository is."""
    if not inner:
        return True
    above = set(inner[:-1])
    return not above & _OF_NAMED_BRANCHES and (inner[-1] in _OBEYED_FILES or bool(above & _OBEYED_DIRECTORIES))


def _listed(places: Iterable[Names]) -> str:
    """Name places, no more than a person reads. A name can have line breaks that would look like a line of the confinement."""
    names = ["/".join(each) for each in sorted(places)]
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(each if each.isprintable() else ascii(each) for each in names[:_MOST_NAMED]) + more


def _submodules_of(index: bytes) -> list[bytes]:
    """Return the paths of an index's submodules; none of what is no index."""
    if _SUBMODULE_MODE not in index:
        return []
    for hash_size in (20, 32):
        with suppress(ValueError, IndexError, struct.error):
            return [path for path, mode in _entries_of(index, hash_size) if mode == _SUBMODULE]
    return []


def _entries_of(index: bytes, hash_size: int) -> list[tuple[bytes, int]]:
    """Return an index's paths and modes. Raises ValueError, IndexError, struct.error: it has hashes of another size."""
    version, count = struct.unpack_from(">II", index, 4)
    at, path, entries = 12, b"", []
    for _entry in range(count):
        (mode,), (flags,) = (
            struct.unpack_from(">I", index, at + 24),
            struct.unpack_from(">H", index, at + 40 + hash_size),
        )
        start = at + 42 + hash_size + (2 if flags & _EXTENDED else 0)
        if version == _WITHOUT_PREFIXES:
            removed = index[start] & 0x7F
            while index[start] & 0x80:
                start += 1
                removed = (removed + 1 << 7) + (index[start] & 0x7F)
            start += 1
        end = index.index(0, start)
        path = path[: len(path) - removed] + index[start:end] if version == _WITHOUT_PREFIXES else index[start:end]
        at = end + 1 if version == _WITHOUT_PREFIXES else at + (end - at + 8) // 8 * 8
        if mode not in _MODES:
            raise ValueError("this is no index with hashes of this size")
        entries.append((path, mode))
    return entries
