"""What traces are made of: the events after a place in the log, with the rows that they are about; and who exports them.

One process exports at a time. It holds the export for a while, and moves the place forward when the collector has taken what
is before it; after a crash another one continues there, so spans arrive at least once (their ids are derived).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Table, insert, literal, or_, select, tuple_, update

from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.tables import calls, executions, messages, requests, runs, steps, trace_export

_ONLY: Final = 1
_THIS: Final = trace_export.c.id == _ONLY
_NO_ONE: Final = ""
_NOWHERE: Final = -1
"""The place of a store that has its salt, and whose traces were never exported."""

ENDED: Final = frozenset({"request.decided", "request.expired", "request.cancelled", "request.superseded"})
"""Types of the events that end a request."""
FAILED_REQUESTS: Final = frozenset({"model.retrying", "run.model_fell_back"})
"""Types of the events of a request to a model that failed."""
RESPONDED: Final = "step.responded"
RUN_ENDED: Final = "run.ended"


def _columns(table: Table, names: str) -> list[ColumnElement[Any]]:
    return [table.c[name] for name in names.split()]


_RUN: Final = select(
    *_columns(
        runs,
        "id conversation_id agent agent_version model status error_class step created_at ended_at parent_run_id path "
        "forked_from_run_id is_retry attended schedule_id replay_of_run_id tokens_used traceparent",
    )
)
_STEP: Final = select(
    *_columns(
        steps,
        "run_id step assistant_message_id model model_spec finish_reason input_tokens output_tokens created_at closed_at "
        "asked_at",
    )
)
_CALL: Final = select(
    *_columns(calls, "run_id tool_call_id step tool_name effect child_run_id"),
    *_columns(executions, "started_at ended_at attempts"),
).select_from(
    calls.join(
        executions, (executions.c.run_id == calls.c.run_id) & (executions.c.tool_call_id == calls.c.tool_call_id)
    )
)
_REQUEST: Final = select(
    *_columns(
        requests,
        "id run_id tool_call_id kind status tool_name rule risk created_at decision_id verb decided_by decided_at quorum "
        "rungs_climbed parked_at",
    ),
    calls.c.step,
).select_from(
    requests.outerjoin(calls, (calls.c.run_id == requests.c.run_id) & (calls.c.tool_call_id == requests.c.tool_call_id))
)
_CALL_KEY: Final = tuple_(calls.c.run_id, calls.c.tool_call_id)
_CONTENT: Final = select(*_columns(calls, "run_id tool_call_id input edited_input result manifest"))
_PARTS: Final = select(*_columns(messages, "id parts"))


@dataclass(frozen=True, kw_only=True)
class Export:
    """How far traces are exported. ``held_by``: the process that does it, until ``held_until``. ``salt``: of pseudonyms."""

    last_seq: int
    salt: str
    held_by: str
    held_until: str


@dataclass(frozen=True, kw_only=True)
class Happened:
    """Events, in order, and the rows that they are about, by their keys.

    ``content``: (run, call) → input, result, and whether its tool has secrets; message → parts. Empty unless it is wanted.
    """

    events: Sequence[events.Event]
    runs: Mapping[str, Row[Any]] = field(default_factory=dict)
    steps: Mapping[tuple[str, int], Row[Any]] = field(default_factory=dict)
    calls: Mapping[tuple[str, str], Row[Any]] = field(default_factory=dict)
    requests: Mapping[str, Row[Any]] = field(default_factory=dict)
    call_content: Mapping[tuple[str, str], Row[Any]] = field(default_factory=dict)
    message_parts: Mapping[str, str] = field(default_factory=dict)


async def export(conn: Connection) -> Export | None:
    """Return how far traces are exported; None: none was ever exported from this store."""
    columns = select(*_columns(trace_export, "last_seq salt held_by held_until"))
    row = (await conn.execute(columns.where(_THIS, trace_export.c.last_seq != _NOWHERE))).mappings().one_or_none()
    return None if row is None else Export(**row)


async def salt(conn: Connection) -> str | None:
    """Return the store's salt, with which names of people become pseudonyms outside it; None: it has none yet."""
    stored: str | None = (await conn.execute(select(trace_export.c.salt).where(_THIS))).scalar_one_or_none()
    return stored


async def add_salt(conn: Connection) -> None:
    """Give the store its salt, unless it has one. Raises IntegrityError as :func:`begin`."""
    await _insert(conn, _NOWHERE)


async def begin(conn: Connection, seq: int) -> None:
    """Export the events after this one, in a write transaction; where there is a place already, it stays.

    If two processes do so at the same moment, one gets IntegrityError; the place exists when it reads again.
    """
    begun = update(trace_export).where(_THIS, trace_export.c.last_seq == _NOWHERE).values(last_seq=seq)
    if (await conn.execute(begun)).rowcount == 0:
        await _insert(conn, seq)


