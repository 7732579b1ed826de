"""Images and files of a conversation, as a page may show them: from the stored content, never from an address.

An image is drawn if its bytes are of the kind that it claims, and browsers can only draw that kind. Anything else is listed
with its type and size, and the API returns it; a file at an address is listed, too, and nothing loads it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final, Literal

from turngate.domain.conversation.messages import FilePart
from turngate.domain.text.sentences import counted

MAX_BYTES: Final = 2 * 1024 * 1024
"""Of an image in the page itself. The API returns larger ones with their conversation."""
SIGNATURES: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""Kinds that contain pixels and nothing else: no SVG, which can contain everything that a page can."""


@dataclass(frozen=True, kw_only=True)
class ShownFile:
    """``size``: in bytes; None: not stored, or not readable. ``address``: a ``data:`` address, if it is ``drawn``."""

    way: Literal["drawn", "named", "elsewhere", "unreadable", "empty"]
    size: int | None = None
    address: str = ""


def shown_file(part: FilePart) -> ShownFile:
    """Return how to show a part. Pure."""
    if not part.content:
        return ShownFile(way="elsewhere" if part.url else "empty")
    try:
        content = base64.b64decode(part.content, validate=True)
    except (binascii.Error, ValueError):
        return ShownFile(way="unreadable")
    kind = part.media_type.strip().lower()
    is_what_it_says = content.startswith(SIGNATURES.get(kind, ())) and (
        kind != "image/webp" or content[8:12] == b"WEBP"
    )
    if not is_what_it_says or len(content) > MAX_BYTES:
        return ShownFile(way="named", size=len(content))
    # Encoded again: the stored text is someone else's, the text in the page is ours.
    encoded = base64.b64encode(content).decode()
    return ShownFile(way="drawn", size=len(content), address=f"data:{kind};base64,{encoded}")


def size_in_words(size: int) -> str:
    """Return a number of bytes for people: ``812 bytes``, ``14.2 KB``, ``1.3 MB``."""
    for unit, bytes_of in (("MB", 1_000_000), ("KB", 1_000)):
        if size >= bytes_of:
            return f"{size / bytes_of:,.1f} {unit}"
    return counted(size, "byte")
