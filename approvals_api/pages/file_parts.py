"""Images and files of a conversation, as a page may show them: from what is stored, never from an address.

An image is drawn when its bytes are what it says it is, of a kind that browsers only draw. Anything else is named with its
type and size, and the API gives it; one that lies elsewhere is named, too, and nothing loads it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final, Literal

from turngate.domain.conversation.messages import FilePart

MAX_BYTES: Final = 2 * 1024 * 1024
"""Of one that stands in the page itself. The API gives larger ones with their conversation."""
SIGNATURES: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""Kinds that hold pixels and nothing else: no SVG, which holds whatever a page does."""


@dataclass(frozen=True, kw_only=True)
class ShownFile:
    """``size``: in bytes; None: it is not here, or not readable. ``address``: a ``data:`` one, for what is ``drawn``."""

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
    # Encoded anew: what was stored is somebody's text, what stands in the page is ours.
    encoded = base64.b64encode(content).decode()
    return ShownFile(way="drawn", size=len(content), address=f"data:{kind};base64,{encoded}")


def size_said(size: int) -> str:
    """Return a number of bytes as people say it: ``812 bytes``, ``14.2 KB``, ``1.3 MB``."""
    for unit, bytes_of in (("MB", 1_000_000), ("KB", 1_000)):
        if size >= bytes_of:
            return f"{size / bytes_of:,.1f} {unit}"
    return f"{size} byte{'' if size == 1 else 's'}"
