"""How many checks a JSON Schema makes of a value, at worst: known before any check (DESIGN §4, I14).

Owns :class:`SchemaCosts`. Twenty definitions that each refer twice to the next one are a million checks, and a schema that
refers to itself twice doubles its checks with each level of the value. So they are counted for one place of a value, by depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from turngate.schemas.document import (
    MEMBERS,
    SAME_PLACE,
    Document,
    Place,
    Schema,
    UnusableSchemaError,
    pattern_checks,
    references,
    subschemas,
)

MAX_FAN_OUT: Final = 100_000
"""Checks of one place. A schema that makes more at the upper levels of a value is refused."""
_UPPER_LEVELS: Final = 4
MAX_SUBSCHEMAS: Final = 6_000
"""The library follows references on the process's stack."""
MAX_HEIGHT: Final = 100
"""Schemas for the same place inside one another."""
_MAX_PATTERN_CHECKS: Final = 80_000
"""Of all patterns of a schema: 2,500 small ones or 78 large ones take a second to compile."""


@dataclass(eq=False)
class _Node:
    """A schema: the checks of its own keywords, the schemas for the same place, and those for a member or an item.

    For a given member, one schema of each group in ``members`` is used.
    """

    checks: int = 0
    pattern_checks: int = 0
    same_place: list[_Node] = field(default_factory=list)
    members: list[list[_Node]] = field(default_factory=list)
    height: int = 1


class _Levels:
    """A number of the nodes, added up for one place of a value, by the depth of that place: 0 is the value itself."""

    def __init__(self, root: _Node, inner_first: list[_Node], number: Callable[[_Node], int]) -> None:
        self._root, self._inner_first, self._number = root, inner_first, number
        self._sums: list[int] = []
        self._last: dict[_Node, int] = {}
        self._is_steady = False

    def at(self, depth: int) -> int:
        """Return the sum at this depth."""
        while len(self._sums) <= depth and not self._is_steady:
            above, level = self._last, dict[_Node, int]()
            for node in self._inner_first:
                if self._sums:
                    own = sum(max(above[each] for each in group) for group in node.members)
                else:
                    own = self._number(node)
                level[node] = own + sum(level[each] for each in node.same_place)
            self._sums.append(level[self._root])
            self._last, self._is_steady = level, level == above
        return self._sums[min(depth, len(self._sums) - 1)]


class SchemaCosts:
    """The checks that a schema makes at one place of a value, at worst, by the depth of that place.

    Attributes:
        checks: of keywords.
        pattern_checks: for each eight characters of a text or a member's name there.
        height: how many schemas for the same place are inside one another, at most.

    Raises UnusableSchemaError if checks could take too long, or a reference or a pattern can't be used.
    """

    def __init__(self, schema: Schema) -> None:
        self._document = Document(schema)
        self._nodes: dict[int, _Node] = {}
        self._unread: list[tuple[Place, Schema]] = []
        for place, each in self._document.schemas:
            self._node(each, place)
        while self._unread:
            self._read(*self._unread.pop())
        if sum(node.pattern_checks for node in self._nodes.values()) > _MAX_PATTERN_CHECKS:
            raise UnusableSchemaError("has patterns that are too large together. Use fewer or simpler ones")
        inner_first = list(self._inner_first())
        self.height = max(node.height for node in inner_first)
        if self.height > MAX_HEIGHT:
            raise UnusableSchemaError("is nested too deep")
        self.checks = _Levels(self._node(schema), inner_first, lambda node: node.checks)
        self.pattern_checks = _Levels(self._node(schema), inner_first, lambda node: node.pattern_checks)
        if max(map(self.checks.at, range(_UPPER_LEVELS))) > MAX_FAN_OUT:
            raise UnusableSchemaError(
                f"leads to more than {MAX_FAN_OUT:,} checks of one value. Use fewer references and alternatives"
            )

    def _node(self, schema: Schema, place: Place = ()) -> _Node:
        node = self._nodes.get(id(schema))
        if node is None:
            if len(self._nodes) == MAX_SUBSCHEMAS:
                raise UnusableSchemaError(f"has more than {MAX_SUBSCHEMAS:,} schemas inside it")
            node = self._nodes[id(schema)] = _Node()
            self._unread.append((place, schema))
        return node

    def _read(self, place: Place, schema: Schema) -> None:
        node = self._node(schema)
        node.checks += sum(len(value) if isinstance(value, dict | list) else 1 for value in schema.values())
        if isinstance(pattern := schema.get("pattern"), str):
            node.pattern_checks += _pattern_checks(pattern, (*place, "pattern"))
        groups: dict[Any, list[_Node]] = {}
        for within, inner in subschemas(schema):
            if within[0] in SAME_PLACE:
                node.same_place.append(self._node(inner))
            elif within[0] in MEMBERS:
                group = within if within[0] == "patternProperties" else within[:1]
                groups.setdefault(group, []).append(self._node(inner))
        node.members += groups.values()
        if isinstance(by_name := schema.get("patternProperties"), dict):
            checks = sum(_pattern_checks(each, (*place, "patternProperties")) for each in by_name)
            names = self._nodes[id(by_name)] = _Node(pattern_checks=checks)
            node.members.append([names])
        for reference in references(schema):
            target = self._document.target(reference)
            if isinstance(target, dict):
                node.same_place.append(self._node(target, (reference,)))
        if any(keyword.startswith("unevaluated") for keyword in schema):
            node.same_place *= 2  # once more, to find out what they evaluated

    def _inner_first(self) -> Iterator[_Node]:
        """Return the nodes, each after those for the same place inside it. Raises UnusableSchemaError if that never ends."""
        unfinished: dict[_Node, Iterator[_Node]] = {}
        done: set[_Node] = set()
        for start in self._nodes.values():
            stack = [start]
            while stack:
                node = stack[-1]
                inner = next(unfinished.setdefault(node, iter(node.same_place)), None)
                if node in done or inner is None:
                    stack.pop()
                    if node not in done:
                        done.add(node)
                        node.height += max((each.height for each in node.same_place), default=0)
                        yield node
                elif inner not in done:
                    if inner in unfinished:
                        raise UnusableSchemaError("refers to itself without end")
                    stack.append(inner)


def _pattern_checks(pattern: str, place: Place) -> int:
    try:
        return pattern_checks(pattern)
    except UnusableSchemaError as error:
        raise UnusableSchemaError(f"can't be used: at {'.'.join(map(str, place))}: {error}") from None
