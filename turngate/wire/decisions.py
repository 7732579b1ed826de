"""Decisions: the one that won, and the answer to one that was sent."""

from __future__ import annotations

from pydantic import JsonValue

from turngate.domain.requests import Outcome, RequestStatus, Verb
from turngate.wire.view import View


class DecisionView(View):
    """The answer that won a request. ``args``: exact JSON text."""

    id: str
    verb: Verb
    args: str | None
    message: str
    outcome: Outcome | None
    decided_by: str
    decided_at: str


class DecisionResult(View):
    """The answer to a submitted decision. ``status``: None while it waits for a worker (202).

    ``pending``: it counts as one approval of several that the request needs.
    """

    request_id: str
    decision_id: str
    status: RequestStatus | None


# The answer to many decisions sent at once: one for each.


class DecidedItem(View):
    """What happened to one item. ``status``: the HTTP status that it would have had alone.

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
