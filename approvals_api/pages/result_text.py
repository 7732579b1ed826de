"""JSON values as text for people: a whole result, page by page or in a file, and what a call depends on."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import unified_diff
from typing import Final

from turngate.domain.text import json_text

PAGE_CHARS: Final = 20_000
COMPARED_CHARS: Final = 20_000
COMPARED_LINES: Final = 150
"""How much of two texts is compared: finding the difference takes more than the square of their lines."""


@dataclass(frozen=True, kw_only=True)
class TextPage:
    """A page of a long text. ``start``, ``end``: characters from 0, ``end`` exclusive; None: no page on that side."""

    text: str
    start: int
    end: int
    total: int
    previous: int | None
    next: int | None


def readable(body: str) -> str:
    """Return a result's JSON text for people: a bare string as it is, anything else with one member per line."""
    parsed = json_text.parse(body)
    if parsed is None:
        return body
    tree = parsed.tree
    if isinstance(tree, dict) and list(tree) == ["value"] and isinstance(tree["value"], str):
        return tree["value"]
    try:
        return json_text.dump(tree, indent=2)
    except RecursionError:  # writing goes less deep than reading
        return body


def depends_on(precondition: str, *, indented: bool = True) -> str:
    """Return what a call depends on, as its request keeps it (JSON), for people."""
    parsed = json_text.parse(precondition)
    match None if parsed is None else parsed.tree:
        case {"precondition_failed": str(error), **rest} if not rest:
            return f"could not be determined ({error})"
        case str(text):
            return text
        case _:
            return readable(precondition) if indented else precondition


def what_changed(was: str | None, now: str | None) -> str | None:
    """Return how two stored preconditions differ, as a unified diff of what people read; None: nothing to compare.

    Long ones are cut, and say so: if they differ only after the cut, a note says that.
    """
    if was is None or now is None or was == now:
        return None
    before, after = (_lines(depends_on(each)) for each in (was, now))
    if before == after:  # a number and a text that reads like it
        before, after = _lines(was), _lines(now)
    if before == after:
        return "\\ They differ beyond what is shown here."
    return "\n".join(unified_diff(before, after, "when it was approved", "now", lineterm="", n=3))


def _lines(text: str) -> list[str]:
    # Lines end at line feeds alone: any other character that ends one somewhere is shown for what it is.
    lines = text[:COMPARED_CHARS].split("\n")
    first_lines = lines[:COMPARED_LINES]
    left_out = len(text) - len("\n".join(first_lines))
    return [*first_lines, f"… {left_out:,} more characters are not shown"] if left_out else first_lines


def page_of(text: str, offset: int) -> TextPage:
    """Return the page that begins at this character, the last one when the text ends before it."""
    start = offset if offset < len(text) else max(0, (len(text) - 1) // PAGE_CHARS * PAGE_CHARS)
    end = min(len(text), start + PAGE_CHARS)
    return TextPage(
        text=text[start:end],
        start=start,
        end=end,
        total=len(text),
        previous=max(0, start - PAGE_CHARS) if start > 0 else None,
        next=end if end < len(text) else None,
    )
