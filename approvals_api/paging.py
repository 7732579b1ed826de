"""Opaque page cursors: base64url of ``created_at|id`` of the last item seen."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from turngate.domain.errors import InvalidInputError


class Listed(Protocol):
    """A row of a list: when it was created, and its id."""

    @property
    def created_at(self) -> str: ...  # noqa: D102

    @property
    def id(self) -> str: ...  # noqa: D102


Row = TypeVar("Row", bound=Listed)


def encode_cursor(created_at: str, item_id: str) -> str:
    """Return the cursor that continues after this item."""
    return base64.urlsafe_b64encode(f"{created_at}|{item_id}".encode()).decode().rstrip("=")


def one_page(rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], str | None]:
    """Return the first ``limit`` rows, and the cursor of the rows after them; None: these are the last."""
    page = rows[:limit]
    return page, encode_cursor(page[-1].created_at, page[-1].id) if len(rows) > limit else None


def page_after(items: Iterable[Row], cursor: str | None, limit: int) -> tuple[Sequence[Row], str | None]:
    """Return one page of a whole list, newest first, and the cursor of the next.

    For lists that are short by nature, such as tokens. Raises InvalidInputError (code ``bad_cursor``).
    """
    before = decode_cursor(cursor)
    rest = [each for each in items if before is None or (each.created_at, each.id) < before]
    return one_page(sorted(rest, key=lambda each: (each.created_at, each.id), reverse=True), limit)


def decode_cursor(cursor: str | None) -> tuple[str, str] | None:
    """Return (created_at, id); None for no cursor. Raises InvalidInputError (code ``bad_cursor``) for any other text."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        created_at, _bar, item_id = base64.b64decode(padded, altchars=b"-_", validate=True).decode().partition("|")
        aware = datetime.fromisoformat(created_at).tzinfo is not None
    except (ValueError, binascii.Error):
        aware, created_at, item_id = False, "", ""
    if not aware or not item_id or "\x00" in item_id:
        message = "this is no cursor of this list: use next_cursor of the page before, or omit it for the first page"
        raise InvalidInputError(message, code="bad_cursor", errors=[{"pointer": "", "message": f"cursor: {message}"}])
    return created_at, item_id
