"""Does one rule speak of every call that another one speaks of? Sound, not complete: a yes is certain, a no is not.

Pure. Only what the linter has to know: a rule that is covered by one that comes before it can never decide anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from turngate.domain.policy.arguments import ArgumentMatcher
from turngate.domain.policy.policy import Rule

_WILD = frozenset("*?[")
_BOUNDS = frozenset({"lt", "le", "gt", "ge"})


def covers(wide: Rule, narrow: Rule) -> bool:
    """Tell whether ``wide`` certainly matches each call that ``narrow`` matches."""
    return (
        patterns_cover(wide.tools, narrow.tools)
        and patterns_cover(wide.agents, narrow.agents)
        and _workspaces_cover(wide, narrow)
        and all(any(implies(had, wanted) for had in narrow.args) for wanted in wide.args)
        and _commands_cover(wide, narrow)
        and _paths_cover(wide, narrow)
    )


def patterns_cover(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Tell whether every name that fits one of the narrow patterns fits one of the wide ones."""
    return all(any(_pattern_covers(one, other) for one in wide) for other in narrow)


def _pattern_covers(wide: str, narrow: str) -> bool:
    if wide in {"*", narrow}:
        return True
    if _WILD.isdisjoint(narrow):
        return fnmatchcase(narrow, wide)
    beginning = wide.removesuffix("*")
    if beginning == wide or not _WILD.isdisjoint(beginning):
        return False
    plain = next(place for place, char in enumerate(narrow) if char in _WILD)
    return narrow[:plain].startswith(beginning)


def _workspaces_cover(wide: Rule, narrow: Rule) -> bool:
    return "*" in wide.workspaces or set(narrow.workspaces) <= set(wide.workspaces)


def _commands_cover(wide: Rule, narrow: Rule) -> bool:
    if not wide.command:
        return True
    same_place = wide.command_at == narrow.command_at
    return bool(narrow.command) and same_place and set(narrow.command) <= set(wide.command)


def _paths_cover(wide: Rule, narrow: Rule) -> bool:
    if not wide.paths:
        return True
    same_places = set(wide.paths_at) == set(narrow.paths_at)
    return bool(narrow.paths) and same_places and set(narrow.paths) <= set(wide.paths)


def implies(had: ArgumentMatcher, wanted: ArgumentMatcher) -> bool:
    """Tell whether a call that meets ``had`` certainly meets ``wanted``."""
    if had.at != wanted.at:
        return False
    if had == wanted:
        return True
    if had.op in {"eq", "in"}:
        values = had.value if had.op == "in" and isinstance(had.value, list) else [had.value]
        return all(value is not None and _meets(wanted, value) for value in values)
    if wanted.op == "exists":
        return had.op in _BOUNDS
    if had.op in _BOUNDS and wanted.op in _BOUNDS and had.op[0] == wanted.op[0]:
        return _bound_within(had, wanted)
    return False


def _meets(wanted: ArgumentMatcher, value: Any) -> bool:
    """Ask the matcher itself, about arguments that hold nothing but this value where it looks."""
    tokens = [part.replace("~1", "/").replace("~0", "~") for part in wanted.at.split("/")[1:]]
    arguments: Any = value
    for token in reversed(tokens):
        arguments = {token: arguments}
    return wanted.match(arguments) == "yes"


def _bound_within(had: ArgumentMatcher, wanted: ArgumentMatcher) -> bool:
    inner, outer = (Decimal(repr(each.value)) for each in (had, wanted))
    reaches = had.op in {"le", "ge"} and wanted.op in {"lt", "gt"}
    beyond: Callable[[Decimal, Decimal], bool] = Decimal.__lt__ if had.op[0] == "l" else Decimal.__gt__
    return beyond(inner, outer) or (inner == outer and not reaches)
