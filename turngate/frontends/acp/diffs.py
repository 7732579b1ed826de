"""A unified diff in pieces that an editor can draw: for each hunk, what was there and what will be. Pure.

Source: https://www.gnu.org/software/diffutils/manual/html_node/Detailed-Unified.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*\n?")
_NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One hunk. ``path``: of the file as it will be, or was, without git's prefix; ``before`` None: there was no file.

    ``line``: where it is in the file as it will be, from 1; 0: that file is empty, or gone.
    """

    path: str
    line: int
    before: str | None
    after: str


class _NotWholeError(Exception):
    """The text is not exactly the diff that its headers promise."""


def hunks(diff: str) -> list[Hunk] | None:
    """Return the diff's hunks; None for anything that is not a whole unified diff.

    Lines are counted as each hunk's header says: a removed line that looks like a header is no header.
    """
    try:
        return list(_hunks(_lines(diff))) or None
    except _NotWholeError:
        return None


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [*(line + "\n" for line in lines), *([last] if last else [])]


def _hunks(lines: list[str]) -> Iterator[Hunk]:
    at, old, new = 0, "", ""
    while at < len(lines):
        if lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            old, new = _label(lines[at]), _label(lines[at + 1])
            at += 2
            continue
        header = _HUNK.fullmatch(lines[at])
        if header is None or not new:
            raise _NotWholeError
        before, after, at = _sides(lines, at + 1, int(header[1] or 1), int(header[3] or 1))
        path = old if new == "/dev/null" else new
        yield Hunk(path=path, line=int(header[2]), before=None if old == "/dev/null" else before, after=after)


def _sides(lines: list[str], at: int, old: int, new: int) -> tuple[str, str, int]:
    before: list[str] = []
    after: list[str] = []
    while old > 0 or new > 0 or (at < len(lines) and lines[at] == _NO_NEWLINE):
        if at == len(lines):
            raise _NotWholeError
        line, at = lines[at], at + 1
        sign = line[0]
        if line == _NO_NEWLINE:
            _end_without_newline(lines[at - 2][0], before, after)
            continue
        if sign in " -":
            before.append(line[1:])
            old -= 1
        if sign in " +":
            after.append(line[1:])
            new -= 1
        if sign not in " -+" or old < 0 or new < 0:
            raise _NotWholeError
    return "".join(before), "".join(after), at


def _end_without_newline(sign: str, before: list[str], after: list[str]) -> None:
    for side, signs in ((before, " -"), (after, " +")):
        if sign in signs and side:
            side[-1] = side[-1].removesuffix("\n")


def _label(line: str) -> str:
    name = line[4:].rstrip("\n").partition("\t")[0]
    if name == "/dev/null":
        return name
    return name.removeprefix("a/" if line.startswith("-") else "b/")
