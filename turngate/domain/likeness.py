"""How alike two calls of one tool are, by their arguments: words and structure, no meaning. Pure and bounded.

:func:`features` are hashes by which earlier calls are found again; none of them holds a value. :func:`compare` then reads both
calls. What is beyond the bounds is compared as text, by its beginning, and never counts as the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import islice, pairwise
from math import isfinite
from typing import Final, Literal

from turngate.domain.digest import framed
from turngate.domain.origins.forms import normalised
from turngate.domain.text.json_pointers import AMBIGUOUS, decode_arguments, escaped

MAX_READ_CHARS: Final = 50_000
"""Of arguments that are taken apart. It takes some milliseconds at worst, and sixteen calls are compared at once."""
MAX_LEAVES: Final = 64
MAX_TEXT_CHARS: Final = 2_000
"""Of one value whose words are compared."""
MAX_ALL_TEXT_CHARS: Final = 8_000
"""Of all values of a call whose words are compared."""
MOST_APART: Final = 10
"""Arguments of a call that is also found with any one of them changed."""
MOST_VALUES: Final = 10
MOST_FEATURES: Final = 31
"""Of one call. What the arguments leave of them is for words: a call with one argument has little else."""
NUMBER_DIGITS: Final = 28
"""Up to which ``1.50`` and ``1.5`` are one number: as many as arithmetic keeps by default."""
ALIKE_TEXT: Final = 0.9
"""How alike two texts of the same words are, where the texts are not the same."""
ALIKE_NUMBER: Final = 0.5
MAX_SHOWN_CHARS: Final = 200
BEFORE_DIFFERENCE: Final = 40
"""Characters of a long text that are shown before the place where it differs."""

_WORD: Final = re.compile(r"\w++")


@dataclass(frozen=True)
class Leaf:
    """One value in the arguments. ``text``: as it was written, its beginning. ``key``: equal for equal values."""

    kind: Literal["text", "number", "other"]
    text: str
    key: str

    @cached_property
    def words(self) -> list[str]:
        """The words of a text, in order; none of any other value."""
        return _WORD.findall(normalised(self.text)) if self.kind == "text" else []


@dataclass(frozen=True)
class Shape:
    """A call's arguments, taken apart. ``leaves``: JSON pointer → value. ``whole``: all of them are there as they were read."""

    leaves: dict[str, Leaf]
    whole: bool


@dataclass(frozen=True)
class Difference:
    """What two calls have at one place (JSON pointer): the earlier one, and this one; None: nothing."""

    at: str
    was: str | None
    now: str | None


@dataclass(frozen=True)
class Comparison:
    """``likeness``: from 0, nothing in common, to 1. ``same``: they mean the same. ``differences``: in the order of this call."""

    likeness: float
    same: bool
    differences: tuple[Difference, ...]


def shape_of(raw_input: str) -> Shape:
    """Take arguments apart. Text that is not plain JSON, or is too long, is one value."""
    if len(raw_input) > MAX_READ_CHARS:
        return Shape({"": _text(raw_input)}, whole=False)
    try:
        arguments = decode_arguments(raw_input)
    except ValueError:
        return Shape({"": _text(raw_input)}, whole=True)
    leaves: dict[str, Leaf] = {}
    room = MAX_ALL_TEXT_CHARS
    unread: list[tuple[str, object]] = [("", arguments)]
    while unread and len(leaves) < MAX_LEAVES:
        pointer, value = unread.pop()
        if isinstance(value, dict | list) and value:
            members: Iterable[tuple[object, object]] = value.items() if isinstance(value, dict) else enumerate(value)
            inner = [(f"{pointer}/{escaped(name)}", each) for name, each in islice(members, MAX_LEAVES + 1)]
            unread.extend(reversed(inner))
        else:
            leaves[pointer] = leaf = _leaf(value, room)
            room -= len(leaf.text)
    whole = not unread and len(leaves) < MAX_LEAVES and all(each.key != _DOUBLED for each in leaves.values())
    return Shape(leaves, whole=whole)


def features(tool_name: str, raw_input: str) -> list[int]:
    """Return hashes that calls of this tool have in common the more, the more alike they are; at most :data:`MOST_FEATURES`.

    The first is of the whole. Others are of it without one argument, of single values, and of words; of these the lowest ones,
    so that calls that have most of them in common keep the same ones.
    """
    leaves = shape_of(raw_input).leaves
    keys = sorted((pointer, leaf.key) for pointer, leaf in leaves.items())
    apart: list[int] = []
    if 1 < len(keys) <= MOST_APART:
        apart = [_hash(tool_name, "all", *_flat([*keys[:at], *keys[at + 1 :]])) for at in range(len(keys))]
    values = {_hash(tool_name, "one", pointer, leaf.key) for pointer, leaf in leaves.items() if leaf.kind != "other"}
    words = {_hash(tool_name, "word", pointer, each) for pointer, leaf in leaves.items() for each in _terms(leaf)}
    hashes = [_hash(tool_name, "all", *_flat(keys)), *apart, *sorted(values)[:MOST_VALUES], *sorted(words)]
    return list(dict.fromkeys(hashes))[:MOST_FEATURES]


