"""Globs whose parts are separated by ``/``: ``*`` stays inside a part, ``**`` as a whole part is any number of parts.

``?`` is one character of a part, ``[…]`` one of a set. Case is significant; a leading dot is nothing special. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WILD = frozenset("*?[")


def has_wildcard(pattern: str) -> bool:
    """Tell whether the pattern is more than a plain text."""
    return not _WILD.isdisjoint(pattern)


@lru_cache(maxsize=1024)
def glob_regex(pattern: str) -> re.Pattern[str]:
    """Return the expression that a whole text must fit. ``a/**`` fits ``a`` itself too.

    Raises ValueError, saying the fix, for ``**`` beside other characters and for a set that is not closed.
    """
    parts = pattern.split("/")
    out: list[str] = []
    glue = ""  # the slash owed before the next part, if there is one
    for index, part in enumerate(parts):
        if part == "**":
            if index == len(parts) - 1:
                out.append(r"(?:/.*)?" if glue else ".*")
            else:
                out.append(f"{glue}(?:.*/)?")
                glue = ""
            continue
        out.append(glue + _part_regex(part))
        glue = "/"
    return re.compile("".join(out), re.DOTALL)


def _part_regex(part: str) -> str:
    if "**" in part:
        raise ValueError(f"'**' must be alone between slashes, not as in {part!r}: write 'a/**/b', or '*' for one part")
    out: list[str] = []
    index = 0
    while index < len(part):
        char = part[index]
        index += 1
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[":
            end = part.find("]", index + 2 if part[index : index + 1] == "!" else index + 1)
            if end < 0:
                raise ValueError(f"the '[' in {part!r} is not closed: write '[[]' for the character itself")
            out.append(_set_regex(part[index:end]))
            index = end + 1
        else:
            out.append(re.escape(char))
    return "".join(out)


def _set_regex(inside: str) -> str:
    negated, members = inside.startswith("!"), inside.removeprefix("!")
    escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", members)
    regex = f"[{'^' if negated else ''}{escaped}]"
    try:
        re.compile(regex)
    except re.error:
        raise ValueError(f"[{inside}] is not a set of characters: write it like [a-z] or [abc]") from None
    return f"(?!/){regex}"
