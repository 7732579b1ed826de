"""JSON values as text for people: a whole result, page by page or in a file, and what a call depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turngate.domain.text import json_text
from turngate.text.line_diff import clip, hunks, split_lines

PAGE_CHARS: Final = 20_000
SHOWN_CHARS: Final = 40_000
"""How much of a difference is shown."""


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

    The diff of a very long one is cut, and says so: each request shows what it depends on, whole.
    """
    if was is None or now is None or was == now:
        return None
    before, after = depends_on(was), depends_on(now)
    if before == after:  # a number and a text that reads like it
        before, after = was, now
    lines = ["--- when it was approved\n", "+++ now\n", *hunks(split_lines(f"{before}\n"), split_lines(f"{after}\n"))]
    return "".join(clip(lines, SHOWN_CHARS))


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
