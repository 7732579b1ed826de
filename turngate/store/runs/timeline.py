"""When what happened in a run: of steps, calls and requests the times alone, not what they say. For pictures of long runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Final, Literal

from sqlalchemy import select

from turngate.domain.requests import ExecutionState, RequestKind, RequestStatus, Verb
from turngate.store.database import Connection
from turngate.store.runs.calls import Disposition
from turngate.store.tables import calls, events, executions, requests, steps

MOST_EVENTS: Final = 200
"""The newest failed requests to the model, pauses and resumptions, together."""
_EVENTS: Final = ("model.retrying", "run.paused", "run.resumed")


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """A step. ``created_at``: when its response was stored. ``closed_at``: None while calls are open."""

    step: int
    model: str
    input_tokens: int
    output_tokens: int
    created_at: str
    closed_at: str | None


@dataclass(frozen=True, kw_only=True)
class CallTimes:
    """A call. ``state``, ``started_at``, ``ended_at``, ``attempts``: of its execution; None: it was not started."""

    step: int
    position: int
    tool_call_id: str
    tool_name: str
    disposition: Disposition
    child_run_id: str | None
    settled_at: str | None
    state: ExecutionState | None
    started_at: str | None
    ended_at: str | None
    attempts: int | None


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """A request. ``decided_at``: when it ended; None while it is pending. ``verb``: None: no one decided it."""

    id: str
    tool_call_id: str
    kind: RequestKind
    status: RequestStatus
    verb: Verb | None
    decided_by: str | None
    created_at: str
    decided_at: str | None


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """What held a run up, or let it continue. ``step``: whose request to the model failed; None for a pause."""

    kind: Literal["model.retrying", "run.paused", "run.resumed"]
    at: str
    step: int | None
    by: str | None


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """All of a run, each kind in the order of its beginning."""

    steps: list[StepTimes]
    calls: list[CallTimes]
    requests: list[RequestTimes]
    interruptions: list[Interruption]


async def of_run(conn: Connection, run_id: str) -> RunTimes:
    """Return the times of a run, by four statements however long it is."""
    step_rows = await conn.execute(
        select(*(steps.c[each.name] for each in fields(StepTimes)))
        .where(steps.c.run_id == run_id)
        .order_by(steps.c.step)
    )
    call_rows = await conn.execute(
        select(
            *(calls.c[each] for each in ("step", "position", "tool_call_id", "tool_name", "disposition")),
            *(calls.c[each] for each in ("child_run_id", "settled_at")),
            *(executions.c[each] for each in ("state", "started_at", "ended_at", "attempts")),
        )
        .select_from(
            calls.outerjoin(
                executions,
                (executions.c.run_id == calls.c.run_id) & (executions.c.tool_call_id == calls.c.tool_call_id),
            )
        )
        .where(calls.c.run_id == run_id)
        .order_by(calls.c.step, calls.c.position)
    )
    request_rows = await conn.execute(
        select(*(requests.c[each.name] for each in fields(RequestTimes)))
        .where(requests.c.run_id == run_id)
        .order_by(requests.c.created_at, requests.c.id)
    )
    event_rows = await conn.execute(
        select(events.c.type, events.c.created_at, events.c.payload)
        .where(events.c.run_id == run_id, events.c.type.in_(_EVENTS))
        .order_by(events.c.run_seq.desc())
        .limit(MOST_EVENTS)
    )
    return RunTimes(
        steps=[StepTimes(**row) for row in step_rows.mappings()],
        calls=[CallTimes(**row) for row in call_rows.mappings()],
        requests=[RequestTimes(**row) for row in request_rows.mappings()],
        interruptions=[_interruption(*row) for row in reversed(event_rows.all())],
    )


def _interruption(
    kind: Literal["model.retrying", "run.paused", "run.resumed"], at: str, payload_text: str
) -> Interruption:
    payload = json.loads(payload_text)
    return Interruption(kind=kind, at=at, step=payload.get("step"), by=payload.get("by"))
