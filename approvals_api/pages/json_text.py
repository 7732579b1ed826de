"""JSON without loss: numbers keep the digits they were written with, objects keep their order, doubled keys are noticed.

Arguments are decoded once, at execution; here they are only taken apart to be shown and put together after an edit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

JsonTree = Any
"""None, bool, str, :class:`NumberToken`, list or dict of the same."""


@dataclass(frozen=True)
class NumberToken:
    """A JSON number as it was written: ``1.10`` stays ``1.10``, and an integer of 40 digits keeps them all."""

    text: str


@dataclass(frozen=True)
class Parsed:
    """A JSON text taken apart. ``doubled``: keys that one object gives twice (readers differ on which one counts)."""

    tree: JsonTree
    doubled: tuple[str, ...] = ()


def parse(text: str) -> Parsed | None:
    """Return the parts of a JSON text, or None when it is not JSON (``NaN`` and ``Infinity`` are not; RFC 8259 §6)."""
    doubled: list[str] = []

    def collect(pairs: Sequence[tuple[str, JsonTree]]) -> dict[str, JsonTree]:
        tree = dict(pairs)
        if len(tree) < len(pairs):
            keys = [key for key, _value in pairs]
            doubled.extend(dict.fromkeys(key for key in keys if keys.count(key) > 1))
        return tree

    try:
        tree = json.loads(
            text,
            parse_int=NumberToken,
            parse_float=NumberToken,
            parse_constant=_refuse_constant,
            object_pairs_hook=collect,
        )
    except (ValueError, RecursionError):
        return None
    return Parsed(tree, tuple(doubled))


def dump(tree: JsonTree, *, indent: int | None = None, level: int = 0) -> str:
    """Return JSON text of a tree: compact, or one member per line with ``indent`` spaces."""
    match tree:
        case NumberToken(text):
            return text
        case dict() if tree:
            members = [f"{quote(key)}: {dump(value, indent=indent, level=level + 1)}" for key, value in tree.items()]
            return _joined("{", members, "}", indent, level)
        case list() if tree:
            return _joined("[", [dump(item, indent=indent, level=level + 1) for item in tree], "]", indent, level)
        case str():
            return quote(tree)
        case _:
            return json.dumps(tree)


def quote(text: str) -> str:
    """Return a JSON string; a lone surrogate, which UTF-8 cannot carry, is escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    try:
        quoted.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return quoted


def _joined(opening: str, members: list[str], closing: str, indent: int | None, level: int) -> str:
    if indent is None:
        return f"{opening}{', '.join(members)}{closing}"
    inner = "\n" + " " * indent * (level + 1)
    return f"{opening}{inner}{f',{inner}'.join(members)}\n{' ' * indent * level}{closing}"


def _refuse_constant(name: str) -> JsonTree:
    raise ValueError(name)
