"""What people see of a file or search call: the diff of a change, the text that was read, rows of what was found. Pure.

Each takes decoded parameters and the result. A failure is shown by the default, as the engine does without us.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

from turngate import DiffBlock, Failure, Ok, Presentation, TableBlock, TextBlock
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
        TextBlock(text=f"{value['path']}: {_count(value['total'], 'entry', 'entries')}"),
        columns=("name", "type", "size"),
        rows=value["entries"],
        more=value["total"] - len(value["entries"]),
    )


def show_matches(_params: object, result: Ok | Failure) -> Presentation:
    """Show the matching lines as a table, after how much was searched."""
    if isinstance(result, Failure):
        return default_presentation(result)
    value: dict[str, Any] = result.value
    searched = _count(value["files_searched"], "file", "files")
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
    count = _count(len(_members(value, member)), noun, f"{noun}s")
    return f"the first {count}" if value["truncated"] else count


def _members(value: dict[str, Any], member: str) -> list[Any]:
    members: list[Any] = value[member]
    return members


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


# Unified diffs for operators and results. Pure; bounded in time and size.


CONTEXT_LINES = 3
MAX_COMPARISONS = 1_000_000
"""Lines times lines beyond which the changed middle is shown as one block: difflib takes worse than that squared."""
MAX_MATCHES = 20_000
"""Pairs of equal lines beyond which it is, too: a file of two lines in turn takes difflib seconds. Ordinary code has few."""

_Opcode = tuple[str, int, int, int, int]


def split_lines(text: str) -> list[str]:
    r"""Return the lines with their ends. Only ``\n`` ends a line, as in every editor and in git.

    ``str.splitlines`` also splits at form feeds and U+2028, which would make our line numbers disagree with theirs.
    """
    *lines, last = text.split("\n")
    whole = [line + "\n" for line in lines]
    return [*whole, last] if last else whole


def unified_diff(path: str, before: str | None, after: str, *, max_chars: int) -> str:
    """Return what changes in git's format; empty when nothing does. ``before`` None: a new file.

    Clipped to about ``max_chars`` characters at a line's end, saying how many lines are left out.
    """
    old, new = split_lines(before or ""), split_lines(after)
    if before is not None and old == new:
        return ""
    header = [
        "--- /dev/null\n" if before is None else f"--- {_label('a/' + path)}\n",
        f"+++ {_label('b/' + path)}\n",
    ]
    return _clip([*header, *_hunks(old, new)], max_chars)


def _label(name: str) -> str:
    # A file name may hold line feeds, and so forge lines of the diff that an operator reads.
    return name if name.isprintable() else json.dumps(name)


class _Trimmed(SequenceMatcher[str]):
    """Compares only what lies between the common beginning and the common end."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        super().__init__(None, old, new)
        self._old, self._new = old, new

    def get_opcodes(self) -> list[_Opcode]:  # type: ignore[override]  # typeshed's Literal tags
        old, new = self._old, self._new
        shorter = min(len(old), len(new))
        start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
        left = shorter - start
        end = next((i for i in range(left) if old[-1 - i] != new[-1 - i]), left)
        old_end, new_end = len(old) - end, len(new) - end
        opcodes: list[_Opcode] = [("equal", 0, start, 0, start)]
        between = old[start:old_end], new[start:new_end]
        if len(between[0]) * len(between[1]) > MAX_COMPARISONS or _matches(*between) > MAX_MATCHES:
            opcodes.append(("replace", start, old_end, start, new_end))
        else:
            middle = SequenceMatcher(None, *between)
            opcodes += [(tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in middle.get_opcodes()]
        opcodes.append(("equal", old_end, len(old), new_end, len(new)))
        return [code for code in opcodes if code[1] < code[2] or code[3] < code[4]]


def _matches(old: list[str], new: list[str]) -> int:
    """Return how many pairs of equal lines difflib looks at, again and again. It leaves out lines that are very common."""
    common = SequenceMatcher(None, (), new).bpopular  # type: ignore[attr-defined]  # documented; not in typeshed
    counts = Counter(new)
    return sum(counts[line] for line in old if line not in common)


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in _Trimmed(old, new).get_grouped_opcodes(CONTEXT_LINES):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from (_line(" ", line) for line in old[old_start:old_end])
                continue
            yield from (_line("-", line) for line in old[old_start:old_end])
            yield from (_line("+", line) for line in new[new_start:new_end])


def _range(start: int, end: int) -> str:
    # POSIX diff: lines count from 1, and an empty range names the line before it.
    return f"{start + 1 if end > start else start},{end - start}"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _clip(lines: list[str], max_chars: int) -> str:
    used = 0
    for index, line in enumerate(lines):
        used += len(line)
        if used > max_chars:
            # A backslash begins a note in every unified diff; any other sign would be a line of the file.
            return "".join(lines[:index]) + f"\\ … {len(lines) - index} more lines of this diff are not shown\n"
    return "".join(lines)
