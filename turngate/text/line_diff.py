r"""What differs between two texts, line by line: exact, in time that grows with their length. Pure.

Every diff that a person reads is made here. Only ``\n`` ends a line, as in every editor and in git.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from rapidfuzz.distance import Indel

from turngate.domain.text.folds import left_out_note

CONTEXT_LINES: Final = 3
WINDOW: Final = 10_000
"""Lines that are compared with each other at a time; the time taken grows with its square."""


class Block(NamedTuple):
    """Lines that differ, counted from 0; the ends are exclusive. One of the two sides may be empty."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def split_lines(text: str) -> list[str]:
    """Return the lines with their ends.

    ``str.splitlines`` also splits at form feeds and U+2028, which would make our line numbers disagree with an editor's.
    """
    *lines, last = text.split("\n")
    whole = [line + "\n" for line in lines]
    return [*whole, last] if last else whole


def unified_diff(path: str, before: str | None, after: str, *, max_chars: int | None = None) -> str:
    """Return what changes in git's format; empty when nothing does.

    Args:
        path: of the file, for the header.
        before: None: there is no file yet.
        after: the whole new text.
        max_chars: about where to cut, at a line's end; a note says how many lines are left out. None: nowhere.
    """
    old, new = split_lines(before or ""), split_lines(after)
    if before is not None and old == new:
        return ""
    header = [
        "--- /dev/null\n" if before is None else f"--- {_label('a/' + path)}\n",
        f"+++ {_label('b/' + path)}\n",
    ]
    lines = [*header, *hunks(old, new)]
    return "".join(lines if max_chars is None else clip(lines, max_chars))


def hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Return the lines of a unified diff, without a file's header. Lines come and go with their ends."""
    for group in _near_each_other(changed_blocks(old, new)):
        before = min(CONTEXT_LINES, group[0].old_start)
        after = min(CONTEXT_LINES, len(old) - group[-1].old_end)
        old_range = _range(group[0].old_start - before, group[-1].old_end + after)
        new_range = _range(group[0].new_start - before, group[-1].new_end + after)
        yield f"@@ -{old_range} +{new_range} @@\n"
        at = group[0].old_start - before
        for block in group:
            yield from (_line(" ", line) for line in old[at : block.old_start])
            yield from (_line("-", line) for line in old[block.old_start : block.old_end])
            yield from (_line("+", line) for line in new[block.new_start : block.new_end])
            at = block.old_end
        yield from (_line(" ", line) for line in old[at : at + after])


def clip(lines: Sequence[str], max_chars: int) -> list[str]:
    """Return the first lines of a diff. Where some are left out, the last line is a note that says how many."""
    used = 0
    for index, line in enumerate(lines):
        used += len(line)
        if used > max_chars:
            return [*lines[:index], left_out_note(lines[index:])]
    return list(lines)


def changed_blocks(old: Sequence[str], new: Sequence[str]) -> list[Block]:
    """Return what differs, in order. Between the blocks, and around them, both texts have the same lines."""
    numbers: dict[str, int] = {}
    a, b = ([numbers.setdefault(line, len(numbers)) for line in lines] for lines in (old, new))
    blocks: list[Block] = []
    old_at = new_at = 0
    for old_start, new_start, length in [*_common_runs(a, b), (len(a), len(b), 0)]:
        if old_start > old_at or new_start > new_at:
            blocks.append(Block(old_at, old_start, new_at, new_start))
        old_at, new_at = old_start + length, new_start + length
    return blocks


_Run = tuple[int, int, int]
"""Common lines: where they begin in the old text and in the new one, and how many they are."""


def _common_runs(a: list[int], b: list[int]) -> Iterator[_Run]:
    """Return runs of common lines in order; two may touch.

    The lines that are in both texts exactly once, and in the same order, are common (a "patience" diff). They divide long
    texts into short ones, which keeps lines that were moved far away, or inserted in great number, from hiding what stays.
    """
    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    end = next((i for i in range(shorter - start) if a[-1 - i] != b[-1 - i]), shorter - start)
    old_end, new_end = len(a) - end, len(b) - end
    yield 0, 0, start
    landmarks = [(i + start, j + start) for i, j in _landmarks(a[start:old_end], b[start:new_end])]
    for (old_at, new_at), (old_next, new_next) in pairwise([(start - 1, start - 1), *landmarks, (old_end, new_end)]):
        yield from _between(a, b, Block(old_at + 1, old_next, new_at + 1, new_next))
        yield old_next, new_next, 1 if old_next < old_end else end


def _landmarks(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Return places of lines that are once in each text: as many as there are in the same order in both."""
    once = [{number for number, times in Counter(lines).items() if times == 1} for lines in (a, b)]
    in_both = once[0] & once[1]
    places = {number: place for place, number in enumerate(b) if number in in_both}
    pairs = [(place, places[number]) for place, number in enumerate(a) if number in places]
    # The longest increasing subsequence: `ends` has the smallest end of those of each length, `before` the way back.
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        ends[length : length + 1] = [place]
        before.append(last[length - 1] if length else -1)
        last[length : length + 1] = [index]
    chain: list[tuple[int, int]] = []
    at = last[-1] if last else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def _between(a: list[int], b: list[int], gap: Block) -> Iterator[_Run]:
    """Return the longest common subsequence of a gap; beyond a window, of one window after the other."""
    i, _, j, _ = gap
    while i < gap.old_end and j < gap.new_end:
        old_end, new_end = min(i + WINDOW, gap.old_end), min(j + WINDOW, gap.new_end)
        is_last = (old_end, new_end) == (gap.old_end, gap.new_end)
        matches = Indel.editops(a[i:old_end], b[j:new_end]).as_matching_blocks()
        for match in matches:
            yield i + match.a, j + match.b, match.size
            reached = max(match.a, match.b) + match.size
            if not is_last and reached > WINDOW // 2:
                # Lines at a window's end may have their like in the next one: where lines were inserted, say.
                old_end, new_end = i + match.a + match.size, j + match.b + match.size
                break
        i, j = old_end, new_end


def _near_each_other(blocks: list[Block]) -> Iterator[list[Block]]:
    """Return the blocks of each hunk."""
    group: list[Block] = []
    for block in blocks:
        if group and block.old_start - group[-1].old_end > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _range(start: int, end: int) -> str:
    # POSIX diff: lines count from 1, and an empty range names the line before it.
    return f"{start + 1 if end > start else start},{end - start}"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _label(name: str) -> str:
    # A file name may hold line feeds, and so forge lines of the diff that an operator reads.
    return name if name.isprintable() else json.dumps(name)
