"""Durations in words for people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def span(seconds: float) -> str:
    """Return a duration in its largest unit, as people say it: ``45 s``, ``3 min``, ``2 h``, ``5 d``."""
    whole = max(0, int(seconds))
    for length, unit in _UNITS:
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def exact_span(seconds: int) -> str:
    """Return a duration in the largest unit that leaves no rest: ``90 min``, not ``1 h``."""
    for length, unit in _UNITS:
        if seconds and seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
