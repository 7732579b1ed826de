"""Text that a server sent, made safe to show: no control characters, nothing invisible, of bounded length. Pure."""

from __future__ import annotations

import re

_TROUBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed: terminal escapes
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that reorder the text around them
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"  # invisible, and read by models all the same
)


def plain(text: str, limit: int) -> str:
    """Return the text with each troublesome character as ``\N{REPLACEMENT CHARACTER}``, clipped to ``limit`` characters."""
    printable = _TROUBLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
    return printable if len(printable) <= limit else f"{printable[: limit - 1]}…"
