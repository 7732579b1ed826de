"""Middleware: a function around the handlers of a toolkit's local tools."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr

from turngate.domain.tools.context import ToolContext

Proceed = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One start of a handler. ``params``, ``ctx``: what the handler gets, too, in a copy of its own.

    Middleware that changes ``params``, at any depth, and then proceeds ends the call: it does not run (I6).
    """

    tool_name: str
    params: Any
    ctx: ToolContext


Middleware = Callable[[Invocation, Proceed], Awaitable[Any]]
"""``async def audit(invocation, proceed): …; return await proceed()``. It may answer without proceeding, raise one of
the tool's declared failures, or change what comes back."""

MAX_PLACE_CHARS: Final = 100


@dataclass(frozen=True)
class Snapshot:
    """What a decoded value holds at one moment. ``members``: by name or position; None: ``leaf`` is all of it.

    What is in a value of a type that is no container, model of pydantic's or dataclass isn't known.
    """

    type: type
    members: Mapping[str, Snapshot] | None = None
    leaf: Any = None

    @classmethod
    def of(cls, value: Any, above: frozenset[int] = frozenset()) -> Snapshot:
        """Take a snapshot. ``above``: ids of the values that hold this one, which may be a circle."""
        members = None if id(value) in above else _members(value)
        if members is None:
            return cls(type(value), leaf=_leaf(value))
        within = above | {id(value)}
        return cls(type(value), {str(name): cls.of(each, within) for name, each in members})

    def change(self, now: Snapshot) -> str | None:
        """Return the place of the first change, such as ``lines.0.price``; empty: all of it changed. None: nothing did."""
        if self.type is not now.type or self.members is None or now.members is None:
            return None if self.type is now.type and _is_same(self.leaf, now.leaf) else ""
        if list(self.members) != list(now.members):
            return min(self.members.keys() ^ now.members.keys(), default="")[:MAX_PLACE_CHARS]
        for name, before in self.members.items():
            place = before.change(now.members[name])
            if place is not None:
                return f"{name}.{place}".removesuffix(".")[:MAX_PLACE_CHARS]
        return None


def _members(value: Any) -> Iterable[tuple[object, Any]] | None:
    """Return what a value consists of; None: it is a leaf."""
    match value:
        case BaseModel():
            extra = value.__pydantic_extra__ or {}
            return [(name, getattr(value, name, None)) for name in (*type(value).model_fields, *extra)]
        case dict():
            return value.items()
        case list() | tuple() | deque():
            return enumerate(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [(each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value)]
        case _:
            return None


def _leaf(value: Any) -> Any:
    """Return a leaf as it can't change any more."""
    match value:
        case SecretStr() | SecretBytes():
            return value.get_secret_value()
        case set():
            return frozenset(value)
        case bytearray():
            return bytes(value)
        case _:
            return value


def _is_same(before: Any, now: Any) -> bool:
    try:
        return before is now or bool(before == now)
    except Exception:  # noqa: BLE001 - a type's own comparison; what can't be compared isn't the same
        return False
