"""What a tool lets people see before it runs: a diff, a command, or text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
