"""Argument matchers: the value at a JSON pointer, compared without converting anything.

A call's argument and a rule's value are of the same kind or they are not comparable: ``1`` is not ``true``, ``"1"`` is not
``1``. The tool may convert what the rule does not, so a value of another kind is ``unclear``, and so is text that differs
only in case, spacing or Unicode form. Only the operators that compare by size read texts: as numbers, dates and instants
(:mod:`turngate.domain.policy.measures`). Numbers compare exactly, at any size. Pure.

An absent (or null) argument equals nothing: ``eq`` and ``in`` say ``no``; whatever needs a value says ``unclear``.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, field_validator, model_validator

from turngate.domain.policy.facts import Match, all_of, any_of
from turngate.domain.policy.measures import Measure, bounds_of, exact_number, measured
from turngate.domain.text.json_pointers import ABSENT, Ambiguous, checked_pointer, value_at

Operator = Literal[
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "between",
    "in",
    "not_in",
    "contains",
    "starts_with",
    "ends_with",
    "glob",
    "exists",
    "absent",
]
ORDERS: Final = frozenset({"lt", "le", "gt", "ge", "between"})
"""The operators that compare by size."""
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

    @field_validator("value", mode="before")
    @classmethod
    def _as_json(cls, value: object) -> object:
        """TOML has dates and times of its own; JSON writes them as texts."""
        if isinstance(value, list):
            return [each.isoformat() if isinstance(each, date) else each for each in value]
        return value.isoformat() if isinstance(value, date) else value

    @model_validator(mode="after")
    def _value_fits(self) -> Self:
        """Refuse a value the operator can never meet, which would make a rule that silently never matches."""
        if (problem := value_problem(self.op, self.value, has_value="value" in self.model_fields_set)) is not None:
            raise ValueError(problem)
        return self

    def match(self, arguments: JsonValue) -> Match:
        """Tell whether the condition holds for decoded arguments. Never raises for JSON values."""
        return holds(self.op, self.value, value_at(arguments, self.at))


def holds(op: Operator, wanted: JsonValue, value: Any) -> Match:
    """Tell whether a condition holds for a value. Never raises for JSON values.

    ``wanted``: one that :func:`value_problem` finds nothing wrong with. ``value``: ABSENT where there is none.
    """
    if isinstance(value, Ambiguous):
        return "unclear"
    if op in {"exists", "absent"}:
        return _exists(value) if op == "exists" else _NOT[_exists(value)]
    if op in ORDERS:
        return all_of({_ordered(each, value, bound) for each, bound in bounds_of(op, wanted)})
    missing = value is ABSENT or (value is None and wanted is not None)
    match op:
        case "eq" | "in":
            return "no" if missing else _any_equal(value, _values(op, wanted))
        case "ne" | "not_in":
            return "unclear" if missing else _NOT[_any_equal(value, _values(op, wanted))]
        case _:
            return _textual(op, value, wanted)


def value_problem(op: Operator, value: JsonValue, *, has_value: bool = True) -> str | None:
    """Return why the operator cannot be used with this value, or None. ``has_value``: whether the rule has one at all."""
    if op in {"exists", "absent"}:
        return f"{op!r} takes no value: leave it out" if has_value else None
    if not has_value:
        return f"{op!r} needs a value"
    if not _is_finite(value):
        return "a number that is infinite or NaN compares with nothing: write a finite one"
    if op in ORDERS:
        return _order_problem(op, value)
    if op in {"in", "not_in"} and not (isinstance(value, list) and value):
        return f"{op!r} needs a list with at least one value: value = [1, 2]"
    return _text_problem(op, value) if op in _TEXT else None


def _order_problem(op: Operator, value: JsonValue) -> str | None:
    if op == "between" and not (isinstance(value, list) and len(value) == 2):  # noqa: PLR2004 - a pair
        return "'between' needs the lowest and the highest value: value = [1, 500]"
    bounds = [bound for _op, each in bounds_of(op, value) if (bound := _bound(each)) is not None]
    if len(bounds) < len(bounds_of(op, value)):
        return f'{op!r} compares numbers, dates or instants: write 500, "2026-12-31" or "2026-12-31T12:00:00Z"'
    if not bounds[0].compared("le", bounds[-1]):
        return "'between' can never hold: write the lowest value first, and two of a kind"
    return None


def _bound(value: JsonValue) -> Measure | None:
    """Return what a rule compares with. A rule writes numbers as numbers."""
    measure = measured(value)
    is_quoted = measure is not None and measure.kind == "number" and isinstance(value, str)
    return None if is_quoted else measure


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


def _values(op: Operator, wanted: JsonValue) -> list[JsonValue]:
    return wanted if op in {"in", "not_in"} and isinstance(wanted, list) else [wanted]


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
            return _same_number(value, wanted)


def _same_members(value: Any, wanted: Any, places: Iterable[Any]) -> Match:
    return all_of({_equal(value[place], wanted[place]) for place in places})


def _same_number(value: Any, wanted: Any) -> Match:
    number = exact_number(value)
    if number is None:  # not of JSON: a tool's own decoder may have made an infinite one
        return "unclear"
    return "yes" if number == exact_number(wanted) else "no"


def _ordered(op: str, value: Any, bound: Any) -> Match:
    measure, limit = measured(value), measured(bound)
    compared = None if measure is None or limit is None else measure.compared(op, limit)
    if compared is None:
        return "unclear"
    return "yes" if compared else "no"


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
