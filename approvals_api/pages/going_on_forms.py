"""What the forms of a fork and of a dry replay say, read alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from approvals_api.runs.overrides import Changes, listed
from turngate.domain.errors import InvalidInputError

MAX_STEP: Final = 2**31 - 1


def changes_of(typed: Mapping[str, str]) -> Changes:
    """Return what the new run is given of its own; an empty control says nothing."""
    return Changes(
        instructions=text_of(typed, "instructions") or None,
        tools=listed(word_of(typed, "tools")),
        policy=text_of(typed, "policy") or None,
        plain=typed.get("plain") == "yes",
    )


def text_of(typed: Mapping[str, str], name: str) -> str:
    """Return a text as it was typed, with the line ends of this side."""
    return typed.get(name, "").replace("\r\n", "\n")


def word_of(typed: Mapping[str, str], name: str) -> str | None:
    """Return a control's one line, None when it is empty."""
    return typed.get(name, "").strip() or None


def step_of(typed: Mapping[str, str]) -> int | None:
    """Return the step that was chosen, None for none; raises InvalidInputError for what is no number of one."""
    text = typed.get("step", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_STEP)) and 1 <= int(text) <= MAX_STEP:
        return int(text)
    message = "the number of a closed step"
    raise InvalidInputError(message, errors=[{"pointer": "/step", "message": message}])
