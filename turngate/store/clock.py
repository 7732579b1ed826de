"""Instants as stored: ISO 8601 UTC with microseconds, so that text order is time order."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the present instant, aware UTC."""
    return datetime.now(UTC)


def as_text(instant: datetime) -> str:
    """Return the stored form; naive instants are a programming error and raise ValueError."""
    if instant.tzinfo is None:
        raise ValueError("an instant must be aware")
    return instant.astimezone(UTC).isoformat(timespec="microseconds")


def from_text(text: str) -> datetime:
    """Return the aware instant of a stored text."""
    return datetime.fromisoformat(text)
