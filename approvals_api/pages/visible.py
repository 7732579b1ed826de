"""Text safety: what an agent or a tool wrote is shown as it is, inert, with nothing hidden in it.

Owns the rule which characters a person cannot see. Values are never Markdown and never linked: a URL stays text.
Sources: Unicode TR 36 and TR 55 (bidi and invisible characters in source), CVE-2021-42574 ("Trojan Source").
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from markupsafe import Markup, escape

_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5\u180b\u180c\u180d\u180f")
"""Characters that Unicode counts as letters, symbols or marks, and that show nothing."""
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_VARIATION_SELECTORS = frozenset(range(0xFE00, 0xFE10)) | frozenset(range(0xE0100, 0xE01F0))
_NEWLINE = Markup('<span class="hidden-char" title="LINE FEED">⏎</span>')
_TAB = Markup('<span class="hidden-char" title="TAB">⇥</span>')
_MARKS_IN_A_ROW = 4
"""More combining marks than this on one letter pile up over the neighbouring lines."""


def is_hidden(char: str) -> bool:
    """Tell whether a person cannot see this character, or would take it for a plain space. Newline and tab are seen."""
    if char in " \n\t":
        return False
    if char in _BLANK_LETTERS or ord(char) in _VARIATION_SELECTORS:
        return True
    return unicodedata.category(char) in _HIDDEN_CATEGORIES


def _plain_class() -> str:
    """Return a regex class of the characters of the basic plane that are seen and stand on their own, in ranges."""
    ranges: list[list[int]] = []
    for code in (0x09, 0x0A, *range(0x20, 0x10000)):
        if is_hidden(chr(code)) or unicodedata.category(chr(code)) in {"Mn", "Me"}:
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in ranges) + "]+"


_PLAIN = re.compile(_plain_class())


def has_hidden(text: str) -> bool:
    """Tell whether any character of the text would be marked by :func:`visible`."""
    return any(hidden for _piece, hidden in _pieces(text))


def visible(value: object) -> Markup:
    """Return HTML of an untrusted value: escaped, isolated in ``<bdi>``, hidden characters as ``⟨U+202E⟩`` markers.

    Newlines and tabs stay, so put it in an element with ``white-space: pre-wrap``. The only safe way to show a value.
    """
    # Plain strings joined once: going through Markup piece by piece takes seconds for a hostile megabyte.
    shown = [_mark(piece) if hidden else str(escape(piece)) for piece, hidden in _pieces(str(value))]
    return Markup(f"<bdi>{''.join(shown)}</bdi>")  # noqa: S704 - every piece was escaped above


def visible_line(value: object) -> Markup:
    """Return :func:`visible` for one line: newlines and tabs are markers too, so nothing can start a line of its own."""
    return visible(value).replace("\r\n", "\n").replace("\n", _NEWLINE).replace("\t", _TAB)


def marked_text(value: object) -> str:
    """Return plain text with the markers of :func:`visible`, on one line, for places without elements (titles, options)."""
    pieces = (f"⟨U+{ord(piece):04X}⟩" if hidden else piece for piece, hidden in _pieces(str(value)))
    return "".join(pieces).replace("\n", "⏎").replace("\t", "⇥")


def escape_hidden(json_text: str) -> str:
    r"""Return JSON text whose hidden characters are ``\uXXXX`` escapes: the same value, safe to put in an edit field.

    Inside JSON strings both spellings mean the same (RFC 8259 §7); outside of them such characters are not JSON anyway.
    """
    return "".join(_json_escape(piece) if hidden else piece for piece, hidden in _pieces(json_text))


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield runs that are seen, and single characters that are hidden (True), in order.

    What is plainly seen is taken in whole runs: arguments may be a megabyte long.
    """
    marks = _MARKS_IN_A_ROW  # a mark at the very start would land on what stands before the value
    at = 0
    while at < len(text):
        plain = _PLAIN.match(text, at)
        if plain is not None:
            yield plain.group(), False
            at, marks = plain.end(), 0
            continue
        char = text[at]
        at += 1
        marks = marks + 1 if unicodedata.category(char) in {"Mn", "Me"} else 0
        yield char, marks > _MARKS_IN_A_ROW or is_hidden(char)


@lru_cache(maxsize=4_096)
def _mark(char: str) -> str:
    name = unicodedata.name(char, unicodedata.category(char))
    return f'<span class="hidden-char" title="{escape(name)}">⟨U+{ord(char):04X}⟩</span>'


def _json_escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFFFF:  # noqa: PLR2004 - the end of the basic multilingual plane
        return f"\\u{code:04x}"
    units = char.encode("utf-16-be")
    return f"\\u{units[:2].hex()}\\u{units[2:].hex()}"
