"""The audit log: events with who did it, and whether a chain holds."""

from __future__ import annotations

from pydantic import Field, JsonValue

from turngate.wire.view import View


class AuditItem(View):
    """One event. ``actor``: who did it; None: the engine. ``run_id``: ``system`` for events of no run."""

    seq: int
    run_id: str
    run_seq: int
    type: str
    actor: str | None
    payload: dict[str, JsonValue] = Field(default_factory=dict)
    created_at: str
    hash: str


class ChainState(View):
    """Whether the hash chain of a run's events holds. ``head``: the newest hash, to be noted elsewhere.

    ``broken_at``: the first of its events that does not fit, from 1, and ``problem`` says why; both None when it holds.
    """

    run_id: str
    length: int
    head: str
    broken_at: int | None
    problem: str | None