def compare(earlier: Shape, this: Shape) -> Comparison:
    """Return how alike two calls of one tool are, and where they differ."""
    places = list(dict.fromkeys([*this.leaves, *earlier.leaves]))
    likeness = (
        sum(_alike(earlier.leaves.get(at), this.leaves.get(at)) for at in places) / len(places) if places else 1.0
    )
    differences = [
        _difference(at, earlier.leaves.get(at), this.leaves.get(at))
        for at in places
        if _key(earlier.leaves.get(at)) != _key(this.leaves.get(at))
    ]
    is_same = not differences and earlier.whole and this.whole
    return Comparison(likeness=likeness, same=is_same, differences=tuple(differences))


_DOUBLED: Final = "?"
"""The key of a value whose name is there twice: readers differ on what it is."""


def _leaf(value: object, room: int) -> Leaf:
    match value:
        case str():
            return _text(value, max(0, room))
        case bool() | None:
            return Leaf("other", str(value).lower(), f"o{value}")
        case int() | Decimal():
            return Leaf("number", str(value), f"n{_as_number(Decimal(value))}")
    if value is AMBIGUOUS:
        return Leaf("other", "two values", _DOUBLED)
    return Leaf("other", "{}" if isinstance(value, dict) else "[]", f"o{type(value).__name__}")


def _text(text: str, room: int = MAX_TEXT_CHARS) -> Leaf:
    """Return a text as a value. Of one that is longer than what is compared, the key holds a digest."""
    beginning = text[: min(room, MAX_TEXT_CHARS)]
    rest = "" if beginning == text else hashlib.sha256(framed(text)).hexdigest()
    return Leaf("text", beginning, f"t{rest}{beginning}")


def _as_number(number: Decimal) -> Decimal:
    return number.normalize() if len(number.as_tuple().digits) <= NUMBER_DIGITS else number


def _terms(leaf: Leaf) -> Iterator[str]:
    """Yield the words of a text and its pairs of words; none of a text of one word, which is a value."""
    if len(leaf.words) > 1:
        yield from leaf.words
        yield from map(" ".join, pairwise(leaf.words))


def _flat(keys: Sequence[tuple[str, str]]) -> Iterator[str]:
    for pointer, key in keys:
        yield pointer
        yield key


def _hash(*fields: str) -> int:
    """Return 63 bits of a hash, which is as much as a column holds."""
    return int.from_bytes(hashlib.blake2b(framed(*fields), digest_size=8).digest()) >> 1


def _key(leaf: Leaf | None) -> str | None:
    return None if leaf is None else leaf.key


def _alike(one: Leaf | None, other: Leaf | None) -> float:
    if one is None or other is None:
        return 0.0
    if one.key == other.key:
        return 1.0
    if one.kind == other.kind == "number":
        return ALIKE_NUMBER * _ratio(float(one.text), float(other.text))
    first, second = set(_terms(one)) | set(one.words), set(_terms(other)) | set(other.words)
    return ALIKE_TEXT * len(first & second) / len(first | second) if first and second else 0.0


def _ratio(one: float, other: float) -> float:
    """Return how near two numbers are: 1 for equal ones; 0 for those of different signs, and for those too large to tell."""
    smaller, larger = sorted((abs(one), abs(other)))
    is_known = isfinite(larger) and larger > 0 and (one < 0) == (other < 0)
    return smaller / larger if is_known else 0.0


def _difference(at: str, was: Leaf | None, now: Leaf | None) -> Difference:
    """Return what differs at one place, around where two texts begin to differ."""
    if was is None or now is None:
        return Difference(at, _part(was, 0), _part(now, 0))
    if was.text == now.text and was.kind == now.kind:
        return Difference(at, "differs after what is compared", "differs after what is compared")
    same = next((place for place, (one, other) in enumerate(zip(was.text, now.text, strict=False)) if one != other), 0)
    start = max(0, same - BEFORE_DIFFERENCE)
    return Difference(at, _part(was, start), _part(now, start))


def _part(leaf: Leaf | None, start: int) -> str | None:
    if leaf is None:
        return None
    part = leaf.text[start : start + MAX_SHOWN_CHARS]
    before = "…" if start > 0 else ""
    return f"{before}{part}…" if start + MAX_SHOWN_CHARS < len(leaf.text) else f"{before}{part}"
