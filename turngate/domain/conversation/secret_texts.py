"""The secret texts that a message holds: neither a view nor a model's words while they come may show them elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Callable

from turngate.domain.conversation.messages import (
    FilePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turngate.domain.tools.secrets import MIN_CHARS, credentials_of
from turngate.domain.tools.tool import UNDECLARED, ToolManifest

ToolOf = Callable[[ToolCallPart | ToolResultPart], ToolManifest | None]
"""A call or a result → the declaration of its tool; None: not known."""


def secret_texts(message: Message, tool_of: ToolOf) -> frozenset[str]:
    """Return the secrets that are worth looking for in other texts: in calls, in results, and what looks like a credential."""
    texts: set[str] = set()
    for part in message.parts:
        match part:
            case ToolCallPart():
                texts |= (tool_of(part) or UNDECLARED).masked_input(part.input).values
            case ToolResultPart():
                tool = tool_of(part) or UNDECLARED
                texts |= tool.masked_result(part.result, frozenset())[1]
                texts |= frozenset() if part.edited_input is None else tool.masked_input(part.edited_input).values
            case TextPart() | ReasoningPart():
                texts |= credentials_of(part.text)
            case FilePart():
                pass
    return frozenset(each for each in texts if len(each) >= MIN_CHARS)
