"""Words for what became of a long conversation: summarised, cut short, carried over; and why it was not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turngate.cli.plain_text import plain_line
from turngate.domain.conversation.summaries import not_summarised


def context_said(kind: str, said: Mapping[str, Any]) -> str:
    """Return what an event ``context.*`` says."""
    match kind:
        case "context.compacted":
            return f"{_messages(said)} summarised by {_plain(said['model'])} ({_tokens(said)})"
        case "context.trimmed":
            return f"{_messages(said)} left out ({_tokens(said)})"
        case "context.carried_over":
            of = f"run {_plain(said['from_run_id'])} up to step {_plain(said['step'])}"
            return f"begins with a summary of {of}, written by {_plain(said['model'])}"
        case _:
            why = not_summarised(str(said["reason"]), error_class=_plain(said["error_class"] or ""))
            return f"the conversation is not summarised: {why}"


def _messages(said: Mapping[str, Any]) -> str:
    count = int(said["messages"])
    of_provider = "the provider refused the conversation as too long: " if said["forced"] else ""
    return f"{of_provider}{count} earlier message{'' if count == 1 else 's'}"


def _tokens(said: Mapping[str, Any]) -> str:
    return f"about {int(said['tokens_before']):,} tokens before, {int(said['tokens_after']):,} now"


def _plain(value: object) -> str:
    return plain_line(str(value), 200)
