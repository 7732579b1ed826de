"""Patterns of a case: names of tools with ``*``, and JSON that must be contained. Pure.

A mapping fits a mapping that has at least its keys; a list fits one of the same length, item by item. A mapping with one key
that begins with ``$`` is an operator: ``{$matches: REGEX}``, ``{$at_most: 20}``, ``{$at_least: "1.50"}``.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Final

from pydantic import JsonValue

OPERATORS: Final = ("$matches", "$at_most", "$at_least")


def checked_pattern(pattern: JsonValue) -> JsonValue:
    """Return the pattern. Raises ValueError for an operator that is unknown, not alone, or has a wrong value."""
    match pattern:
        case dict():
            operators = [key for key in pattern if key.startswith("$")]
            if operators:
                _check_operator(pattern, operators[0])
            else:
                for each in pattern.values():
                    checked_pattern(each)
        case list():
            for each in pattern:
                checked_pattern(each)
        case _:
            pass
    return pattern


def _check_operator(pattern: dict[str, JsonValue], name: str) -> None:
    if name not in OPERATORS:
        raise ValueError(f"there is no operator {name!r}; the operators are: {', '.join(OPERATORS)}")
    if len(pattern) > 1:
        raise ValueError(f"{name!r} must be the only key of its mapping")
    bound = pattern[name]
    if name != "$matches" and _number(bound) is None:
        raise ValueError(f"{name!r} takes a number, not {bound!r}")
    if name == "$matches":
        if not isinstance(bound, str):
            raise ValueError(f"{name!r} takes a regular expression, not {bound!r}")
        checked_regex(bound)


def checked_regex(text: str) -> str:
    """Return a regular expression. Raises ValueError, which says what is wrong with it."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


def fits(pattern: JsonValue, value: JsonValue) -> bool:
    """Whether a value fits a checked pattern."""
    match pattern, value:
        case {"$matches": str() as regex}, _:
            return isinstance(value, str) and re.search(regex, value) is not None
        case {"$at_most": bound}, _:
            return _compares(value, bound, below=True)
        case {"$at_least": bound}, _:
            return _compares(value, bound, below=False)
        case dict(), dict():
            return all(key in value and fits(each, value[key]) for key, each in pattern.items())
        case list(), list():
            return len(pattern) == len(value) and all(map(fits, pattern, value))
        case _:
            return same(pattern, value)


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two JSON values are equal; 1 and 1.0 are, 1 and true are not."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(same, one, other))
        case _:
            return isinstance(one, bool) == isinstance(other, bool) and one == other


def names_tool(pattern: str, tool: str) -> bool:
    """Whether a tool's name fits a pattern with ``*`` and ``?`` as wildcards; case counts."""
    return fnmatchcase(tool, pattern)


def _compares(value: JsonValue, bound: JsonValue, *, below: bool) -> bool:
    number, limit = _number(value), _number(bound)
    return number is not None and limit is not None and (number <= limit if below else number >= limit)


def _number(value: JsonValue) -> Decimal | None:
    """Return a number, also from a text: money is often sent as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
