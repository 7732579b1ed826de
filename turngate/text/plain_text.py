"""Text from agents, tools and other people, made harmless for a terminal: hidden characters become markers.

A terminal obeys escape sequences in the text that is printed to it: they recolour, erase and overwrite earlier lines, or
answer as if the user had typed. Every untrusted value passes through here before it is printed.
"""

from __future__ import annotations

from typing import Final

from turngate.domain.text.folds import cut_line
from turngate.domain.text.hidden_text import pieces

Piece = str | tuple[str, str]
"""Text, or text with a rich style."""

NEWLINE_MARK: Final = " ⏎ "
ELLIPSIS: Final = "…"


def plain(text: str) -> str:
    """Return the text with every hidden character as ``⟨U+001B⟩``; newlines and tabs stay."""
    visible = (
        f"⟨U+{ord(piece):04X}⟩" if hidden else piece for piece, hidden in pieces(str(text).replace("\r\n", "\n"))
    )
    return "".join(visible)


def plain_line(text: str, limit: int | None = None) -> str:
    """Return :func:`plain` on one line, newlines as ``⏎``. ``limit``: at most so many characters, by :func:`cut_line`."""
    line = plain(str(text).strip()).replace("\n", NEWLINE_MARK).replace("\t", " ")
    return line if limit is None else cut_line(line, limit)


def indented(text: str, margin: str) -> str:
    """Return :func:`plain` with a margin before each line, so that no line of it can pass for one of Turngate's."""
    return "\n".join(margin + line for line in plain(text).split("\n"))
