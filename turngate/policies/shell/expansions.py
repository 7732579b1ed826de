"""Expansions: which of them can only be text. The others may run a command or set a variable (bash(1), EXPANSION)."""

from __future__ import annotations

import re

_PARAMETER = re.compile(
    rb"\$\{#?(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*?$-])(?:(?::?[-+?]|##?|%%?|//?)[^`$\\\"'{}<>()]*)?\}"
)
_ARITHMETIC = re.compile(rb"\$(?:\(\(|\[)[0-9\s+*/%<>=!&|^~?:,()-]*(?:\)\)|\])")


def doubt_in(kind: str, written: bytes) -> str | None:
    """Return why an expansion is more than text, or None. ``written``: its inner substitutions taken out.

    ``${x@P}`` and ``${!x}`` run what ``x`` holds, ``${x:=…}`` sets it, and arithmetic evaluates names again and again.
    """
    if kind == "expansion" and not _PARAMETER.fullmatch(written):
        return f"the expansion {written.decode(errors='replace')!r} may run a command or set a variable"
    if kind == "arithmetic_expansion" and not _ARITHMETIC.fullmatch(written):
        return "arithmetic with names may run what the names hold"
    return None
