r"""Line ends of text files: an edit that says ``\n`` keeps the file's own, mixed ones too. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from turngate.text.line_diff import Block, changed_blocks, split_lines

BYTE_ORDER_MARK: Final = "\ufeff"
_END: Final = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Place:
    """Part of a file's text, from ``start`` to before ``end``. ``ends``: those of its lines, and one that new lines may have."""

    start: int
    end: int
    ends: Sequence[str]


class Lines:
    r"""A file's text, in which every line end is found by ``\n``."""

    def __init__(self, text: str) -> None:
        self._ends = _END.findall(text)
        self._is_plain = "\r" not in text
        self.text = text if self._is_plain else _END.sub("\n", text)
        marks = (match.end() for match in re.finditer("\n", self.text))
        # After which places of `self.text` the file has one character more.
        self._longer = [] if self._is_plain else [at for at, end in zip(marks, self._ends, strict=True) if len(end) > 1]

    def places(self, text: str) -> Iterator[Place]:
        r"""Return where in the file a text is, of which line ends are ``\n``; places don't overlap."""
        at, newlines, counted = self.text.find(text), 0, 0
        while at >= 0:
            newlines += self.text.count("\n", counted, at)
            counted = at
            inside = newlines + text.count("\n")
            ends = self._ends[newlines : inside + 1] or self._ends[-1:] or ["\n"]
            yield Place(self._in_file(at), self._in_file(at + len(text)), ends)
            at = self.text.find(text, at + len(text))

    def _in_file(self, place: int) -> int:
        return place + bisect_left(self._longer, place + 1)


def with_ends(new: str, old: str, ends: Sequence[str]) -> str:
    r"""Return a new text with line ends of the old one's: a line that stays keeps its own, a new one has its neighbour's.

    Args:
        new: with ``\n``.
        old: what it replaces, with ``\n``.
        ends: of the old text's lines, at least one; the last one is also that of lines that follow.
    """
    if "\n" not in new or set(ends) == {"\n"}:
        return new
    if len(set(ends)) == 1:
        return new.replace("\n", ends[0])
    old_lines, new_lines = split_lines(old), split_lines(new)
    padded = [*ends, *[ends[-1]] * len(old_lines)][: max(1, len(old_lines))]
    chosen: list[str] = []
    at = 0
    last = Block(len(old_lines), len(old_lines), len(new_lines), len(new_lines))
    for block in [*changed_blocks(old_lines, new_lines), last]:
        chosen += padded[at : block.old_start]
        near = padded[block.old_start : block.old_end] or padded[max(0, block.old_start - 1) :][:1]
        count = block.new_end - block.new_start
        chosen += [*near, *near[-1:] * count][:count]
        at = block.old_end
    return "".join(
        f"{line[:-1]}{end}" if line.endswith("\n") else line for line, end in zip(new_lines, chosen, strict=True)
    )


def like_file(text: str, before: str | None) -> str:
    r"""Return the whole new text of a file with the ends that all its lines have, and its byte order mark.

    A text with ends other than ``\n``, and one for a file with mixed ends, is taken as it is.
    """
    if before is None:
        return text
    ends = set(_END.findall(before))
    if len(ends) == 1 and "\r" not in text:
        text = text.replace("\n", ends.pop())
    has_mark = before.startswith(BYTE_ORDER_MARK) and not text.startswith(BYTE_ORDER_MARK)
    return f"{BYTE_ORDER_MARK}{text}" if has_mark else text
