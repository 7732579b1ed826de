"""Instants as a terminal shows them: in the zone of the machine that it runs on, with the offset."""

from __future__ import annotations

from datetime import datetime


def minute(instant: str | None) -> str:
    """Return an instant to the minute in the reader's zone, with its offset; a dash for none.

    ``instant``: ISO 8601, as the API and the store write it.
    """
    return _local(instant, "minutes") if instant else "-"


def second(instant: str | None) -> str:
    """Return an instant to the second, as :func:`minute` does."""
    return _local(instant, "seconds") if instant else "-"


def _local(instant: str, to: str) -> str:
    return datetime.fromisoformat(instant).astimezone().isoformat(sep=" ", timespec=to)
