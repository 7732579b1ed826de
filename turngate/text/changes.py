"""What an edit changes in a call's arguments: each place with the value that was there and the value that is there now.

Exact: every difference in value, in how a number is written and in which names there are is a change, in a text of several
lines every block of lines that differs; the order of names and spacing make none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from turngate.domain.text.json_pointers import escaped
from turngate.domain.text.json_text import JsonTree, Parsed, dump, parse
from turngate.text.line_diff import changed_blocks, split_lines
from turngate.text.plain_text import plain_line

MAX_CHANGES: Final = 100
AROUND_CHARS: Final = 60
"""Of what stayed the same, on both sides of a difference inside a long text."""
MAX_SHOWN_CHARS: Final = 2_000


@dataclass(frozen=True)
class Side:
    """One of two values as people read it. ``part``: what differs; ``cut``: how many characters of it are left out.

    ``before`` and ``after``: what both values have on its sides.
    """

    before: str
    part: str
    after: str
    cut: int = 0

    @property
    def text(self) -> str:
        """All of it in one text."""
        rest = f"… ({self.cut:,} more characters: see the whole arguments)" if self.cut else ""
        return f"{self.before}{self.part}{rest}{self.after}"


@dataclass(frozen=True)
class Change:
    """A place that differs (JSON pointer; empty: everything). None: there was, or is, nothing at it.

    ``line``: in a text of several lines, the number of the first one that differs; None: the value differs as a whole.
    """

    at: str
    was: Side | None
    now: Side | None
    line: int | None = None


@dataclass(frozen=True)
class Changes:
    """What differs, in the order of the first text and then of the second. ``more``: how many changes are left out."""

    items: tuple[Change, ...]
    more: int = 0

    @property
    def approve_words(self) -> str:
        """What approves a call with these changes."""
        count = len(self.items) + self.more
        return f"approve with {count:,} change{'' if count == 1 else 's'}"

    def __bool__(self) -> bool:
        return bool(self.items)


def changes(was: str, now: str) -> Changes:
    """Compare two JSON texts. Text that is not plain JSON, or gives a name twice, is compared as text."""
    if was == now:
        return Changes(())
    trees = tuple(None if each is None or each.doubled else each for each in map(parse, (was, now)))
    one, other = trees
    every = list(_changes("", was, now) if one is None or other is None else _between(one, other))
    return Changes(tuple(every[:MAX_CHANGES]), more=len(every[MAX_CHANGES:]))


def change_lines(changed: Changes) -> Iterator[str]:
    """Yield what differs for a terminal, without a line feed or a hidden character: was, then will be."""
    for each in changed.items:
        place = f"{each.at or 'everything'}{f' line {each.line:,}' if each.line else ''}"
        was, now = (("not there" if side is None else side.text) for side in (each.was, each.now))
        yield plain_line(f"{place}: was {was}")
        yield plain_line(f"{place}: will be {now}")
    if changed.more:
        yield f"{changed.more:,} more changes: edit it to see all of them"


_NOTHING: Final = object()


def _between(one: Parsed, other: Parsed) -> Iterator[Change]:
    unread: list[tuple[str, JsonTree, JsonTree]] = [("", one.tree, other.tree)]
    while unread:
        at, was, now = unread.pop()
        if isinstance(was, dict) and isinstance(now, dict):
            names = [*was, *(name for name in now if name not in was)]
            members = [(f"{at}/{escaped(name)}", was.get(name, _NOTHING), now.get(name, _NOTHING)) for name in names]
        elif isinstance(was, list) and isinstance(now, list):
            each = range(max(len(was), len(now)))
            members = [(f"{at}/{index}", _item(was, index), _item(now, index)) for index in each]
        else:
            members = []
            if type(was) is not type(now) or was != now:
                quoted = isinstance(was, str) != isinstance(now, str) or "" in (was, now)
                yield from _changes(at, _text(was, quoted=quoted), _text(now, quoted=quoted))
        unread.extend(reversed(members))


def _item(items: list[JsonTree], index: int) -> object:
    return items[index] if index < len(items) else _NOTHING


def _text(value: object, *, quoted: bool) -> str | None:
    """Return a value as people read it. ``quoted``: a text is in quotation marks; next to what is no text, say."""
    if value is _NOTHING:
        return None
    return value if isinstance(value, str) and not quoted else dump(value)


def _changes(at: str, was: str | None, now: str | None) -> Iterator[Change]:
    if was is None or now is None:
        yield Change(at, _whole(was), _whole(now))
        return
    old, new = split_lines(was), split_lines(now)
    if min(len(old), len(new)) == 1:
        yield Change(at, *_sides(was, now))
        return
    for block in changed_blocks(old, new):
        before, after = "".join(old[block.old_start : block.old_end]), "".join(new[block.new_start : block.new_end])
        both = _sides(before, after) if before and after else (_whole(before or None), _whole(after or None))
        yield Change(at, *both, line=block.old_start + 1)


def _whole(text: str | None) -> Side | None:
    return None if text is None else _side(text, 0, 0)


def _sides(was: str, now: str) -> tuple[Side, Side]:
    start = _shared(was, now)
    end = _shared(was[start:][::-1], now[start:][::-1])
    return _side(was, start, end), _side(now, start, end)


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _side(text: str, start: int, end: int) -> Side:
    """Return a value of which ``start`` characters and the last ``end`` are the other value's too."""
    before, part, after = text[:start], text[start : len(text) - end], text[len(text) - end :]
    return Side(
        before if len(before) <= AROUND_CHARS else f"…{before[-AROUND_CHARS:]}",
        part[:MAX_SHOWN_CHARS],
        after if len(after) <= AROUND_CHARS else f"{after[:AROUND_CHARS]}…",
        cut=len(part[MAX_SHOWN_CHARS:]),
    )
