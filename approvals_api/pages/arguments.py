"""How a call's arguments and results are shown: rows by name, formatted JSON, one line for lists.

Everything here returns plain text; the templates make it safe with the ``visible`` filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turngate.domain.origins.origin import Origin, Origins
from turngate.domain.text import json_text
from turngate.domain.text.folds import cut_line
from turngate.domain.text.json_pointers import tokens_of
from turngate.domain.text.json_text import JsonTree, NumberToken

ONE_LINE_CHARS = 160
_ONE_VALUE_CHARS = 60


@dataclass(frozen=True, kw_only=True)
class ArgumentRow:
    """One argument. ``kind``: ``text`` shows a string without quotes and escapes, every other kind shows JSON."""

    name: str
    kind: Literal["text", "number", "boolean", "null", "json"]
    text: str


@dataclass(frozen=True, kw_only=True)
class ArgumentsView:
    """A call's arguments for the eye. ``rows`` is None when the raw text is not a JSON object."""

    raw: str
    rows: tuple[ArgumentRow, ...] | None
    pretty: str
    doubled: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the raw text in UTF-8 bytes."""
        return len(self.raw.encode(errors="surrogatepass"))


def view(raw: str) -> ArgumentsView:
    """Return the arguments to show for the exact raw text."""
    parsed = json_text.parse(json_text.arguments_text(raw))
    if parsed is None:
        return ArgumentsView(raw=raw, rows=None, pretty=raw, doubled=())
    tree = parsed.tree
    rows = tuple(_row(name, value) for name, value in tree.items()) if isinstance(tree, dict) else None
    return ArgumentsView(raw=raw, rows=rows, pretty=json_text.dump(tree, indent=2), doubled=parsed.doubled)


def origins_by_argument(origins: Origins | None) -> dict[str, list[Origin]]:
    """Return the origins that have something to say, by the argument they are in, the doubtful ones first."""
    by_argument: dict[str, list[Origin]] = {}
    for each in sorted(origins.items if origins else (), key=lambda each: each.doubt is None):
        if each.words:
            name = tokens_of(each.at)[0] if each.at else ""
            by_argument.setdefault(name, []).append(each)
    return by_argument


def one_line(raw: str, more: int = 0) -> str:
    """Return the arguments in at most 160 characters, for lists: ``path=notes.txt, lines=3``. ``more``: as of cut_line."""
    parsed = json_text.parse(json_text.arguments_text(raw))
    if parsed is None or not isinstance(parsed.tree, dict):
        return cut_line(raw, ONE_LINE_CHARS, more=more)
    members = (f"{name}={cut_line(_flat(value), _ONE_VALUE_CHARS)}" for name, value in parsed.tree.items())
    return cut_line(", ".join(members), ONE_LINE_CHARS, more=more)


def clipped(text: str) -> str:
    """Return the beginning of a value, for places that also show the whole one."""
    return cut_line(text, _ONE_VALUE_CHARS)


def pretty(raw: str) -> str:
    """Return JSON with one member per line; text that is not JSON as it is."""
    parsed = json_text.parse(raw)
    return raw if parsed is None else json_text.dump(parsed.tree, indent=2)


def _row(name: str, value: JsonTree) -> ArgumentRow:
    match value:
        case str():
            return ArgumentRow(name=name, kind="text", text=value)
        case bool():
            return ArgumentRow(name=name, kind="boolean", text=json_text.dump(value))
        case None:
            return ArgumentRow(name=name, kind="null", text="null")
        case NumberToken(text):
            return ArgumentRow(name=name, kind="number", text=text)
        case _:
            return ArgumentRow(name=name, kind="json", text=json_text.dump(value, indent=2))


def _flat(value: JsonTree) -> str:
    return value if isinstance(value, str) else json_text.dump(value)
