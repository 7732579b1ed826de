"""What a person reads while an event stream is cut off. A page says the same with the script's clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from turngate.text.instants import minute

NOT_CONNECTED: Final = (
    "Not connected since {since}. What you see may be out of date. Reading and typing still work. A decision is checked "
    "first, and you learn if it can't be sent."
)
CONNECTED_AGAIN: Final = "Connected again."


class LinkState:
    """Whether one event stream is connected: takes what the client's ``on_link`` is called with."""

    def __init__(self) -> None:
        self._lost_at: datetime | None = None

    @property
    def words(self) -> str:
        """What a person must know; empty while it is connected."""
        if self._lost_at is None:
            return ""
        return NOT_CONNECTED.format(since=minute(self._lost_at.isoformat()))

    def change(self, *, is_open: bool) -> str | None:
        """Return the message about a change; None when nothing changed, which each further failed attempt reports, too."""
        if is_open == (self._lost_at is None):
            return None
        self._lost_at = None if is_open else datetime.now(UTC)
        return self.words or CONNECTED_AGAIN
