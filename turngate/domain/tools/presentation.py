"""What a person sees of a call and its result, in place of raw JSON: blocks that page and terminal know how to draw.

Pure. Values come from agents and tools: code that draws a block must treat every text in it as hostile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from turngate.domain.text.folds import left_out_note
from turngate.domain.tools.results import MAX_DEPTH, Failure, Ok, is_deeper


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextBlock(_Block):
    """Plain text, line breaks kept. ``tone``: a ``warning``, like an exit code of 1, replaces "succeeded"."""

    type: Literal["text"] = "text"
    text: str
    tone: Literal["plain", "warning"] = "plain"


class DiffBlock(_Block):
    """A unified diff."""

    type: Literal["diff"] = "diff"
    diff: str


class CommandBlock(_Block):
    """A command as its argument vector: a word may hold spaces, and a person must see which is which."""

    type: Literal["command"] = "command"
    argv: tuple[str, ...]


class TableBlock(_Block):
    """Rows of scalars. ``more``: rows that were left out."""

    type: Literal["table"] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[JsonValue, ...], ...]
    more: int = 0


class JsonBlock(_Block):
    """A JSON value, indented."""

    type: Literal["json"] = "json"
    value: JsonValue


Block = Annotated[TextBlock | DiffBlock | CommandBlock | TableBlock | JsonBlock, Field(discriminator="type")]
Presentation = tuple[Block, ...]
PRESENTATION: TypeAdapter[Presentation] = TypeAdapter(Presentation)

Presenter = Callable[[Any, Ok | Failure], Presentation]
"""Decoded parameters and result → blocks. Runs in the worker once the call is settled; one that raises, or shows too
much, gives way to the default."""

MAX_BYTES: Final = 64 * 1024
"""Most bytes of JSON that are stored of one presentation."""
MAX_TEXT_CHARS: Final = 20_000
MAX_ROWS: Final = 100
MAX_COLUMNS: Final = 12
MAX_BLOCKS: Final = 20
_CELLS_OF_A_TEXT: Final = 50
"""A cell may be as long as this part of a text."""

_UNSHOWABLE: Final[Presentation] = (TextBlock(text="This result cannot be shown here."),)
"""For values nested deeper than a result may be, and numbers longer than Python writes out."""


def default_presentation(result: Ok | Failure) -> Presentation:
    """Return how a result is shown when its tool says nothing: whole (within the bounds), one text, a table, or JSON.

    A table is made of a list of flat objects; the other fields follow as JSON. A failure is its reason, then its fields,
    those of several lines (partial output) as text.
    """
    try:
        return bounded(_failure(result) if isinstance(result, Failure) else _success(result.value))
    except (ValueError, RecursionError):
        return _UNSHOWABLE


def warning_in(result: Ok | Failure | None, presentation: Presentation | None) -> str:
    """Return the first warning of a result that is no failure; empty: it has none."""
    if not isinstance(result, Ok):
        return ""
    warnings = (each.text for each in presentation or () if isinstance(each, TextBlock) and each.tone == "warning")
    return next(warnings, "")


def bounded(presentation: Presentation) -> Presentation:
    """Return the presentation cut to what is stored: at most ``MAX_BYTES`` of JSON, and each cut says so.

    Texts are cut to ``MAX_TEXT_CHARS``, tables to ``MAX_ROWS`` rows, and all of them further until the whole fits. Half
    surrogate pairs, which no store can hold, become U+FFFD.
    """
    try:
        blocks = tuple(_spelled_out(block) for block in presentation[:MAX_BLOCKS])
        for halvings in range(MAX_TEXT_CHARS.bit_length()):
            cut = tuple(_cut(block, MAX_TEXT_CHARS >> halvings, max(1, MAX_ROWS >> halvings)) for block in blocks)
            if (left_out := len(presentation) - len(blocks)) > 0:
                cut = (*cut, TextBlock(text=f"… {left_out} more blocks are not shown"))
            if len(PRESENTATION.dump_json(cut)) <= MAX_BYTES:
                return cut
    except (ValueError, RecursionError):
        pass
    return _UNSHOWABLE


def _success(value: dict[str, JsonValue]) -> Presentation:
    text = value.get("value")
    if len(value) == 1 and isinstance(text, str):
        return (TextBlock(text=text),)
    tables = {name: table for name, member in value.items() if (table := _table(member)) is not None}
    if len(tables) != 1:
        return (JsonBlock(value=value),)
    [(name, table)] = tables.items()
    rest = {other: member for other, member in value.items() if other != name}
    return (table, JsonBlock(value=rest)) if rest else (table,)


def _failure(failure: Failure) -> Presentation:
    # A declared failure's reason is also one of its fields: once is enough.
    fields = {name: field for name, field in failure.fields.items() if field not in (failure.reason, "")}
    long = {name: field for name, field in fields.items() if isinstance(field, str) and "\n" in field}
    short = {name: field for name, field in fields.items() if name not in long}
    blocks: list[Block] = [TextBlock(text=failure.reason or failure.kind)]
    if short:
        blocks.append(JsonBlock(value=short))
    return (*blocks, *(TextBlock(text=f"{name}:\n{text}") for name, text in long.items()))


def _table(member: JsonValue) -> TableBlock | None:
    """Return a list of flat objects as a table, its columns in the order they first appear; None for anything else."""
    if not isinstance(member, list) or not member:
        return None
    columns: dict[str, None] = {}
    for item in member:
        if not isinstance(item, dict) or any(isinstance(cell, dict | list) for cell in item.values()):
            return None
        columns |= dict.fromkeys(item)
    if not 1 <= len(columns) <= MAX_COLUMNS:
        return None
    rows = tuple(tuple(item.get(name) for name in columns) for item in member if isinstance(item, dict))
    return TableBlock(columns=tuple(columns), rows=rows)


def _cut(block: Block, chars: int, rows: int) -> Block:
    match block:
        case TextBlock():
            return block.model_copy(update={"text": _cut_text(block.text, chars)})
        case DiffBlock():
            return DiffBlock(diff=_cut_lines(block.diff, chars))
        case CommandBlock():
            return CommandBlock(argv=_cut_words(block.argv, chars))
        case TableBlock():
            return _cut_table(block, rows, max(1, chars // _CELLS_OF_A_TEXT))
        case JsonBlock():
            text = _json_text(block.value)
            if len(text) > chars:
                return TextBlock(text=_cut_text(text, chars))
            return JsonBlock(value=json.loads(_whole_pairs(text)))


def _spelled_out(block: Block) -> Block:
    """Return JSON that will not fit as its text, once: writing out a large value again for each halving takes long.

    Raises ValueError when it nests too deep: Python 3.14 would write it, in time that grows with the square of the levels.
    """
    if not isinstance(block, JsonBlock):
        return block
    if is_deeper(block.value, MAX_DEPTH):
        raise ValueError(f"it nests deeper than {MAX_DEPTH} levels")
    text = _json_text(block.value)
    return TextBlock(text=text) if len(text) > MAX_TEXT_CHARS else block


def _json_text(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _cut_text(text: str, chars: int) -> str:
    start = _whole_pairs(text[:chars])
    return start if len(text) <= chars else f"{start}\n… {len(text) - chars:,} more characters are not shown"


def _cut_lines(diff: str, chars: int) -> str:
    if len(diff) <= chars:
        return _whole_pairs(diff)
    start = _whole_pairs(diff[: diff.rfind("\n", 0, chars) + 1])
    return start + left_out_note(diff[len(start) :].removesuffix("\n").split("\n"))


def _cut_words(argv: Sequence[str], chars: int) -> tuple[str, ...]:
    words: list[str] = []
    for at, word in enumerate(argv):
        if chars <= 0 or at == MAX_ROWS:
            return (*words, f"… {len(argv) - at:,} more words are not shown")
        words.append(_cut_text(word, chars))
        chars -= len(word)
    return tuple(words)


def _cut_table(table: TableBlock, rows: int, chars: int) -> TableBlock:
    width = min(MAX_COLUMNS, max([len(table.columns), *(len(row) for row in table.rows)]))
    columns = [*table.columns, *[""] * width][:width]
    if any(len(row) > width for row in table.rows) or len(table.columns) > width:
        columns[-1] = f"{columns[-1]} …"
    rows_shown = tuple(tuple(_cut_cell(cell, chars) for cell in row[:width]) for row in table.rows[:rows])
    return TableBlock(
        columns=tuple(_cut_line(name, chars) for name in columns),
        rows=tuple((*row, *[None] * (width - len(row))) for row in rows_shown),
        more=table.more + len(table.rows) - len(rows_shown),
    )


def _cut_cell(cell: JsonValue, chars: int) -> JsonValue:
    if isinstance(cell, dict | list):
        cell = json.dumps(cell, ensure_ascii=False)
    elif isinstance(cell, int) and len(str(cell)) > chars:
        cell = str(cell)
    return _cut_line(cell, chars) if isinstance(cell, str) else cell


def _cut_line(text: str, chars: int) -> str:
    start = _whole_pairs(text[:chars])
    return start if len(text) <= chars else f"{start}…"


def _whole_pairs(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
