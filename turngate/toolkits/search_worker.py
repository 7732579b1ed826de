"""The search process: walks a directory it was handed as an open descriptor, and prints what it finds as JSON.

Run by path (``python -I -S search_worker.py DESCRIPTOR``), query on stdin, one JSON object on stdout. A process, because
a regular expression that backtracks forever can be stopped in no other way: Python's ``re`` holds the interpreter lock,
and system grep would speak another dialect than the one models know. Must import the standard library only.

The walk (``os.fwalk``) goes by descriptors and follows no symlink, so nothing can lead it out of where it began.
"""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

MAX_FILE_BYTES = 20_000_000
MAX_LINE_CHARS = 400
_SNIFFED_BYTES = 8192
_SKIPPED_NAMES = {".git", ".turngate"}


def matches_glob(path: str, pattern: str) -> bool:
    """Tell whether a relative path fits: ``*``, ``?``, ``[…]`` within a name, ``**`` for any number of directories.

    Time grows with names times pattern parts, never worse: each pair is looked at once.
    """
    names, parts = path.split("/"), pattern.split("/")
    # reachable[j]: the parts before j can have matched the names so far.
    reachable = _past_double_stars({0}, parts)
    for name in names:
        after: set[int] = set()
        for index in reachable:
            if index == len(parts):
                continue
            if parts[index] == "**":
                after.add(index)
            elif fnmatchcase(name, parts[index]):
                after.add(index + 1)
        reachable = _past_double_stars(after, parts)
    return len(parts) in reachable


def _past_double_stars(indexes: set[int], parts: list[str]) -> set[int]:
    reached = set(indexes)
    for index in sorted(indexes):
        following = index
        while following < len(parts) and parts[following] == "**":
            following += 1
            reached.add(following)
    return reached


def walk(directory: int, private: set[tuple[int, int]]) -> Iterator[tuple[str, int, str]]:
    """Yield (path below ``directory``, descriptor of its directory, name) of every non-directory, in a stable order.

    ``private``: directories that are passed over, by device and inode.
    """
    for where, directories, names, descriptor in os.fwalk(".", follow_symlinks=False, dir_fd=directory):
        if private and _inode(os.fstat(descriptor)) in private:
            directories.clear()
            continue
        # A symlink is a name like any: whether it leads to a directory can't be seen from inside a sandbox.
        links = {name for name in directories if stat.S_ISLNK(os.lstat(name, dir_fd=descriptor).st_mode)}
        directories[:] = sorted(name for name in directories if name not in _SKIPPED_NAMES | links)
        above = where.removeprefix(".").removeprefix("/")
        for name in sorted(name for name in {*names, *links} if name not in _SKIPPED_NAMES):
            yield f"{above}/{name}" if above else name, descriptor, name


def private_of(query: dict[str, Any]) -> set[tuple[int, int]]:
    """Return the files and directories that are not searched, by device and inode."""
    return {(device, inode) for device, inode in query["private"]}


def as_unicode(path: str) -> str:
    """Return a path as valid Unicode: names that are not UTF-8 get question marks."""
    return path.encode("utf-8", "replace").decode()


def find_paths(directory: int, query: dict[str, Any]) -> dict[str, Any]:
    """Answer a glob: paths relative to the workspace, at most ``limit``."""
    paths: list[str] = []
    for path, _, _ in walk(directory, private_of(query)):
        if not matches_glob(path, query["pattern"]):
            continue
        if len(paths) == query["limit"]:
            return {"paths": paths, "truncated": True}
        paths.append(as_unicode(path))
    return {"paths": paths, "truncated": False}


def find_lines(start: int, query: dict[str, Any]) -> dict[str, Any]:
    """Answer a grep: matching lines, at most ``limit``. ``start``: a directory, or a single file."""
    try:
        pattern = re.compile(query["pattern"], re.IGNORECASE if query["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError) as error:
        return {"invalid_pattern": str(error) or type(error).__name__}
    answer: dict[str, Any] = {"matches": [], "truncated": False, "files_searched": 0, "files_skipped": 0}
    for path, text in _texts(start, query, answer):
        for number, line in enumerate(text.split("\n"), 1):
            hit = pattern.search(line)
            if hit is None:
                continue
            if len(answer["matches"]) == query["limit"]:
                return {**answer, "truncated": True}
            answer["matches"].append({"path": as_unicode(path), "line": number, "text": _around(line, hit.start())})
    return answer


def _texts(start: int, query: dict[str, Any], answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    private = private_of(query)
    for path, descriptor in _files(start, query):
        text = None if descriptor is None else _read(descriptor, private, skip_links=query["skip_links"])
        if text is None:
            answer["files_skipped"] += 1
            continue
        answer["files_searched"] += 1
        yield path, text


def _files(start: int, query: dict[str, Any]) -> Iterator[tuple[str, int | None]]:
    if stat.S_ISREG(os.fstat(start).st_mode):
        yield query["prefix"], os.dup(start)
        return
    wanted, prefix = query["glob"], query["prefix"]
    for below, directory, name in walk(start, private_of(query)):
        if wanted is not None and not matches_glob(below if "/" in wanted else name, wanted):
            continue
        path = f"{prefix}/{below}" if prefix else below
        try:
            yield path, os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError:  # A symlink, no permission, or gone.
            yield path, None


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _read(descriptor: int, private: set[tuple[int, int]], *, skip_links: bool) -> str | None:
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            return None
        if _inode(status) in private or (skip_links and status.st_nlink > 1):
            return None
        raw = file.read(MAX_FILE_BYTES)
    return None if b"\0" in raw[:_SNIFFED_BYTES] else raw.decode("utf-8", "replace")


def _around(line: str, position: int) -> str:
    line = line.rstrip("\r").replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(line) <= MAX_LINE_CHARS:
        return line
    begin = max(0, min(position - MAX_LINE_CHARS // 4, len(line) - MAX_LINE_CHARS))
    end = begin + MAX_LINE_CHARS
    return ("…" if begin else "") + line[begin:end] + ("…" if end < len(line) else "")


def main() -> None:
    """Read the query, answer it. The kernel ends us when no one else can: a processor time limit, in seconds."""
    query = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (query["cpu_seconds"], query["cpu_seconds"]))
    descriptor = int(sys.argv[1])
    answer = find_lines(descriptor, query) if query["kind"] == "grep" else find_paths(descriptor, query)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
