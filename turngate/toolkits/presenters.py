"""What people see of a file or search call: the diff of a change, the text that was read, rows of what was found. Pure.

Each takes decoded parameters and the result. A failure is shown by the default, as the engine does without us.
"""

from __future__ import annotations

from typing import Any

from turngate import DiffBlock, Failure, Ok, Presentation, TableBlock, TextBlock
from turngate.domain.text.sentences import counted
from turngate.domain.tools.presentation import default_presentation


def show_change(_params: object, result: Ok | Failure) -> Presentation:
    """Show what a write or an edit changed."""
    if isinstance(result, Failure):
        return default_presentation(result)
    diff = str(result.value["diff"])
    return (DiffBlock(diff=diff) if diff else TextBlock(text=f"{result.value['path']} stays as it was"),)


def show_text(_params: object, result: Ok | Failure) -> Presentation:
    """Show which lines were read, then the lines."""
    if isinstance(result, Failure):
        return default_presentation(result)
    value: dict[str, Any] = result.value
    first, last = value["start_line"], value["start_line"] + value["lines"] - 1
    read = f"lines {first} to {last}" if value["lines"] else "no lines"
    which = TextBlock(text=f"{value['path']}: {read} of {value['total_lines']}")
    return (which, TextBlock(text=value["text"])) if value["text"] else (which,)


def show_entries(_params: object, result: Ok | Failure) -> Presentation:
    """Show a directory as a table."""
    if isinstance(result, Failure):
        return default_presentation(result)
    value: dict[str, Any] = result.value
    return _listed(
        TextBlock(text=f"{value['path']}: {counted(value['total'], 'entry', 'entries')}"),
        columns=("name", "type", "size"),
        rows=value["entries"],
        more=value["total"] - len(value["entries"]),
    )


def show_matches(_params: object, result: Ok | Failure) -> Presentation:
    """Show the matching lines as a table, after how much was searched."""
    if isinstance(result, Failure):
        return default_presentation(result)
    value: dict[str, Any] = result.value
    searched = counted(value["files_searched"], "file")
    summary = f"{_first(value, 'matches', 'matching line')} in {searched} searched, {value['files_skipped']} skipped"
    return _listed(TextBlock(text=summary), columns=("path", "line", "text"), rows=value["matches"])


def show_paths(_params: object, result: Ok | Failure) -> Presentation:
    """Show the paths that were found as a table."""
    if isinstance(result, Failure):
        return default_presentation(result)
    paths = [{"path": path} for path in _members(result.value, "paths")]
    return _listed(TextBlock(text=_first(result.value, "paths", "file")), columns=("path",), rows=paths)


def _listed(summary: TextBlock, *, columns: tuple[str, ...], rows: list[dict[str, Any]], more: int = 0) -> Presentation:
    if not rows:
        return (summary,)
    cells = tuple(tuple(row[name] for name in columns) for row in rows)
    return (summary, TableBlock(columns=columns, rows=cells, more=more))


def _first(value: dict[str, Any], member: str, noun: str) -> str:
    count = counted(len(_members(value, member)), noun)
    return f"the first {count}" if value["truncated"] else count


def _members(value: dict[str, Any], member: str) -> list[Any]:
    members: list[Any] = value[member]
    return members
