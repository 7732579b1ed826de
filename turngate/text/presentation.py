"""A call's arguments and presentation as lines of a terminal. Nothing in them can move the cursor."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from pydantic import JsonValue
from rich.cells import cell_len, chop_cells

from turngate.domain.text import json_text
from turngate.domain.text.diff import DiffLine, LineKind, read_diff
from turngate.domain.text.folds import CHANGES, more_lines
from turngate.domain.text.sentences import counted
from turngate.domain.tools.defaults import Default, default_rows
from turngate.domain.tools.presentation import (
    Block,
    CommandBlock,
    DiffBlock,
    JsonBlock,
    Presentation,
    TableBlock,
    TextBlock,
)
from turngate.text.plain_text import Piece, plain, plain_line

DIFF_STYLE: Final[Mapping[LineKind, str]] = {"added": "green", "removed": "red", "hunk": "cyan"}
_SIGNS: Final[Mapping[str, LineKind]] = {"+": "added", "-": "removed"}
_CHANGE_STYLES: Final = frozenset(style for kind, style in DIFF_STYLE.items() if kind in CHANGES)
WIDEST_CELL: Final = 60
_GAP: Final = "  "


def exact_arguments(raw_input: str) -> Iterator[Piece]:
    """Yield the arguments, one member a line, every number and string as it was written; raw text if it is not JSON."""
    parsed = json_text.parse(raw_input)
    yield from plain(raw_input if parsed is None else json_text.dump(parsed.tree, indent=2)).split("\n")
    if parsed is not None and parsed.doubled:
        doubled = plain_line(", ".join(parsed.doubled))
        yield (f"given twice, and readers differ on which one counts: {doubled}", "bold red")
        yield (f"the exact text: {plain_line(raw_input)}", "red")


def default_lines(defaults: Sequence[Default]) -> Iterator[Piece]:
    """Yield what a call leaves out, a line for each, to follow its arguments."""
    for each in default_rows(defaults):
        label = plain_line(f"{each.label}: {each.text}" if each.text else each.label)
        yield (f"{label}  ({each.words})", "yellow")


def first_lines(presentation: Presentation, limit: int) -> Iterator[Piece]:
    """Yield the first ``limit`` lines of a presentation, and how many more there are."""
    lines = presentation_lines(presentation)
    yield from islice(lines, limit)
    if more := list(lines):
        is_diff = any(isinstance(block, DiffBlock) for block in presentation)
        yield (f"… {more_lines(len(more), sum(map(_is_change, more)) if is_diff else None)}", "dim")


def _is_change(piece: Piece) -> bool:
    return isinstance(piece, tuple) and piece[1] in _CHANGE_STYLES


def presentation_lines(presentation: Presentation) -> Iterator[Piece]:
    """Yield every line of a presentation, each without a line feed in it."""
    for block in presentation:
        yield from _block_lines(block)


def on_one_line(presentation: Presentation) -> str | None:
    """Return a presentation that is one line of text, or JSON, as one line; None for every other."""
    match presentation:
        case (TextBlock(text=text),) if "\n" not in text.strip():
            return plain_line(text)
        case (JsonBlock(value=value),):
            return plain_line(json.dumps(value, ensure_ascii=False))
        case _:
            return None


def diff_lines(lines: Iterable[DiffLine]) -> Iterator[Piece]:
    """Yield a diff's lines in their colours. Without a hunk around it, a line has that of its sign, but for names of files."""
    for line in lines:
        is_bare = line.kind == "file" and not line.text.startswith(("--- ", "+++ "))
        kind = _SIGNS.get(line.text[:1], line.kind) if is_bare else line.kind
        yield (plain(line.text.removesuffix("\r")), DIFF_STYLE.get(kind, ""))


def _block_lines(block: Block) -> Iterator[Piece]:
    match block:
        case TextBlock():
            style = "yellow" if block.tone == "warning" else ""
            yield from ((line, style) if style else line for line in _lines(block.text))
        case DiffBlock():
            yield from diff_lines(read_diff(block.diff.rstrip("\n")).lines)
        case CommandBlock():
            yield from ((line, "bold") for line in _lines(shlex.join(block.argv)))
        case TableBlock():
            yield from _table_lines(block)
        case JsonBlock():
            yield from _lines(json.dumps(block.value, ensure_ascii=False, indent=2))


def _lines(text: str) -> Iterator[str]:
    yield from plain(text.rstrip("\n")).split("\n")


def _table_lines(table: TableBlock) -> Iterator[Piece]:
    rows = [[_cell(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for at, row in enumerate(rows):
        yield (_aligned(row, widths), "bold" if at == 0 else "")
    if table.more > 0:
        yield (f"… {counted(table.more, 'more row')}", "dim")


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    # By cells, not characters: a Chinese letter is two wide.
    return _GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cell(cell: JsonValue) -> str:
    if cell is None:
        return "-"
    text = plain_line(cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False))
    return text if cell_len(text) <= WIDEST_CELL else chop_cells(text, WIDEST_CELL - 1)[0] + "…"
