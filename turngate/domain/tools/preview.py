"""What a tool lets people see before it runs: a diff, a command, or text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from turngate.domain.text.diff import read_diff

PreviewKind = Literal["diff", "command", "text"]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What will change, for the operator's eyes.

    ``text`` is a unified diff (``diff``), plain text (``text``), or the words of a command as a JSON array
    (``command``; make it with :meth:`command`): a word may hold spaces and line breaks, and the operator must see which
    is which.
    """

    kind: PreviewKind
    text: str

    @staticmethod
    def command(*words: str) -> Preview:
        """Return the preview of a command that runs with exactly these words as its argument vector."""
        return Preview(kind="command", text=json.dumps(words, ensure_ascii=False))


LINE_CHARS: Final = 160
"""Of a preview's line in a list."""
HEAD_CHARS: Final = 2_000
"""Of a preview, in which that line is looked for."""


def first_line(kind: str | None, text: str) -> str:
    """Return what a list shows of a preview: its first line with words; of a diff, the first line that changes; "": none."""
    head = text[:HEAD_CHARS]
    if kind == "command":
        words = (
            [json.loads(word[0]) for word in _WORD.finditer(head) if word["end"]] if head.startswith("[") else [head]
        )
        lines = [shlex.join(words)]
    elif kind == "diff":
        lines = [line.text for line in read_diff(head).lines if line.kind in {"added", "removed"}]
    else:
        lines = head.split("\n")
    line = next((line.strip() for line in lines if line.strip(" +-\t\r")), "")
    return line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 1]}…"


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
