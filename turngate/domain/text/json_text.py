"""JSON without loss: numbers keep the digits they were written with, objects keep their order, doubled keys are noticed.

Arguments are decoded once, at execution; here they are only taken apart to be shown and put together after an edit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

JsonTree = Any
"""None, bool, str, :class:`NumberToken`, list or dict of the same."""


MAX_DEPTH: Final = 200
"""Levels of arrays and objects that are taken apart. Reading goes deeper than writing in Python, and what was read here
must be writable again; nothing that a person could decide on is nested half as deep."""


MAX_CHARS: Final = 2 * 1024 * 1024
"""Of JSON that is taken apart to be shown or edited: two million characters take a second at worst."""
MAX_ARGUMENT_CHARS: Final = 16 * 1024 * 1024
"""Of a call's arguments, which are decoded ten times as fast. A file of two million bytes fits, however it is escaped."""


@dataclass(frozen=True)
class NumberToken:
    """A JSON number as it was written: ``1.10`` stays ``1.10``, and an integer of 40 digits keeps them all."""

    text: str


@dataclass(frozen=True)
class Parsed:
    """A JSON text taken apart. ``doubled``: keys that one object gives twice (readers differ on which one counts)."""

    tree: JsonTree
    doubled: tuple[str, ...] = ()


def without_repeats(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members, as the ``object_pairs_hook`` of ``json``: readers differ on which of two alike counts.

    Raises ValueError when a name is there twice.
    """
    by_name = dict(members)
    if len(by_name) != len(members):
        raise ValueError("a name is there twice in one object")
    return by_name


NO_ARGUMENTS: Final = frozenset({"", "null"})
"""How providers and models write the arguments of a call that has none, besides ``{}``."""


def arguments_text(raw_input: str) -> str:
    """Return the JSON text as which raw arguments are read, everywhere. What is kept and digested is the raw text."""
    text = raw_input.strip()
    return "{}" if text in NO_ARGUMENTS else text


def exact_number(text: str) -> Decimal | float:
    """Return a JSON fraction with all its digits; as a float where its exponent is beyond what a Decimal holds."""
    try:
        return Decimal(text)
    except ArithmeticError:
        return float(text)


def parse(text: str) -> Parsed | None:
    """Return the parts of a JSON text; None when it is not JSON, nests too deeply, or has more than ``MAX_CHARS``.

    ``NaN`` and ``Infinity`` are not JSON (RFC 8259 §6).
    """
    doubled: tuple[str, ...] = ()
    if len(text) > MAX_CHARS:
        return None
    try:
        try:
            tree = _DECODER.decode(text)
        except _DoubledKeyError:
            tree, doubled = _parse_doubled(text)
    except (ValueError, RecursionError):
        return None
    return None if _is_too_deep(tree) else Parsed(tree, doubled)


def tree_of(value: object) -> JsonTree:
    """Return a JSON value that was read the ordinary way (a schema's default, say) as a tree."""
    parsed = parse(json.dumps(value))
    return None if parsed is None else parsed.tree


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


def without_half_pairs(text: str) -> str:
    """Return the text with each lone surrogate, which has no UTF-8, as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class _DoubledKeyError(Exception):
    """An object gives a key twice."""


def _single(pairs: Sequence[tuple[str, JsonTree]]) -> dict[str, JsonTree]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise _DoubledKeyError
    return tree


def _refuse_constant(name: str) -> JsonTree:
    raise ValueError(name)


def _decoder(collect: Callable[[Sequence[tuple[str, JsonTree]]], dict[str, JsonTree]]) -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_int=NumberToken, parse_float=NumberToken, parse_constant=_refuse_constant, object_pairs_hook=collect
    )


_DECODER: Final = _decoder(_single)
"""Made once: a list takes fifty texts apart, and each decoder is a cycle that the garbage collector has to find."""


def _parse_doubled(text: str) -> tuple[JsonTree, tuple[str, ...]]:
    doubled: list[str] = []

    def collect(pairs: Sequence[tuple[str, JsonTree]]) -> dict[str, JsonTree]:
        counts = Counter(key for key, _value in pairs)
        doubled.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    return _decoder(collect).decode(text), tuple(doubled)


def _is_too_deep(tree: JsonTree) -> bool:
    level, depth = [tree], 0
    while level:
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        depth += 1
        if depth > MAX_DEPTH:
            return any(isinstance(each, dict | list) for each in level)
    return False


def _joined(opening: str, members: list[str], closing: str, indent: int | None, level: int) -> str:
    if indent is None:
        return f"{opening}{', '.join(members)}{closing}"
    inner = "\n" + " " * indent * (level + 1)
    return f"{opening}{inner}{f',{inner}'.join(members)}\n{' ' * indent * level}{closing}"
