"""Text safety: what an agent or a tool wrote is shown as it is, inert, with nothing hidden in it.

Owns the rule which characters a person cannot see. Values are never Markdown and never linked: a URL stays text.
Sources: Unicode TR 36 and TR 55 (bidi and invisible characters in source), CVE-2021-42574 ("Trojan Source").
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from markupsafe import Markup, escape

_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5\u180b\u180c\u180d\u180f")
"""Characters that Unicode counts as letters, symbols or marks, and that show nothing."""
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_VARIATION_SELECTORS = frozenset(range(0xFE00, 0xFE10)) | frozenset(range(0xE0100, 0xE01F0))
_SPACE_MARKS = {
    "\n": Markup('<span class="hidden-char" title="LINE FEED">⏎</span>'),
    "\t": Markup('<span class="hidden-char" title="TAB">⇥</span>'),
}
_MARKS_IN_A_ROW = 4
"""More combining marks than this on one letter pile up over the neighbouring lines."""


def is_hidden(char: str) -> bool:
    """Tell whether a person cannot see this character, or would take it for a plain space. Newline and tab are seen."""
    if char in " \n\t":
        return False
    if char in _BLANK_LETTERS or ord(char) in _VARIATION_SELECTORS:
        return True
    return unicodedata.category(char) in _HIDDEN_CATEGORIES


def has_hidden(text: str) -> bool:
    """Tell whether any character of the text would be marked by :func:`visible`."""
    return any(hidden for _char, hidden in _marked(text))


def visible(value: object) -> Markup:
    """Return HTML of an untrusted value: escaped, isolated in ``<bdi>``, hidden characters as ``⟨U+202E⟩`` markers.

    Newlines and tabs stay, so put it in an element with ``white-space: pre-wrap``. The only safe way to show a value.
    """
    return Markup("<bdi>{}</bdi>").format(Markup("").join(_pieces(str(value))))


def visible_line(value: object) -> Markup:
    """Return :func:`visible` for one line: newlines and tabs are markers too, so nothing can start a line of its own."""
    text = str(value).replace("\r\n", "\n")
    pieces = Markup("").join(_SPACE_MARKS.get(char, piece) for char, piece in _by_char(text))
    return Markup("<bdi>{}</bdi>").format(pieces)


def marked_text(value: object) -> str:
    """Return plain text with the markers of :func:`visible_line`, for places that hold no elements (titles, options)."""
    return "".join(f"⟨U+{ord(char):04X}⟩" if hidden or char in "\n\t" else char for char, hidden in _marked(str(value)))


def escape_hidden(json_text: str) -> str:
    r"""Return JSON text whose hidden characters are ``\uXXXX`` escapes: the same value, safe to put in an edit field.

    Inside JSON strings both spellings mean the same (RFC 8259 §7); outside of them such characters are not JSON anyway.
    """
    return "".join(_json_escape(char) if hidden else char for char, hidden in _marked(json_text))


def _marked(text: str) -> Iterator[tuple[str, bool]]:
    marks = _MARKS_IN_A_ROW  # a mark at the very start would land on what stands before the value
    for char in text:
        if unicodedata.category(char) in {"Mn", "Me"}:
            marks += 1
        else:
            marks = 0
        yield char, is_hidden(char) or marks > _MARKS_IN_A_ROW


def _by_char(text: str) -> Iterator[tuple[str, Markup]]:
    for char, hidden in _marked(text):
        yield char, _mark(char) if hidden else escape(char)


def _pieces(text: str) -> Iterator[Markup]:
    """Yield escaped runs and markers; runs keep the work per character small for long values."""
    run: list[str] = []
    for char, hidden in _marked(text):
        if not hidden:
            run.append(char)
            continue
        yield escape("".join(run))
        run.clear()
        yield _mark(char)
    yield escape("".join(run))


def _mark(char: str) -> Markup:
    name = unicodedata.name(char, unicodedata.category(char))
    return Markup('<span class="hidden-char" title="{}">⟨U+{:04X}⟩</span>').format(name, ord(char))


def _json_escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFFFF:  # noqa: PLR2004 - the end of the basic multilingual plane
        return f"\\u{code:04x}"
    units = char.encode("utf-16-be")
    return f"\\u{units[:2].hex()}\\u{units[2:].hex()}"
