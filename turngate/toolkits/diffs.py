"""Unified diffs for operators and results. Pure; bounded in time and size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import SequenceMatcher

CONTEXT_LINES = 3
MAX_COMPARISONS = 1_000_000
"""Lines times lines beyond which the changed middle is shown as one block: difflib takes worse than that squared."""

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
        if (old_end - start) * (new_end - start) > MAX_COMPARISONS:
            opcodes.append(("replace", start, old_end, start, new_end))
        else:
            middle = SequenceMatcher(None, old[start:old_end], new[start:new_end])
            opcodes += [(tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in middle.get_opcodes()]
        opcodes.append(("equal", old_end, len(old), new_end, len(new)))
        return [code for code in opcodes if code[1] < code[2] or code[3] < code[4]]


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
