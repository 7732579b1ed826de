"""The answer to many decisions sent at once: one for each."""

from __future__ import annotations

from pydantic import JsonValue

from turngate.domain.runs.requests import RequestStatus
from turngate.wire.view import View


class DecidedItem(View):
    """What became of one item. ``status``: the HTTP status that it would have had alone.

    ``request_status``: None while it waits for a worker (202), and where ``problem`` (RFC 9457) says what is wrong.
    """

    request_id: str
    status: int
    decision_id: str | None
    request_status: RequestStatus | None
    problem: dict[str, JsonValue] | None


class DecidedItems(View):
    """One answer for each item, in the order they were sent."""

    items: list[DecidedItem]
