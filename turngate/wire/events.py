"""Events of runs, and the live progress of tools and models between them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from pydantic import Field, JsonValue

from turngate.domain.conversation.messages import Delta
from turngate.wire.people import Person, with_names
from turngate.wire.view import View

HEARTBEAT_SECONDS: Final = 5.0
"""Between two heartbeats of a stream on which nothing else happens."""


class EventView(View):
    """One event. ``seq``: its number among all events; ``run_seq``: its number in its run.

    ``payload``: as it is chained. ``people``: id → name, of those whom it names by id; left out where it names no one so.
    """

    seq: int
    run_seq: int
    run_id: str
    type: str
    payload: dict[str, JsonValue]
    created_at: str
    people: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)

    @property
    def named_payload(self) -> dict[str, JsonValue]:
        """The payload with names in place of ids."""
        return {name: with_names(value, self.people) for name, value in self.payload.items()}


class ProgressView(View):
    """Progress of a running tool. ``n``: its number in the call, from 1; ``dropped``: how many before it were left out."""

    type: Literal["call.progress"] = "call.progress"
    run_id: str
    tool_call_id: str
    n: int
    payload: JsonValue
    dropped: int
    created_at: str


class DeltaView(View):
    """A part of a model's response while it streams. ``n``: its number in the attempt, from 1.

    ``attempt``: grows with each attempt at a step, not always by one. ``reset``: why every earlier delta of this step is
    void; None: they still count. ``dropped``: how many characters before it were left out. ``is_last``: with it, the deltas
    of the step add up to the stored response; it comes right before ``step.responded``, if anything was missing.
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
    is_last: bool = Field(default=False, exclude_if=operator.not_)


# The audit log: events with who caused them, and whether a hash chain is intact.


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Which events, all conditions together; None: no condition.

    ``run_id``: of this run; ``system``: events of no run. ``type``: with ``*`` for any characters, such as ``request.*``.
    ``actor``: who did it. ``tool``: about its calls or requests. ``since`` (inclusive), ``until`` (exclusive): when, aware.
    """

    run_id: str | None = None
    type: str | None = None
    actor: str | None = None
    tool: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class AuditItem(View):
    """One event. ``actor``: who caused it; None: the engine. ``run_id``: ``system`` for an event without a run.

    ``payload``, ``people``: as in :class:`EventView`.
    """

    seq: int
    run_id: str
    run_seq: int
    type: str
    actor: Person | None
    payload: dict[str, JsonValue] = Field(default_factory=dict)
    created_at: str
    hash: str
    people: dict[str, str] = Field(default_factory=dict, exclude_if=operator.not_)


class ChainState(View):
    """Whether the hash chain of a run's events is intact. ``head``: the newest hash, for you to store elsewhere.

    ``broken_at``: the first event that does not fit, from 1, and ``problem`` says why; both None if the chain is intact.
    """

    run_id: str
    length: int
    head: str
    broken_at: int | None
    problem: str | None
