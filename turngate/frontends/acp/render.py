"""What an editor shows of values from agents and tools: as they are, and never as Markdown. Pure.

Editors draw text as Markdown, in which a value could pass for a heading, a link or one of our own sentences; so every value
is in a fence that it cannot close, with invisible characters as markers.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, assert_never

from acp import text_block, tool_content, tool_diff_content
from acp.schema import (
    ContentToolCallContent,
    FileEditToolCallContent,
    TerminalToolCallContent,
    ToolCallLocation,
    ToolKind,
)

from turngate.domain.text.hidden_text import pieces
from turngate.domain.text.json_text import without_repeats
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
from turngate.domain.tools.preview import command_words
from turngate.domain.tools.tool import NAME_PATTERN
from turngate.frontends.acp.diffs import Hunk, hunks

Kind = ToolKind
OPENING: Final = frozenset("{[")
CLOSING: Final = frozenset("}]")
# The closing quote may be missing: otherwise a text of `"\"\"\"…` is read to its end from each of its quotes.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+')

Content = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent


def marked(text: str) -> str:
    """Return the text with every hidden character as ``⟨U+001B⟩``; newlines and tabs stay."""
    return "".join(f"⟨U+{ord(piece):04X}⟩" if hidden else piece for piece, hidden in pieces(text.replace("\r\n", "\n")))


def fenced(text: str, language: str = "text") -> str:
    """Return a Markdown code block that shows the text as it is, whatever back quotes it has."""
    marked_text = marked(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", marked_text)), default=0))
    return f"{fence}{language}\n{marked_text}\n{fence}"


def paragraph(text: str) -> Content:
    """Return one of our own sentences, which holds no value from elsewhere."""
    return tool_content(text_block(text))


def value(text: str, language: str = "text") -> Content:
    """Return a value, fenced."""
    return tool_content(text_block(fenced(text, language)))


def kind_of(effect: str) -> Kind:
    """Return what kind of call the editor shows, as far as a tool's effect says."""
    return "read" if effect == "read" else "other"


def title(tool_name: str, agents: str = "") -> str:
    """Return a tool's name as a title; what could not have been declared is not repeated there."""
    name = tool_name if NAME_PATTERN.fullmatch(tool_name) else "a tool that does not exist"
    return f"{agents}: {name}" if agents else name


def read(raw_input: str) -> str:
    """Return a call's arguments for reading: a line for each, and their exact text where they are no object."""
    arguments = as_json(raw_input)
    if not isinstance(arguments, dict):
        return raw_input
    return "\n".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in arguments.items()
    )


def arguments(raw_input: str, defaults: Sequence[Default] = ()) -> list[Content]:
    """Return a call's exact arguments: each number, text and doubled member as it was written, indented for reading.

    After them come ``defaults``: in what its tool gets something else.
    """
    besides = [f"{each.label}: {each.text} ({each.words})" for each in default_rows(defaults)]
    after = [value("\n".join(besides))] if besides else []
    try:
        json.loads(raw_input)
    except (ValueError, RecursionError):
        return [value(raw_input), *after]
    return [value(_indented(raw_input), "json"), *after]


def as_json(raw_input: str) -> Any:
    """Return the arguments decoded, or as their text where decoding would lose something: a digit, a doubled member."""
    try:
        return json.loads(raw_input, parse_float=_lossy, parse_constant=_lossy, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError):
        return raw_input


def preview(kind: str | None, text: str | None, *, directory: str) -> list[Content]:
    """Return what a tool says will change. A diff is one that the editor can draw, if it is whole."""
    if not text:
        return []
    if kind == "diff":
        return diff(text, directory=directory)
    return [value(shlex.join(command_words(text)), "sh")] if kind == "command" else [value(text)]


def diff(text: str, *, directory: str) -> list[Content]:
    """Return a unified diff, a piece for each hunk; its text where it is cut, or not what it promises to be."""
    pieces = hunks(text)
    if pieces is None:
        return [value(text, "diff")]
    return [tool_diff_content(_place(hunk, directory), marked(hunk.after), _before(hunk)) for hunk in pieces]


def locations(text: str | None, *, directory: str) -> list[ToolCallLocation]:
    """Return where a unified diff changes something, for an editor that goes there; none for anything else."""
    return [
        ToolCallLocation(path=_place(hunk, directory), line=hunk.line or None) for hunk in (text and hunks(text)) or ()
    ]


def changed(presentation: Presentation | None, *, directory: str) -> list[ToolCallLocation]:
    """Return where a result says that something was changed."""
    diffs = [block.diff for block in presentation or () if isinstance(block, DiffBlock)]
    return [each for diff_text in diffs for each in locations(diff_text, directory=directory)]


def tells_what_ran(presentation: Presentation | None) -> bool:
    """Tell whether a result shows the change or the command itself, so that its preview is not needed beside it."""
    return any(isinstance(block, DiffBlock | CommandBlock) for block in presentation or ())


def _place(hunk: Hunk, directory: str) -> str:
    return str(PurePosixPath(directory) / marked(hunk.path))


def _before(hunk: Hunk) -> str | None:
    return None if hunk.before is None else marked(hunk.before)


def presented(presentation: Presentation | None, *, directory: str) -> list[Content]:
    """Return a result as its tool, or the default, shows it to people."""
    return [each for block in presentation or () for each in _block(block, directory)]


def _block(block: Block, directory: str) -> list[Content]:
    match block:
        case TextBlock():
            return [value(block.text)]
        case DiffBlock():
            return diff(block.diff, directory=directory)
        case CommandBlock():
            return [value(shlex.join(block.argv), "sh")]
        case TableBlock():
            return [value("\n".join(_rows(block)))]
        case JsonBlock():
            return [value(json.dumps(block.value, ensure_ascii=False, indent=2), "json")]
        case _:
            assert_never(block)


def _rows(table: TableBlock) -> Iterator[str]:
    rows: list[Sequence[object]] = [table.columns, *table.rows]
    texts = [["" if cell is None else str(cell).replace("\n", " ⏎ ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=False)]
    for row in texts:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
    if table.more:
        yield f"… {table.more:,} more rows"


def _lossy(digits: str) -> float:
    raise ValueError(digits)


def _indented(text: str) -> str:
    """Return JSON text with a line for each member; no token of it is read, and so none is changed."""
    lines: list[str] = []
    depth = 0
    tokens = _TOKEN.findall(text)
    for place, word in enumerate(tokens):
        empty = word in OPENING and tokens[place + 1] in CLOSING
        closes_empty = word in CLOSING and tokens[place - 1] in OPENING
        depth += (word in OPENING) - (word in CLOSING)
        line = "\n" + "  " * depth
        if word in CLOSING and not closes_empty:
            lines.append(line)
        lines.append(word)
        if (word in OPENING and not empty) or word == ",":
            lines.append(line)
        elif word == ":":
            lines.append(" ")
    return "".join(lines)
