"""Text safety: what an agent or a tool wrote is shown as it is, inert, with nothing hidden in it.

Which characters a person cannot see is the rule of :mod:`turngate.domain.text.hidden_text`. Values are never Markdown and
never linked: a URL stays text.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from markupsafe import Markup, escape

from turngate.domain.text.hidden_text import pieces

_NEWLINE = '<span class="hidden-char" title="LINE FEED">⏎</span>'
_TAB = '<span class="hidden-char" title="TAB">⇥</span>'


def visible(value: object) -> Markup:
    """Return HTML of an untrusted value: escaped, isolated in ``<bdi>``, hidden characters as ``⟨U+202E⟩`` markers.

    Newlines and tabs stay, so put it in an element with ``white-space: pre-wrap``. The only safe way to show a value.
    """
    return Markup(f"<bdi>{_shown(str(value))}</bdi>")  # noqa: S704 - every piece was escaped


def visible_line(value: object) -> Markup:
    """Return :func:`visible` for one line: newlines and tabs are markers too, so nothing can start a line of its own."""
    shown = _shown(str(value)).replace("\n", _NEWLINE).replace("\t", _TAB)
    return Markup(f"<bdi>{shown}</bdi>")  # noqa: S704 - as above, and the two markers are ours


def _shown(text: str) -> str:
    # Plain strings joined once: going through Markup piece by piece takes seconds for a hostile megabyte.
    return "".join(_mark(piece) if hidden else str(escape(piece)) for piece, hidden in pieces(text))


@lru_cache(maxsize=4_096)
def _mark(char: str) -> str:
    name = unicodedata.name(char, unicodedata.category(char))
    return f'<span class="hidden-char" title="{escape(name)}">⟨U+{ord(char):04X}⟩</span>'
