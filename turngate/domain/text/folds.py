"""Long texts and diffs in parts: what is shown at once, and what is folded until a person opens it. Pure.

The page, the terminal UI and the command line fold by these rules, so that a call looks the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from turngate.domain.text.diff import DiffLine, DiffView
from turngate.domain.text.sentences import counted

SCREEN_LINES: Final = 40
SCREEN_CHARS: Final = 4_000
"""About what a screen holds. What is longer is folded."""
HEAD_LINES: Final = 20
HEAD_CHARS: Final = 2_000
"""What is shown of a text that is folded."""
UNCHANGED_LINES: Final = 8
"""Unchanged lines in a row that are worth folding."""
CONTEXT_LINES: Final = 3
"""Unchanged lines that stay before and after a change."""
CHANGES: Final = frozenset({"added", "removed"})
"""Kinds of lines that change."""
WIDE_LINE: Final = 400
"""Characters of a line from which on the number of lines alone says too little."""


NO_LAST_LINE_END: Final = "\\ No newline at end of file"
"""The only note that every diff may have."""


@dataclass(frozen=True, kw_only=True)
class FoldedText:
    """A text. ``head`` is shown, ``rest`` is folded; None: nothing is. ``head`` ends with a line where it can."""

    head: str
    rest: str | None = None

    @property
    def more(self) -> str:
        """How much is folded, in words; empty: nothing is."""
        return "" if self.rest is None else size_in_lines(self.rest, "more ")


def fold_text(text: str) -> FoldedText:
    """Return a text in parts: all of it is shown if it fits on a screen, else its beginning."""
    if len(text) <= SCREEN_CHARS and text.count("\n") < SCREEN_LINES:
        return FoldedText(head=text)
    return cut_text(text, HEAD_CHARS)


def cut_text(text: str, chars: int) -> FoldedText:
    """Return a text of which at most so many characters, and a head's lines, are shown. It is longer than that."""
    lines = text[: chars + 1].split("\n")
    if len(lines) == 1:
        return FoldedText(head=text[:chars], rest=text[chars:])
    # The last line of the beginning may have been cut itself.
    head = "\n".join(lines[: min(HEAD_LINES, len(lines) - 1)])
    return FoldedText(head=head, rest=text[len(head) + 1 :])


def size_in_lines(text: str, kind: str = "") -> str:
    """Return how long a text is: ``3,012 lines``; its characters where it is one line, or lines are long."""
    lines = text.removesuffix("\n").count("\n") + 1
    characters = counted(len(text), f"{kind}character")
    if lines == 1:
        return characters
    in_lines = counted(lines, f"{kind}line")
    return f"{in_lines} ({counted(len(text), 'character')})" if len(text) > lines * WIDE_LINE else in_lines


@dataclass(frozen=True, kw_only=True)
class DiffPart:
    """Lines in a row. ``folded``: nothing in them changes, so that they may stay folded."""

    lines: tuple[DiffLine, ...]
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class FoldedDiff:
    """A diff. ``head`` is shown, ``rest`` is folded; each with folds of its own."""

    head: tuple[DiffPart, ...]
    rest: tuple[DiffPart, ...]
    whole: DiffView

    @property
    def size(self) -> str:
        """How long it is and how much it changes: ``3,012 lines, 2 changes``."""
        changes = sum(changed for changed, _run in groupby(self.whole.lines, key=lambda line: line.kind in CHANGES))
        return f"{counted(len(self.whole.lines), 'line')}, {counted(changes, 'change')}"

    @property
    def more(self) -> str:
        """How much is folded, and how much of that changes; empty: nothing is."""
        lines = [line for part in self.rest for line in part.lines]
        return more_lines(len(lines), sum(line.kind in CHANGES for line in lines)) if lines else ""

    def shows(self, text: str) -> bool:
        """Tell whether a text is in what must be read of the diff, before or after the change."""
        wanted = text.removesuffix("\n")
        for folded, parts in groupby((*self.head, *self.rest), key=lambda part: part.folded):
            lines = [] if folded else [line for part in parts for line in part.lines]
            for other in ("added", "removed"):
                if wanted in "\n".join(line.text[1:] for line in lines if line.kind in {"context", other}):
                    return bool(lines)
        return False

    def leads_to(self, text: str) -> bool:
        """Tell whether a text is what the one file of the diff will be, as far as the diff says: its other lines stay.

        Never of a diff that was cut: a note says how much of it is missing.
        """
        if any(line.kind == "note" and line.text != NO_LAST_LINE_END for line in self.whole.lines):
            return False
        lines = text.split("\n")
        after = [line for line in self.whole.lines if line.new is not None]
        files = sum(line.kind == "file" and line.text.startswith("+++ ") for line in self.whole.lines)
        return (
            bool(after)
            and files <= 1
            and all((line.new or 0) <= len(lines) and lines[(line.new or 0) - 1] == line.text[1:] for line in after)
        )

    def covers(self, text: str, risk: str) -> str:
        """Return why a text may stay folded after the diff, which must be read; empty: the text must be read, too."""
        if self.shows(text):
            return "all of it is in what will change"
        if risk != "high" and self.leads_to(text):
            return "the changes are above, the other lines stay as they are"
        return ""


