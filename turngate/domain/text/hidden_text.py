"""Which characters a person cannot see, and plain text with markers in their place.

Whatever shows what an agent or a tool wrote (pages, terminal, notifications) goes by this one rule. Pure.
Sources: Unicode TR 36 and TR 55 (bidi and invisible characters in source), CVE-2021-42574 ("Trojan Source").
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

_BLANK_LETTERS = frozenset(
    "\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5\u180b\u180c\u180d\u180f\u2d7f"
    "\U0001107f\U00013441\U00013442\U00016fe4\U0001d159"
)
"""Characters that Unicode counts as letters, symbols or marks, and that show nothing."""
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_VARIATION_SELECTORS = frozenset(range(0xFE00, 0xFE10)) | frozenset(range(0xE0100, 0xE01F0))
_ASCII = re.compile(r"[\t\n -~]+")
_MARKS_IN_A_ROW = 4
"""More combining marks than this on one letter pile up over the neighbouring lines."""


def is_hidden(char: str) -> bool:
    """Tell whether a person cannot see this character, or would take it for a plain space. Newline and tab are seen."""
    if char in " \n\t":
        return False
    if char in _BLANK_LETTERS or ord(char) in _VARIATION_SELECTORS:
        return True
    return unicodedata.category(char) in _HIDDEN_CATEGORIES


@cache
def _plain_run() -> re.Pattern[str]:
    """Return the pattern of a run of characters of the basic plane that are visible and don't combine with others.

    Compiled for the first text that is more than ASCII: asking Unicode about 65,000 characters takes 30 ms.
    """
    ranges: list[list[int]] = []
    for code in (0x09, 0x0A, *range(0x20, 0x10000)):
        if is_hidden(chr(code)) or unicodedata.category(chr(code)) in {"Mn", "Me"}:
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return re.compile("[" + "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in ranges) + "]+")


def has_hidden(text: str) -> bool:
    """Tell whether any character of the text would be marked."""
    return any(hidden for _piece, hidden in pieces(text))


def marked_text(value: object) -> str:
    """Return plain text with hidden characters as ``⟨U+202E⟩``, on one line: for titles, messages, subjects."""
    marked = (f"⟨U+{ord(piece):04X}⟩" if hidden else piece for piece, hidden in pieces(str(value)))
    return "".join(marked).replace("\n", "⏎").replace("\t", "⇥")


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield runs that are seen, and single characters that are hidden (True), in order.

    What is plainly seen is taken in whole runs: arguments may be a megabyte long.
    """
    if _ASCII.fullmatch(text):
        yield text, False
        return
    marks = _MARKS_IN_A_ROW  # a mark at the very start would attach to what precedes the value
    at, plain_run = 0, _plain_run()
    while at < len(text):
        plain = plain_run.match(text, at)
        if plain is not None:
            yield plain.group(), False
            at, marks = plain.end(), 0
            continue
        char = text[at]
        at += 1
        marks = marks + 1 if unicodedata.category(char) in {"Mn", "Me"} else 0
        yield char, marks > _MARKS_IN_A_ROW or is_hidden(char)


def escape_hidden(json_text: str) -> str:
    r"""Return JSON text whose hidden characters are ``\uXXXX`` escapes: the same value, safe to put in an edit field.

    Inside JSON strings both spellings mean the same (RFC 8259 §7); outside of them such characters are not JSON anyway.
    """
    return "".join(_json_escape(piece) if hidden else piece for piece, hidden in pieces(json_text))


def _json_escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFFFF:  # noqa: PLR2004 - the end of the basic multilingual plane
        return f"\\u{code:04x}"
    units = char.encode("utf-16-be")
    return f"\\u{units[:2].hex()}\\u{units[2:].hex()}"
