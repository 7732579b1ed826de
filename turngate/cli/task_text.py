"""What a run should do: an argument of the command, or what comes on stdin."""

from __future__ import annotations

import sys

from turngate.domain.errors import ConfigurationError, InvalidInputError


def task_text(task: str | None) -> str:
    """Return the task. ``task``: ``-`` and None stand for stdin, which for None must not be a terminal.

    Raises ConfigurationError without a task; InvalidInputError when nothing, or no UTF-8, comes on stdin.
    """
    if task not in {None, "-"}:
        return str(task)
    if task is None and sys.stdin.isatty():
        raise ConfigurationError(
            'say what the agent should do: `turngate run "…"`, or send it on stdin: `git diff | turngate run`'
        )
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"what came on stdin is not UTF-8 text, at byte {error.start:,}") from None
    if not text.strip():
        raise InvalidInputError("nothing came on stdin, which was to say what the agent should do")
    return text
