"""Messages of a conversation."""

from __future__ import annotations

from turngate.domain.conversation.messages import Part, Role
from turngate.wire.view import View


class MessageView(View):
    """A message with its place in the conversation."""

    id: str
    parent_id: str | None
    run_id: str | None
    step: int | None
    created_at: str
    role: Role
    parts: tuple[Part, ...]
