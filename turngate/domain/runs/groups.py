"""Requests put in groups: those of a run, those of a step, or calls that are alike. Pure; the same on every screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Generic, Literal, Protocol, TypeVar

from turngate.domain.requests import RequestKind
from turngate.domain.text import json_text
from turngate.domain.text.json_pointers import escaped, tokens_of

Grouping = Literal["run", "step", "alike"]

MOST_LEAVES: Final = 32
"""Of one call that are compared one by one; a call with more is compared as a whole."""
MOST_CHARS: Final = 20_000
"""Of arguments that are taken apart; longer ones are compared as a whole."""
NAMED: Final = 3
"""Arguments that a group's words name."""
WHOLE: Final = ""
"""The leaf that is all of the arguments."""


class Groupable(Protocol):
    """A request, as the store or the API has it."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def run_id(self) -> str:
        """Its run."""

    @property
    def step(self) -> int | None:
        """The step of its call; None: not known."""

    @property
    def kind(self) -> RequestKind:
        """What it asks."""

    @property
    def tool_name(self) -> str:
        """The tool."""

    @property
    def input(self) -> str:
        """The exact text of its arguments, or the beginning of it."""

    @property
    def input_digest(self) -> str | None:
        """The digest of the whole text, if ``input`` is its beginning; None: it is all of it."""


Item = TypeVar("Item", bound=Groupable)


@dataclass(frozen=True, kw_only=True)
class Group(Generic[Item]):
    """Requests that belong together, in the order of the list; of alike ones, those that differ come first.

    ``varying``: of alike calls, the arguments that most of them have to themselves. ``differs``: request id → the other
    arguments in which it differs from most of its group. Arguments are JSON pointers; :data:`WHOLE`: all of them. ``is_rest``: of
    alike calls, those that are like no other; they come last, together.
    """

    items: Sequence[Item]
    varying: Sequence[str] = ()
    differs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_rest: bool = False

    @property
    def words(self) -> str:
        """How alike the calls are, such as ``17 alike but for order; 2 differ``."""
        if self.is_rest:
            calls = "1 call that is" if len(self.items) == 1 else f"{len(self.items)} calls that are"
            return f"{calls} like no other"
        if len(self.items) == 1:
            return "1 request"
        same = len(self.items) - len(self.differs)
        more = " and more" if len(self.varying) > NAMED else ""
        but = f" but for {', '.join(map(label, self.varying[:NAMED]))}{more}"
        parts = [f"{same} alike{but if self.varying else ''}"]
        if self.differs:
            parts.append(f"{len(self.differs)} {'differs' if len(self.differs) == 1 else 'differ'}")
        return "; ".join(parts)


def label(pointer: str) -> str:
    """Return an argument as people read it: ``/to/name`` is ``to.name``."""
    return ".".join(tokens_of(pointer)) or "all arguments"


def groups_of(items: Sequence[Item], by: Grouping) -> list[Group[Item]]:
    """Return these requests in groups. A group has the place of its first member, so the most urgent group comes first."""
    if by == "alike":
        return _alike(items)
    keys = [(each.run_id, each.step if by == "step" else None) for each in items]
    places = {key: place for place, key in reversed(list(enumerate(keys)))}
    together = sorted(zip(keys, items, strict=True), key=lambda pair: places[pair[0]])
    return [Group(items=[item for _key, item in each]) for _place, each in groupby(together, key=lambda pair: pair[0])]


def _alike(items: Sequence[Item]) -> list[Group[Item]]:
    """Return groups of calls of one tool whose arguments are the same but for a few, compared with the group's first."""
    families: list[list[tuple[Item, Mapping[str, str]]]] = []
    of_tool: dict[tuple[str, str], list[list[tuple[Item, Mapping[str, str]]]]] = {}
    for item in items:
        leaves = _leaves(item.input) if item.input_digest is None else {WHOLE: item.input_digest}
        own = of_tool.setdefault((item.kind, item.tool_name), [])
        family = next((each for each in own if _is_like(each[0][1], leaves)), None)
        if family is None:
            family = []
            own.append(family)
            families.append(family)
        family.append((item, leaves))
    groups = [_group(each) for each in families if len(each) > 1]
    rest = [item for each in families if len(each) == 1 for item, _leaves in each]
    return [*groups, Group(items=rest, is_rest=True)] if rest else groups


def _is_like(first: Mapping[str, str], other: Mapping[str, str]) -> bool:
    names = first.keys() | other.keys()
    unlike = sum(first.get(name) != other.get(name) for name in names)
    return unlike <= max(1, len(names) // 2)


def _group(family: Sequence[tuple[Item, Mapping[str, str]]]) -> Group[Item]:
    names = dict.fromkeys(name for _item, leaves in family for name in leaves)
    usual = {name: Counter(leaves.get(name) for _item, leaves in family).most_common(1)[0] for name in names}
    varying = [name for name, (_value, count) in usual.items() if count * 2 <= len(family) and len(family) > 1]
    differs = {
        item.id: odd
        for item, leaves in family
        if (odd := [name for name in names if name not in varying and leaves.get(name) != usual[name][0]])
    }
    items = sorted((item for item, _leaves in family), key=lambda item: item.id not in differs)
    return Group(items=items, varying=varying, differs=differs)


def _leaves(raw: str) -> Mapping[str, str]:
    """Return JSON pointer → value as JSON, of all values in the arguments that hold no others."""
    parsed = json_text.parse(raw) if len(raw) <= MOST_CHARS else None
    if parsed is None or parsed.doubled:
        return {WHOLE: raw}
    leaves: dict[str, str] = {}
    todo = [(WHOLE, parsed.tree)]
    while todo:
        pointer, tree = todo.pop()
        members: Mapping[str, json_text.JsonTree] = {}
        if isinstance(tree, dict):
            members = tree
        elif isinstance(tree, list):
            members = {str(place): value for place, value in enumerate(tree)}
            leaves[f"{pointer}/"] = "a list"  # ["x"] is not {"0": "x"}
        if not members:
            leaves[pointer] = json_text.dump(tree)
        if len(leaves) + len(todo) + len(members) > MOST_LEAVES:
            return {WHOLE: raw}
        todo.extend((f"{pointer}/{escaped(name)}", value) for name, value in reversed(list(members.items())))
    return leaves
