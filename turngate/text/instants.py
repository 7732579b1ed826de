"""Instants as a terminal shows them, from the API's or the store's text (ISO 8601, UTC)."""

from __future__ import annotations

from typing import Final

MINUTE_CHARS: Final = len("2026-01-01T00:00")
SECOND_CHARS: Final = len("2026-01-01T00:00:00")


def minute(instant: str | None) -> str:
    """Return an instant to the minute; a dash for none."""
    return "-" if instant is None else instant[:MINUTE_CHARS].replace("T", " ")


def second(instant: str) -> str:
    """Return an instant to the second."""
    return instant[:SECOND_CHARS].replace("T", " ")
