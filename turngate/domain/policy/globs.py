"""Globs whose parts are separated by ``/``: ``*`` stays inside a part, ``**`` as a whole part is any number of parts.

``?`` is one character of a part, ``[…]`` one of a set. Case is significant; a leading dot is nothing special. Pure.

The text comes from an agent, so no regular expression reads it: a pattern with several wildcards would try every way to
divide a long text among them. Here only the last wildcard is ever tried again, which finds the same matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

_WILD = frozenset("*?[")
_E = TypeVar("_E")


def has_wildcard(pattern: str) -> bool:
    """Tell whether the pattern is more than a plain text."""
    return not _WILD.isdisjoint(pattern)


@dataclass(frozen=True, slots=True)
class _Set:
    """One character: within (or, ``negated``, outside) the ranges. Both ends of a range are part of it."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def has(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.negated


_ANY: Final = _Set(ranges=(), negated=True)
_STAR: Final = "*"
_Element = _Set | str
"""A set, or ``_STAR``."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a glob. ``plain``: its text when it has no wildcard; else ``elements``."""

    plain: str | None
    elements: tuple[_Element, ...] = ()

    def fits(self, text: str) -> bool:
        if self.plain is not None:
            return self.plain == text
        return _fits(self.elements, text, lambda element, char: isinstance(element, _Set) and element.has(char))


@dataclass(frozen=True, slots=True)
class Glob:
    """A checked glob."""

    parts: tuple[_Part | str, ...]

    def fits(self, text: str) -> bool:
        """Tell whether the whole text fits. ``a/**`` fits ``a`` itself too."""
        return _fits(self.parts, text.split("/"), lambda part, written: isinstance(part, _Part) and part.fits(written))


def _fits(wanted: Sequence[_E | str], items: Sequence[str], fits: Callable[[_E | str, str], bool]) -> bool:
    """Tell whether the items fit, where ``_STAR`` is any number of them."""
    at = index = 0
    star, retry = -1, 0  # the last star, and the first item after those it stands for now
    while at < len(items):
        if index < len(wanted) and wanted[index] == _STAR:
            star, retry = index, at
            index += 1
        elif index < len(wanted) and fits(wanted[index], items[at]):
            at, index = at + 1, index + 1
        elif star >= 0:
            retry += 1
            at, index = retry, star + 1
        else:
            return False
    return all(each == _STAR for each in wanted[index:])


@lru_cache(maxsize=1024)
def parse_glob(pattern: str) -> Glob:
    """Read a glob.

    Raises ValueError, saying the fix, for ``**`` beside other characters and for a set that is not closed.
    """
    return Glob(parts=tuple(_STAR if part == "**" else _part(part) for part in pattern.split("/")))


def _part(part: str) -> _Part:
    if "**" in part:
        raise ValueError(f"'**' must be alone between slashes, not as in {part!r}: write 'a/**/b', or '*' for one part")
    if not has_wildcard(part):
        return _Part(plain=part)
    elements: list[_Element] = []
    index = 0
    while index < len(part):
        char = part[index]
        index += 1
        if char == "*":
            elements.append(_STAR)
        elif char == "?":
            elements.append(_ANY)
        elif char == "[":
            end = part.find("]", index + 2 if part[index : index + 1] == "!" else index + 1)
            if end < 0:
                raise ValueError(f"the '[' in {part!r} is not closed: write '[[]' for the character itself")
            elements.append(_set(part[index:end]))
            index = end + 1
        else:
            elements.append(_Set(ranges=((char, char),)))
    return _Part(plain=None, elements=tuple(elements))


def _set(inside: str) -> _Set:
    members = inside.removeprefix("!")
    ranges: list[tuple[str, str]] = []
    index = 0
    while index < len(members):
        is_range = members[index + 1 : index + 2] == "-" and index + 2 < len(members)
        low, high = members[index], members[index + 2] if is_range else members[index]
        if low > high:
            raise ValueError(f"[{inside}] is not a set of characters: write it like [a-z] or [abc]")
        ranges.append((low, high))
        index += 3 if is_range else 1
    return _Set(ranges=tuple(ranges), negated=inside.startswith("!"))
