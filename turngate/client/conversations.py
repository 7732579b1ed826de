"""Calls about conversations."""

from __future__ import annotations

import httpx

from turngate.client.calls import Call, get, segment
from turngate.wire.conversations import MessageView
from turngate.wire.view import Page


def list_messages(conversation_id: str) -> Call[list[MessageView]]:
    """Return a conversation from its first message to its newest closed one. Raises NotFoundError."""
    return get(f"/conversations/{segment(conversation_id)}/messages", _messages)


def _messages(response: httpx.Response) -> list[MessageView]:
    return Page[MessageView].model_validate_json(response.content).items
