"""Instants in words for people whose time zone is not known: in UTC, which is named. A terminal's are in its own zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

Precision = Literal["minutes", "seconds"]


def in_utc(instant: datetime | str, to: Precision = "minutes") -> str:
    """Return an instant such as ``2026-11-02 10:00 UTC``. ``instant``: aware, or ISO 8601 with an offset."""
    at = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ', timespec=to)} UTC"
