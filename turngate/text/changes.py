"""What an edit changes in a call's arguments: each place with the value that was there and the value that is there now.

Exact: every difference in value, in how a number is written and in which names there are is a change, in a text of several
lines every block of lines that differs; the order of names and spacing make none. Whole: no change is left out or cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from turngate.domain.text.folds import FoldedText, fold_text
from turngate.domain.text.json_pointers import escaped
from turngate.domain.text.json_text import JsonTree, Parsed, dump, parse
from turngate.domain.text.sentences import counted
from turngate.text.line_diff import changed_blocks, split_lines
from turngate.text.plain_text import plain_line

MAX_CHANGES: Final = 1_000
MAX_PLACE_CHARS: Final = 200_000
"""Of the names of all places. With more of either, the two texts are shown as one change, which has all of them."""
FIRST_CHANGES: Final = 20
"""What is shown of many changes before a person asks for the others."""
AROUND_CHARS: Final = 60
"""Of what stayed the same, on both sides of a difference inside a long text."""


@dataclass(frozen=True)
class Side:
    """One of two values as people read it. ``part``: all that differs.

    ``before`` and ``after``: what both values have on its sides.
    """

    before: str
    part: str
    after: str

    @property
    def text(self) -> str:
        """All of it in one text."""
        return f"{self.before}{self.part}{self.after}"

    @property
    def folded(self) -> FoldedText:
        """What differs, for a page: what is longer than a screen is folded."""
        return fold_text(self.part)


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
    """What differs, in the order of the first text and then of the second. ``count``: how many places."""

    items: tuple[Change, ...]
    count: int

    @property
    def approve_words(self) -> str:
        """What approves a call with these changes."""
        return f"approve with {counted(self.count, 'change')}"

    @property
    def first(self) -> tuple[Change, ...]:
        """What a page shows at once."""
        return self.items[:FIRST_CHANGES]

    @property
    def others(self) -> tuple[Change, ...]:
        """What a page folds."""
        return self.items[FIRST_CHANGES:]

    def __bool__(self) -> bool:
        return bool(self.items)


def changes(was: str, now: str) -> Changes:
    """Compare two JSON texts. Text that is not plain JSON, or gives a name twice, is compared as text."""
    if was == now:
        return Changes((), 0)
    trees = tuple(None if each is None or each.doubled else each for each in map(parse, (was, now)))
    one, other = trees
    items: list[Change] = []
    count, place_chars = 0, 0
    for each in _changes("", was, now) if one is None or other is None else _between(one, other):
        count += 1
        place_chars += len(each.at)
        if count <= MAX_CHANGES and place_chars <= MAX_PLACE_CHARS:
            items.append(each)
    return Changes(tuple(items) if len(items) == count else (Change("", *_sides(was, now)),), count)


def change_lines(changed: Changes) -> Iterator[str]:
    """Yield what differs for a terminal, without a line feed or a hidden character: was, then will be."""
    for each in changed.items:
        place = f"{each.at or 'everything'}{f' line {each.line:,}' if each.line else ''}"
        was, now = (("not there" if side is None else side.text) for side in (each.was, each.now))
        yield plain_line(f"{place}: was {was}")
        yield plain_line(f"{place}: will be {now}")


_Pair = tuple[str, JsonTree, JsonTree]
"""A place, and what two trees have at it."""
_NOTHING: Final = object()


def _between(one: Parsed, other: Parsed) -> Iterator[Change]:
    unread: list[Iterator[_Pair]] = [iter([("", one.tree, other.tree)])]
    while unread:
        pair = next(unread[-1], None)
        if pair is None:
            unread.pop()
            continue
        at, was, now = pair
        members = _members(at, was, now)
        if members is not None:
            unread.append(members)
        elif type(was) is not type(now) or was != now:
            quoted = isinstance(was, str) != isinstance(now, str) or "" in (was, now)
            yield from _changes(at, _text(was, quoted=quoted), _text(now, quoted=quoted))


def _members(at: str, was: JsonTree, now: JsonTree) -> Iterator[_Pair] | None:
    """Return the members of two objects or lists, one at a time: a long name would be copied for each."""
    if isinstance(was, dict) and isinstance(now, dict):
        names = [*was, *(name for name in now if name not in was)]
        return ((f"{at}/{escaped(name)}", was.get(name, _NOTHING), now.get(name, _NOTHING)) for name in names)
    if isinstance(was, list) and isinstance(now, list):
        each = range(max(len(was), len(now)))
        return ((f"{at}/{index}", _item(was, index), _item(now, index)) for index in each)
    return None


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
        part,
        after if len(after) <= AROUND_CHARS else f"{after[:AROUND_CHARS]}…",
    )
