"""A conversation's past, told to an editor that loads it: messages, calls and their results, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from acp import (
    start_tool_call,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import ToolCallStatus

from turngate.domain.conversation.messages import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turngate.domain.tools.results import Failure, wire_text
from turngate.frontends.acp import render as show
from turngate.frontends.acp.calls import Calls
from turngate.wire.runs import MessageView


def updates_of(messages: Sequence[MessageView], calls: Calls) -> Iterator[Any]:
    """Yield the session updates that tell these messages; ``calls`` takes note of those that are sent."""
    parts = [(message, part) for message in messages for part in message.parts]
    answered = {_known(message, part) for message, part in parts if isinstance(part, ToolResultPart)}
    for message, part in parts:
        if isinstance(part, ToolCallPart):
            known = _known(message, part)
            arguments = show.arguments(part.input, message.defaults.get(part.tool_call_id, ()))
            calls.know(known, arguments, is_settled=known in answered)
    for message in messages:
        for part in message.parts:
            update = _update(message, part)
            if update is not None:
                yield update


def _known(message: MessageView, part: ToolCallPart | ToolResultPart) -> str:
    return Calls.id_of(message.run_id or "", part.tool_call_id)


def _update(message: MessageView, part: Part) -> Any:
    match part:
        case TextPart() if message.role == "user":
            return update_user_message_text(part.text)
        case TextPart() if message.role == "assistant":
            return update_agent_message_text(part.text)
        case ReasoningPart() if part.text:
            return update_agent_thought_text(part.text)
        case ToolCallPart():
            return start_tool_call(
                _known(message, part),
                show.title(part.tool_name),
                kind="other",
                status="pending",
                content=show.arguments(part.input, message.defaults.get(part.tool_call_id, ())),
                raw_input=show.as_json(part.input),
            )
        case ToolResultPart():
            status: ToolCallStatus = "failed" if isinstance(part.result, Failure) else "completed"
            text = wire_text(part.result, edited_input=part.edited_input)
            return update_tool_call(
                _known(message, part), status=status, content=show.arguments(text), raw_output=show.as_json(text)
            )
        case _:
            return None
