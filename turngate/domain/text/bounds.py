"""Texts cut to a number of bytes in UTF-8, in which a character takes one to four. Pure."""

from __future__ import annotations

from typing import Final

ELLIPSIS: Final = "…"
_ROOM: Final = len(ELLIPSIS.encode())


def size(text: str) -> int:
    """Return how many bytes a text takes. Half a surrogate pair counts as three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def head(text: str, most: int) -> str:
    """Return the beginning of a text in at most this many bytes; ``…`` replaces what is cut off. ``most``: at least 3."""
    if len(text) <= most and size(text) <= most:
        return text
    return _decoded(text[:most].encode("utf-8", "surrogatepass")[: most - _ROOM]) + ELLIPSIS


def tail(text: str, most: int) -> str:
    """Return the end of a text in at most this many bytes; ``…`` replaces what is cut off. ``most``: at least 3."""
    if len(text) <= most and size(text) <= most:
        return text
    encoded = text[-most:].encode("utf-8", "surrogatepass")
    return ELLIPSIS + _decoded(encoded[_ROOM - most :] if most > _ROOM else b"")


def ends(text: str, most: int) -> str:
    """Return beginning and end of a text in at most this many bytes, with a line between that says what is left out."""
    if len(text) <= most and size(text) <= most:
        return text
    between = f"\n… the middle of {len(text):,} characters is left out …\n"
    half = (most - size(between)) // 2
    return head(text, half).removesuffix(ELLIPSIS) + between + tail(text, half).removeprefix(ELLIPSIS)


def _decoded(cut: bytes) -> str:
    return cut.decode("utf-8", "ignore")
