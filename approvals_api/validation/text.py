"""Text that can be stored: PostgreSQL keeps every character but U+0000, and no database keeps half a surrogate pair."""

from __future__ import annotations

from typing import Final

from turngate.approvals_api.validation.errors import invalid

STORABLE: Final = r"^[^\u0000]*$"
"""Pattern of ids and words in URLs. An id with U+0000 names nothing, and asking PostgreSQL for it would be an error."""


def require_storable(text: str, pointer: str) -> None:
    """Raise InvalidInputError for text that can't be stored. ``pointer``: where it was sent, a JSON pointer."""
    if "\x00" in text:
        raise invalid(pointer, "the character U+0000 cannot be stored")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(pointer, "half a surrogate pair is not a character") from None