def fold_diff(diff: DiffView) -> FoldedDiff:
    """Return a diff in parts: unchanged lines far from a change are folded, and what follows the first screen."""
    parts = _parts(diff.lines)
    if sum(len(part.lines) for part in parts if not part.folded) <= SCREEN_LINES:
        return FoldedDiff(head=tuple(parts), rest=(), whole=diff)
    room, head = HEAD_LINES, list[DiffPart]()
    while parts and (parts[0].folded or len(parts[0].lines) <= room):
        part = parts.pop(0)
        room -= 0 if part.folded else len(part.lines)
        head.append(part)
    if room:
        head.append(DiffPart(lines=parts[0].lines[:room]))
        parts[0] = DiffPart(lines=parts[0].lines[room:])
    return FoldedDiff(head=tuple(head), rest=tuple(parts), whole=diff)


def _parts(lines: Sequence[DiffLine]) -> list[DiffPart]:
    parts = list[DiffPart]()
    runs = [(kind, tuple(run)) for kind, run in groupby(lines, key=lambda line: line.kind == "context")]
    for place, (unchanged, run) in enumerate(runs):
        before = CONTEXT_LINES if place and runs[place - 1][1][-1].kind in CHANGES else 0
        after = len(run) - (CONTEXT_LINES if place + 1 < len(runs) and runs[place + 1][1][0].kind in CHANGES else 0)
        if unchanged and after - before > UNCHANGED_LINES:
            around = (
                DiffPart(lines=run[:before]),
                DiffPart(lines=run[before:after], folded=True),
                DiffPart(lines=run[after:]),
            )
            parts.extend(part for part in around if part.lines)
        else:
            parts.append(DiffPart(lines=run))
    return parts


def more_lines(lines: int, changed: int | None = None) -> str:
    """Return how many lines aren't shown, and of a diff how many of them change: ``214 more lines, 3 of them changed``."""
    if changed is None:
        return counted(lines, "more line")
    return f"{counted(lines, 'more line')}, {f'{changed:,}' if changed else 'none'} of them changed"


def left_out_note(lines: Sequence[str]) -> str:
    """Return the last line of a diff from which these lines are left out.

    A backslash begins a note in every unified diff, whatever the hunk's header promised; any other sign would begin a line of the
    file. The names of further files count as changes, too.
    """
    return f"\\ … {more_lines(len(lines), sum(line.startswith(('+', '-')) for line in lines))}: not shown here\n"


_CUT: Final = re.compile(r"… (\d{1,3}(?:,\d{3}){0,4}) more characters?\Z")
MIN_CUT_CHARS: Final = 48
"""The shortest line with room for how much of it isn't shown."""


def cut_line(line: str, limit: int, *, more: int = 0) -> str:
    """Return a line of at most ``limit`` characters, which ends with how much isn't shown: ``… 1,204 more characters``.

    ``more``: how many characters follow that aren't in ``line``. What was cut before is counted in. Where there is no room, it
    ends with ``…``.
    """
    if more == 0 and len(line) <= limit:
        return line
    if before := _CUT.search(line):
        line, more = line[: before.start()], more + int(before[1].replace(",", ""))
    room = limit - len(f"… {counted(len(line) + more, 'more character')}")
    if limit < MIN_CUT_CHARS:
        return f"{line[: limit - 1]}…"
    head = line[:room]
    return f"{head}… {counted(len(line) - len(head) + more, 'more character')}"
