"""What can be compared by size: numbers, dates and instants, read exactly or not at all. Pure.

A number is a JSON number, or a text that says one in the one way that every reader takes alike: ``"12.50"``. Everything that a
reader may take otherwise (``"1e3"``, ``"1_000"``, ``"007"``, ``"+5"``, ``"-0"``, digits of other scripts) is none. A date is
``2026-12-31``; an instant has a time and a zone (RFC 3339: ``2026-12-31T12:00:00+01:00``). A time without a zone is neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Literal

Kind = Literal["number", "date", "instant"]

_DECIMAL: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INSTANT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
_LONGEST: Final = 80
"""Characters of a text that may be a number, a date or an instant."""
_UNKNOWN_ZONE: Final = "-00:00"


@dataclass(frozen=True)
class Measure:
    """A value that has a place in an order among those of its kind."""

    kind: Kind
    value: Any

    def compared(self, op: str, bound: Measure) -> bool | None:
        """Return whether the value is ``lt``, ``le``, ``gt``, ``ge`` or ``eq`` the bound; None: they are of two kinds."""
        return _COMPARISONS[op](self.value, bound.value) if self.kind == bound.kind else None


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "lt": lambda value, bound: value < bound,
    "le": lambda value, bound: value <= bound,
    "gt": lambda value, bound: value > bound,
    "ge": lambda value, bound: value >= bound,
    "eq": lambda value, bound: value == bound,
}


def measured(value: Any) -> Measure | None:
    """Return a value's measure; None for whatever has none, or more than one."""
    if isinstance(value, str):
        return _of_text(value)
    number = exact_number(value)
    return None if number is None else Measure("number", number)


def exact_number(value: Any) -> Decimal | None:
    """Return a finite number as it is written: 0.1 in a policy means a tenth, not the double nearest to it."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return number if number.is_finite() else None


def bounds_of(op: str, value: Any) -> Sequence[tuple[str, Any]]:
    """Return the comparisons that a condition of order is made of: ``between`` is two."""
    if op == "between":
        return [("ge", value[0]), ("le", value[1])]
    return [(op, value)]


def _of_text(text: str) -> Measure | None:
    if len(text) > _LONGEST:
        return None
    if _DECIMAL.fullmatch(text):
        number = Decimal(text)
        return None if text.startswith("-") and not number else Measure("number", number)
    try:
        if _DATE.fullmatch(text):
            return Measure("date", date.fromisoformat(text))
        if _INSTANT.fullmatch(text) and not text.endswith(_UNKNOWN_ZONE):
            return Measure("instant", datetime.fromisoformat(text))
    except ValueError:  # the 30th of February, 25 o'clock
        return None
    return None
