"""What a tool lets people see before it runs: a diff, a command, or text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import JsonValue

from turngate.domain.text.diff import read_diff
from turngate.domain.text.folds import CHANGES, cut_line, more_lines

PreviewKind = Literal["diff", "command", "text", "warned"]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What will change, for the operator's eyes.

    ``text`` is a unified diff (``diff``), plain text (``text``), plain text whose first line is a warning (``warned``), or
    the words of a command as a JSON array (``command``; make it with :meth:`command`): a word may hold spaces and line
    breaks, and the operator must see which is which. ``depends_on``: what the preview was made of, such as path → SHA-256 of
    the bytes that it read. Of a tool with ``precondition="preview"`` it is compared with that of a preview that is made right
    before the call starts.
    """

    kind: PreviewKind
    text: str
    depends_on: JsonValue = None

    @staticmethod
    def command(*words: str) -> Preview:
        """Return the preview of a command that runs with exactly these words as its argument vector."""
        return Preview(kind="command", text=json.dumps(words, ensure_ascii=False))


def split_warning(kind: str | None, text: str) -> tuple[str, str]:
    """Return the warning with which a preview begins, and the rest; of another kind of preview, "" and all of it."""
    if kind != "warned":
        return "", text
    warning, _, rest = text.partition("\n")
    return warning, rest.lstrip("\n")


LINE_CHARS: Final = 160
"""Of a preview's line in a list."""
HEAD_CHARS: Final = 2_000
"""Of a preview, in which that line is looked for."""
BREAK: Final = "\n"
MARKED: Final = ("\n+", "\n-")
"""How a line of a diff that changes begins, and so does a line with a file's name."""


@dataclass(frozen=True, kw_only=True)
class PreviewSize:
    """How much a preview is. ``breaks``: between its lines. ``marked``: lines after the first that begin with ``+`` or ``-``."""

    chars: int
    breaks: int
    marked: int

    @staticmethod
    def of(text: str) -> PreviewSize:
        """Return the size of a preview; a database counts the same."""
        lines = text.rstrip(BREAK)
        return PreviewSize(chars=len(lines), breaks=lines.count(BREAK), marked=sum(map(lines.count, MARKED)))


def first_line(kind: str | None, head: str, size: PreviewSize) -> tuple[str, str]:
    """Return what a list shows of a preview, and how many lines more there are; "": none.

    That is its first line with words; of a diff, the first line that changes; "" where the head has none. ``head``: its first
    characters, as people see them; ``size``: of all of it. In the names of a diff's later files, the lines that begin with a sign
    count as changed, too.
    """
    lines, names = _lines(kind, head[:HEAD_CHARS])
    line = next((line.strip() for line in lines if line.strip(" +-\t\r")), "")
    if kind == "command" or size.breaks == 0:
        return cut_line(line, LINE_CHARS, more=max(0, size.chars - HEAD_CHARS)), ""
    more, listed = size.breaks + 1, int(line != "")
    changed = size.marked - names - listed if kind == "diff" else None
    return cut_line(line, LINE_CHARS), more_lines(more - listed, changed)


def _lines(kind: str | None, head: str) -> tuple[list[str], int]:
    """Return the lines that a list may show, and how many after the first name files with a sign."""
    if kind == "command":
        words = [json.loads(word[0]) for word in _WORD.finditer(head) if word["end"]]
        return [shlex.join(words if head.startswith("[") else [head])], 0
    if kind != "diff":
        return head.split(BREAK), 0
    lines = read_diff(head).lines
    names = sum(line.kind == "file" and line.text.startswith(("+", "-")) for line in lines[1:])
    return [line.text for line in lines if line.kind in CHANGES], names


_WORD: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+(?P<end>"?)')
"""A text of JSON: of a long command the last one may be cut."""

Previewer = Callable[[Any, Path | None], Preview | None]
"""``(params, workspace)`` → what will change. Runs at planning, and must not change anything."""


def command_words(preview_text: str) -> list[str]:
    """Return the words of a stored ``command`` preview; text that is no JSON array of strings is one word."""
    try:
        words = json.loads(preview_text)
    except (ValueError, RecursionError):
        return [preview_text]
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return words
    return [preview_text]
