"""Decisions: the one that counts, and the response to one that was sent."""

from __future__ import annotations

from pydantic import Field, JsonValue

from turngate.domain.requests import RequestStatus, Resolution, Verb
from turngate.wire.people import Person
from turngate.wire.view import View


class DecisionView(View):
    """The decision that settled a request. ``args``: exact JSON text.

    ``looked_ms``, ``seen_percent``: how long it was shown, and how much of the call was on the screen, as the browser or
    terminal says: no proof. None: not known. ``unseen_secrets``: where in the arguments that run (JSON pointers) are secrets that
    the person did not have revealed before they decided.
    """

    id: str
    verb: Verb
    args: str | None
    message: str
    outcome: Resolution | None
    decided_by: Person
    decided_at: str
    looked_ms: int | None = None
    seen_percent: int | None = None
    unseen_secrets: list[str] = Field(default_factory=list)


# The response to many decisions sent at once.


class DecidedItem(View):
    """What happened to one item. ``status``: the HTTP status that it would have had alone.

    ``request_status``: None if ``problem`` (RFC 9457) says what is wrong. ``starts_at``: as in a single response.
    """

    request_id: str
    status: int
    decision_id: str | None
    request_status: RequestStatus | None
    starts_at: str | None = None
    problem: dict[str, JsonValue] | None


class DecidedItems(View):
    """One result for each item, in the order they were sent."""

    items: list[DecidedItem]


# The response to one decision.


class DecisionResult(View):
    """The response to a submitted decision. ``status``: the request's.

    ``pending``: the request needs more approvals than this one. ``starts_at``: when the approved call starts; until then the
    approval can be taken back. None: at once, or nothing starts. ``grant_id``: the grant that came with it. ``answered``: what
    happened to each request that waited, if the decision answers these too.
    """

    request_id: str
    decision_id: str
    status: RequestStatus
    starts_at: str | None = None
    grant_id: str | None = None
    answered: list[DecidedItem] = Field(default_factory=list)
