"""A unified diff as lines to colour. Reads the text of a tool's preview; never guesses where the hunks say nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

LineKind = Literal["file", "hunk", "added", "removed", "context", "note"]

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


@dataclass(frozen=True, kw_only=True)
class DiffLine:
    """One line. ``old`` and ``new``: its line numbers in the two files, None where it is in neither."""

    kind: LineKind
    text: str
    old: int | None = None
    new: int | None = None


@dataclass(frozen=True, kw_only=True)
class DiffView:
    """A whole diff with its sums."""

    lines: tuple[DiffLine, ...]

    @property
    def added(self) -> int:
        """Lines added."""
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        """Lines removed."""
        return sum(line.kind == "removed" for line in self.lines)


def read_diff(text: str) -> DiffView:
    """Return the lines of a unified diff, numbered.

    Inside a hunk the counts of its header decide, not the form of a line: a removed line that reads ``-- old/path``
    looks like a file header (``--- old/path``) and is none.
    """
    lines: list[DiffLine] = []
    old = new = old_left = new_left = 0
    for raw in text.removesuffix("\n").split("\n"):
        header = _HUNK.match(raw)
        if old_left <= 0 and new_left <= 0 and header:
            old, new = int(header[1]), int(header[3])
            old_left, new_left = int(header[2] or 1), int(header[4] or 1)
            lines.append(DiffLine(kind="hunk", text=raw))
        elif raw.startswith("\\"):
            lines.append(DiffLine(kind="note", text=raw))
        elif old_left <= 0 and new_left <= 0:
            lines.append(DiffLine(kind="file", text=raw))
        elif raw.startswith("+"):
            lines.append(DiffLine(kind="added", text=raw, new=new))
            new, new_left = new + 1, new_left - 1
        elif raw.startswith("-"):
            lines.append(DiffLine(kind="removed", text=raw, old=old))
            old, old_left = old + 1, old_left - 1
        else:
            lines.append(DiffLine(kind="context", text=raw, old=old, new=new))
            old, new, old_left, new_left = old + 1, new + 1, old_left - 1, new_left - 1
    return DiffView(lines=tuple(lines))
