"""Argument matchers: the value at a JSON pointer, compared without converting anything.

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
    "lt": lambda number, bound: number < bound,
    "le": lambda number, bound: number <= bound,
    "gt": lambda number, bound: number > bound,
    "ge": lambda number, bound: number >= bound,
}
_TEXT: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda text, part: part in text,
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
        if (problem := _value_problem(self.op, self.value, has_value="value" in self.model_fields_set)) is not None:
            raise ValueError(problem)
        return self

    def match(self, arguments: JsonValue) -> Match:
        """Tell whether the condition holds for decoded arguments. Never raises for JSON values."""
        value = value_at(arguments, self.at)
        if isinstance(value, Ambiguous):
            return "unclear"
        if self.op in {"exists", "absent"}:
            return _exists(value) if self.op == "exists" else _NOT[_exists(value)]
        missing = value is ABSENT or (value is None and self.value is not None)
        match self.op:
            case "eq" | "in":
                return "no" if missing else _any_equal(value, self._wanted)
            case "ne" | "not_in":
                return "unclear" if missing else _NOT[_any_equal(value, self._wanted)]
            case "lt" | "le" | "gt" | "ge":
                return _ordered(self.op, value, self.value)
            case _:
                return _textual(self.op, value, self.value)

    @property
    def _wanted(self) -> list[JsonValue]:
        return self.value if self.op in {"in", "not_in"} and isinstance(self.value, list) else [self.value]


def _value_problem(op: Operator, value: JsonValue, *, has_value: bool) -> str | None:
    """Return why the operator cannot be used with this value, or None. ``has_value``: whether the rule has one at all."""
    if op in {"exists", "absent"}:
        return f"{op!r} takes no value: leave it out" if has_value else None
    if not has_value:
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


def _exists(value: Any) -> Match:
    if value is ABSENT:
        return "no"
    return "unclear" if value is None else "yes"


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


def _any_equal(value: Any, wanted: list[JsonValue]) -> Match:
    return any_of({_equal(value, each) for each in wanted})


def _equal(value: Any, wanted: Any) -> Match:
    kind = _kind(value)
    if kind == "unknown":
        return "unclear"
    if value is None or wanted is None:
        return "yes" if value is wanted else "no"
    if kind != _kind(wanted):
        return "unclear"
    match kind:
        case "string":
            return _same_text(value, wanted)
        case "array":
            return _same_members(value, wanted, range(len(wanted))) if len(value) == len(wanted) else "no"
        case "object":
            return _same_members(value, wanted, wanted) if value.keys() == wanted.keys() else "no"
        case "boolean":
            return "yes" if value is wanted else "no"
        case _:
            return _ordered("eq", value, wanted)


def _same_members(value: Any, wanted: Any, places: Iterable[Any]) -> Match:
    return all_of({_equal(value[place], wanted[place]) for place in places})


def _ordered(op: str, value: Any, bound: Any) -> Match:
    if _kind(value) != "number":
        return "unclear"
    number = _number(value)
    if not number.is_finite():
        return "unclear"
    holds = number == _number(bound) if op == "eq" else _ORDER[op](number, _number(bound))
    return "yes" if holds else "no"


def _textual(op: Operator, value: Any, wanted: JsonValue) -> Match:
    if op == "contains" and isinstance(value, list):
        return any_of({_equal(item, wanted) for item in value})
    if not isinstance(value, str) or not isinstance(wanted, str):
        return "unclear"
    if _TEXT[op](value, wanted):
        return "yes"
    return "unclear" if _TEXT[op](_folded(value), _folded(wanted)) else "no"


def _same_text(value: str, wanted: str) -> Match:
    if value == wanted:
        return "yes"
    return "unclear" if _folded(value) == _folded(wanted) else "no"


def _folded(text: str) -> str:
    """Return the text as a careless reader takes it: a tool that trims, folds case or normalises sees no difference."""
    visible = "".join(char for char in text if unicodedata.category(char) not in {"Cf", "Cc"})
    return unicodedata.normalize("NFKC", visible).casefold().strip()
