"""Events of runs, and what tools and models say in between."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from turngate.domain.conversation.messages import Delta
from turngate.wire.view import View


class EventView(View):
    """One event. ``seq``: its place among all events; ``run_seq``: within its run."""

    seq: int
    run_seq: int
    run_id: str
    type: str
    payload: dict[str, JsonValue]
    created_at: str


class ProgressView(View):
    """What a tool said while it ran. ``n``: place within its call, from 1; ``dropped``: how many before it were left out."""

    type: Literal["call.progress"] = "call.progress"
    run_id: str
    tool_call_id: str
    n: int
    payload: JsonValue
    dropped: int
    created_at: str


class DeltaView(View):
    """What a model said while its response was made. ``n``: place within the attempt, from 1; another attempt begins again.

    ``attempt``: grows from attempt to attempt at a step, and says nothing else. ``reset``: why everything said in this step
    before is void, if it is. ``dropped``: how many characters before it were left out. With the run's ``step.responded`` of
    this step the response is stored, and stands in place of all of it.
    """

    type: Literal["response.delta"] = "response.delta"
    run_id: str
    step: int
    attempt: int
    n: int
    deltas: tuple[Delta, ...]
    reset: str | None
    dropped: int
    created_at: str


# The audit log: events with who did it, and whether a chain holds.


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
