"""Argument matchers: what stands at a JSON pointer, compared without converting anything.

A call's argument and a rule's value are of the same kind or they are not comparable: ``1`` is not ``true``, ``"1"`` is not
``1``. The tool may convert what the rule does not, so a value of another kind is ``unclear``, and so is text that differs
only in case, spacing or Unicode form. Numbers compare exactly, at any size. Pure.

An absent (or null) argument equals nothing: ``eq`` and ``in`` say ``no``; whatever needs a value says ``unclear``.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, field_validator, model_validator

from turngate.domain.policy.facts import Match, all_of, any_of
from turngate.domain.text.json_pointers import ABSENT, Ambiguous, checked_pointer, value_at

Operator = Literal[
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "in",
    "not_in",
    "contains",
    "starts_with",
    "ends_with",
    "glob",
    "exists",
    "absent",
]
_ORDER: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "lt": lambda given, bound: given < bound,
    "le": lambda given, bound: given <= bound,
    "gt": lambda given, bound: given > bound,
    "ge": lambda given, bound: given >= bound,
}
_TEXT: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda given, part: part in given,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "glob": fnmatchcase,
}
_NOT: dict[Match, Match] = {"yes": "no", "no": "yes", "unclear": "unclear"}


class ArgumentMatcher(BaseModel):
    """One condition: ``{at = "/amount", op = "gt", value = 500}``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at: str
    op: Operator
    value: JsonValue = None

    @field_validator("at")
    @classmethod
    def _is_pointer(cls, at: str) -> str:
        return checked_pointer(at)

    @model_validator(mode="after")
    def _value_fits(self) -> Self:
        """Refuse a value the operator can never meet, which would make a rule that silently never matches."""
        if (problem := _value_problem(self.op, self.value, given="value" in self.model_fields_set)) is not None:
            raise ValueError(problem)
        return self

    def match(self, arguments: JsonValue) -> Match:
        """Tell whether the condition holds for decoded arguments. Never raises for JSON values."""
        found = value_at(arguments, self.at)
        if isinstance(found, Ambiguous):
            return "unclear"
        if self.op in {"exists", "absent"}:
            return _exists(found) if self.op == "exists" else _NOT[_exists(found)]
        missing = found is ABSENT or (found is None and self.value is not None)
        match self.op:
            case "eq" | "in":
                return "no" if missing else _any_equal(found, self._wanted)
            case "ne" | "not_in":
                return "unclear" if missing else _NOT[_any_equal(found, self._wanted)]
            case "lt" | "le" | "gt" | "ge":
                return _ordered(self.op, found, self.value)
            case _:
                return _textual(self.op, found, self.value)

    @property
    def _wanted(self) -> list[JsonValue]:
        return self.value if self.op in {"in", "not_in"} and isinstance(self.value, list) else [self.value]


def _value_problem(op: Operator, value: JsonValue, *, given: bool) -> str | None:
    """Return why the operator cannot be used with this value, or None. ``given``: whether the rule has one at all."""
    if op in {"exists", "absent"}:
        return f"{op!r} takes no value: leave it out" if given else None
    if not given:
        return f"{op!r} needs a value"
    if not _is_finite(value):
        return "a number that is infinite or NaN compares with nothing: write a finite one"
    if op in _ORDER and _kind(value) != "number":
        return f"{op!r} compares numbers: the value must be one"
    if op in {"in", "not_in"} and not (isinstance(value, list) and value):
        return f"{op!r} needs a list with at least one value: value = [1, 2]"
    return _text_problem(op, value) if op in _TEXT else None


def _text_problem(op: Operator, value: JsonValue) -> str | None:
    if op != "contains" and not isinstance(value, str):
        return f"{op!r} compares text: the value must be a string"
    if value == "":
        return f"{op!r} of an empty text would match everything: use 'exists'"
    return None


def _exists(found: Any) -> Match:
    if found is ABSENT:
        return "no"
    return "unclear" if found is None else "yes"


def _is_finite(value: JsonValue) -> bool:
    if isinstance(value, list):
        return all(_is_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float | Decimal):
        return "number"
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "unknown")


def _number(value: float | Decimal) -> Decimal:
    """Return the number as it is written: 0.1 in a policy means a tenth, not the double nearest to it."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _any_equal(found: Any, wanted: list[JsonValue]) -> Match:
    return any_of({_equal(found, value) for value in wanted})


def _equal(found: Any, wanted: Any) -> Match:
    kind = _kind(found)
    if kind == "unknown":
        return "unclear"
    if found is None or wanted is None:
        return "yes" if found is wanted else "no"
    if kind != _kind(wanted):
        return "unclear"
    match kind:
        case "string":
            return _same_text(found, wanted)
        case "array":
            return _same_members(found, wanted, range(len(wanted))) if len(found) == len(wanted) else "no"
        case "object":
            return _same_members(found, wanted, wanted) if found.keys() == wanted.keys() else "no"
        case "boolean":
            return "yes" if found is wanted else "no"
        case _:
            return _ordered("eq", found, wanted)


def _same_members(found: Any, wanted: Any, places: Iterable[Any]) -> Match:
    return all_of({_equal(found[place], wanted[place]) for place in places})


def _ordered(op: str, found: Any, bound: Any) -> Match:
    if _kind(found) != "number":
        return "unclear"
    given = _number(found)
    if not given.is_finite():
        return "unclear"
    holds = given == _number(bound) if op == "eq" else _ORDER[op](given, _number(bound))
    return "yes" if holds else "no"


def _textual(op: Operator, found: Any, wanted: JsonValue) -> Match:
    if op == "contains" and isinstance(found, list):
        return any_of({_equal(item, wanted) for item in found})
    if not isinstance(found, str) or not isinstance(wanted, str):
        return "unclear"
    if _TEXT[op](found, wanted):
        return "yes"
    return "unclear" if _TEXT[op](_folded(found), _folded(wanted)) else "no"


def _same_text(found: str, wanted: str) -> Match:
    if found == wanted:
        return "yes"
    return "unclear" if _folded(found) == _folded(wanted) else "no"


def _folded(text: str) -> str:
    """Return the text as a careless reader takes it: a tool that trims, folds case or normalises sees no difference."""
    visible = "".join(char for char in text if unicodedata.category(char) not in {"Cf", "Cc"})
    return unicodedata.normalize("NFKC", visible).casefold().strip()