async def _insert(conn: Connection, seq: int) -> None:
    known = select(trace_export.c.id).where(_THIS)
    row = select(literal(_ONLY), literal(seq), literal(secrets.token_hex(16)), literal(_NO_ONE), literal(""))
    names = ["id", "last_seq", "salt", "held_by", "held_until"]
    await conn.execute(insert(trace_export).from_select(names, row.where(~known.exists())))


async def hold(conn: Connection, by: str, *, at: datetime, until: datetime) -> bool:
    """Take or keep the export, in a write transaction; False while another process holds it."""
    free = or_(trace_export.c.held_by.in_([by, _NO_ONE]), trace_export.c.held_until < as_text(at))
    taken = update(trace_export).where(_THIS, free).values(held_by=by, held_until=as_text(until))
    return (await conn.execute(taken)).rowcount == 1


async def move(conn: Connection, by: str, *, seen: int, last_seq: int, until: datetime) -> bool:
    """Move the place forward, and keep the export; False when another process has taken it meanwhile."""
    mine = (_THIS, trace_export.c.held_by == by, trace_export.c.last_seq == seen)
    moved = update(trace_export).where(*mine).values(last_seq=last_seq, held_until=as_text(until))
    return (await conn.execute(moved)).rowcount == 1


async def release(conn: Connection, by: str) -> None:
    """Let another process export at once. Does nothing for one that doesn't hold the export."""
    await conn.execute(update(trace_export).where(_THIS, trace_export.c.held_by == by).values(held_by=_NO_ONE))


async def happened(conn: Connection, batch: Sequence[events.Event], *, with_content: bool) -> Happened:
    """Return these events with their rows: four queries, however many events there are."""
    of_runs = await _runs(conn, batch)
    step_keys = {pair for event in batch for pair in _steps_of(event, of_runs)}
    call_keys = {(event.run_id, call) for event in batch for call in settled_calls(event)}
    ended = {str(event.payload.get("request_id")) for event in batch if event.type in ENDED}
    of_steps = await _rows(conn, _STEP, tuple_(steps.c.run_id, steps.c.step), step_keys)
    of_calls = await _rows(conn, _CALL, _CALL_KEY, call_keys)
    of_requests = await _rows(conn, _REQUEST, requests.c.id, ended)
    answers = {row.assistant_message_id for row in of_steps} if with_content else ()
    content = await _rows(conn, _CONTENT, _CALL_KEY, call_keys if with_content else ())
    return Happened(
        events=batch,
        runs=of_runs,
        steps={(row.run_id, row.step): row for row in of_steps},
        calls={(row.run_id, row.tool_call_id): row for row in of_calls},
        requests={row.id: row for row in of_requests},
        call_content={(row.run_id, row.tool_call_id): row for row in content},
        message_parts={row.id: row.parts for row in await _rows(conn, _PARTS, messages.c.id, answers)},
    )


async def _runs(conn: Connection, batch: Sequence[events.Event]) -> dict[str, Row[Any]]:
    """Return the runs of events, and those that they were forked from."""
    run_ids = {event.run_id for event in batch if event.run_id != events.SYSTEM}
    own = {row.id: row for row in await _rows(conn, _RUN, runs.c.id, run_ids)}
    forked = {row.forked_from_run_id for row in own.values() if row.forked_from_run_id} - own.keys()
    return own | {row.id: row for row in await _rows(conn, _RUN, runs.c.id, forked)}


def settled_calls(event: events.Event) -> list[str]:
    """Return the calls that got their result with an event: its digests name them."""
    digests = event.payload.get("digests")
    results = digests.get("result") if isinstance(digests, Mapping) else None
    return [str(call) for call in results] if isinstance(results, Mapping) else []


def _steps_of(event: events.Event, of_runs: Mapping[str, Row[Any]]) -> Iterable[tuple[str, int]]:
    """Return the steps whose spans an event may end: a response's own request, and the step before it; a run's last step."""
    if event.type == RESPONDED:
        number = int(event.payload["step"])
        return [(event.run_id, number), (event.run_id, number - 1)]
    if event.type == RUN_ENDED and event.run_id in of_runs:
        return [(event.run_id, int(of_runs[event.run_id].step))]
    return []


async def _rows(conn: Connection, query: Any, key: ColumnElement[Any], among: Iterable[Any]) -> Sequence[Row[Any]]:
    wanted = sorted(among)
    return (await conn.execute(query.where(key.in_(wanted)))).all() if wanted else []
