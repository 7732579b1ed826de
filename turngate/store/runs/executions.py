"""Executions: one row per call that was let through, written before its handler starts (I2, I3)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import bindparam, case, exists, func, literal_column, select, tuple_, update
from sqlalchemy.engine import RowMapping

from turngate.domain.requests import ExecutionState, RequestStatus
from turngate.domain.text.folds import cut_line
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.joined import parts
from turngate.store.policy.policies import GLANCE
from turngate.store.requests.requests import Request
from turngate.store.requests.same_calls import may_have_happened
from turngate.store.runs.calls import SETTLE, Call, Disposition
from turngate.store.runs.runs import Run
from turngate.store.tables import calls, executions, requests, runs
from turngate.store.texts import beginning_of, is_sealed
from turngate.store.together import Together, Writes

SIBLING_CHARS: Final = 300

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_BEGIN = Together(executions)
_OF_CALL = select(executions).where(
    executions.c.run_id == bindparam("run"), executions.c.tool_call_id == bindparam("call")
)
FINISH: Final = (
    update(executions)
    .where(
        executions.c.run_id == bindparam("run"),
        executions.c.tool_call_id == bindparam("call"),
        executions.c.state == "executing",
    )
    .values(state=bindparam("to"), partial_output=bindparam("partial"), ended_at=bindparam("at"))
)
_FINISH_AND_SETTLE = Together(FINISH, SETTLE, guarded=True)
_FINISH_START = FINISH.where(executions.c.attempts == bindparam("of_start"))
_CALLS = calls.outerjoin(
    executions, (calls.c.run_id == executions.c.run_id) & (calls.c.tool_call_id == executions.c.tool_call_id)
)
_THIS_CALL = (calls.c.run_id == bindparam("run")) & (calls.c.tool_call_id == bindparam("call"))
_WITH_CALL = select(calls, executions).select_from(_CALLS).where(_THIS_CALL)
_OTHERS = calls.alias()
_IS_LAST_OPEN = ~exists().where(
    _OTHERS.c.run_id == calls.c.run_id,
    _OTHERS.c.step == calls.c.step,
    _OTHERS.c.tool_call_id != calls.c.tool_call_id,
    _OTHERS.c.result.is_(None),
)


_OTHER = executions.alias()
_AN_UNKNOWN_START = exists().where(
    (_OTHER.c.run_id != calls.c.run_id) | (_OTHER.c.tool_call_id != calls.c.tool_call_id), may_have_happened(_OTHER)
)
_MAY_HAVE_HAPPENED = _AN_UNKNOWN_START.where(
    calls.c.repeat_key != literal_column("''"),
    calls.c.edited_input.is_(None),
    _OTHER.c.repeat_key == calls.c.repeat_key,
)
_EDIT_MAY_HAVE_HAPPENED = select(_AN_UNKNOWN_START.where(_OTHER.c.repeat_key == bindparam("key"))).where(_THIS_CALL)
_ON_RECORD = (
    select(calls, executions, runs, requests, *GLANCE, _IS_LAST_OPEN, _MAY_HAVE_HAPPENED)
    .select_from(
        _CALLS.join(runs, runs.c.id == calls.c.run_id).outerjoin(
            requests, (requests.c.run_id == calls.c.run_id) & (requests.c.tool_call_id == calls.c.tool_call_id)
        )
    )
    .where(_THIS_CALL)
)

_THIS = calls.alias("this")
_RUNNING = func.coalesce(calls.c.edited_input, calls.c.input)
_SIBLINGS = (
    select(
        calls.c.tool_call_id,
        calls.c.tool_name,
        beginning_of(_RUNNING, SIBLING_CHARS).label("input"),
        case((is_sealed(_RUNNING), 0), else_=func.length(_RUNNING)).label("chars"),
        calls.c.disposition,
        calls.c.result.is_not(None).label("is_settled"),
        requests.c.id.label("request_id"),
        requests.c.status,
        executions.c.state,
    )
    .select_from(
        _THIS.join(calls, (calls.c.run_id == _THIS.c.run_id) & (calls.c.step == _THIS.c.step))
        .outerjoin(
            executions,
            (calls.c.run_id == executions.c.run_id) & (calls.c.tool_call_id == executions.c.tool_call_id),
        )
        .outerjoin(requests, (requests.c.run_id == calls.c.run_id) & (requests.c.tool_call_id == calls.c.tool_call_id))
    )
    .where(
        _THIS.c.run_id == bindparam("run"),
        _THIS.c.tool_call_id == bindparam("call"),
        calls.c.tool_call_id != bindparam("call"),
    )
    .order_by(calls.c.position, requests.c.created_at, requests.c.id)
    .limit(bindparam("most"))
)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One execution. ``attempts``: how often the handler was started. ``digest``: recomputed from the bytes that ran.

    ``worker``, ``build``: the process of its newest start; None: not known. ``repeat_key``: of the arguments that ran; empty: not
    known.
    """

    run_id: str
    tool_call_id: str
    state: ExecutionState
    digest: str
    decision_id: str | None
    idempotency_key: str
    attempts: int
    partial_output: str
    started_at: str
    ended_at: str | None
    worker: str | None = None
    build: str | None = None
    repeat_key: str = ""


@dataclass(frozen=True, kw_only=True)
class OnRecord:
    """All that is on record about a call.

    ``execution``: None while it was never let through. ``requests``: those about it, in no order. ``stored_rules``: what
    :func:`turngate.store.policy.policies.glance` returns at the same moment. ``is_last_open``: the other calls of its step have
    their results. ``may_have_happened``: the same call started before, in this run or any other, no one knows whether it took
    effect, and no one has approved it again since (I3).
    """

    run: Run
    call: Call
    execution: Execution | None
    requests: tuple[Request, ...]
    stored_rules: tuple[int, bool]
    is_last_open: bool
    may_have_happened: bool


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """Another call of the same step. ``input``: the beginning of what would run. ``is_settled``: it has its result.

    ``request_id``, ``status``: of its newest request; None: no one was asked. ``state``: of its execution; None: not started.
    """

    tool_call_id: str
    tool_name: str
    input: str
    disposition: Disposition
    is_settled: bool
    request_id: str | None
    status: RequestStatus | None
    state: ExecutionState | None


@dataclass(frozen=True, kw_only=True)
class NewExecution:
    """An execution as it begins. ``decision_id``: the decision that is redeemed; None: policy allowed the call.

    ``worker``, ``build``: the process that starts it; None: another program does. ``repeat_key``: as in :class:`Execution`.
    """

    run_id: str
    tool_call_id: str
    digest: str
    decision_id: str | None
    idempotency_key: str
    worker: str | None = None
    build: str | None = None
    repeat_key: str = ""


async def get(conn: Connection, run_id: str, tool_call_id: str) -> Execution | None:
    """Return the call's execution, or None when its handler was never let through."""
    row = (await conn.execute(_OF_CALL, {"run": run_id, "call": tool_call_id})).mappings().one_or_none()
    return Execution(**row) if row else None


async def of_calls(conn: Connection, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], Execution]:
    """Return the executions of these calls (run and id); none for a call whose handler was never let through."""
    key = tuple_(executions.c.run_id, executions.c.tool_call_id)
    rows = (await conn.execute(select(executions).where(key.in_(wanted)))).mappings()
    return {(row["run_id"], row["tool_call_id"]): Execution(**row) for row in rows}


async def with_call(conn: Connection, run_id: str, tool_call_id: str) -> tuple[Call, Execution | None] | None:
    """Return a call with its execution, if there is one, in one query; None when the call was never planned."""
    row = (await conn.execute(_WITH_CALL, {"run": run_id, "call": tool_call_id})).one_or_none()
    if row is None:
        return None
    call, execution = parts(row, calls, executions)
    return Call(**call or {}), None if execution is None else Execution(**execution)


async def on_record(conn: Connection, run_id: str, tool_call_id: str) -> OnRecord | None:
    """Return all that is on record about a call, in one query; None when it was never planned."""
    wanted = {"run": run_id, "call": tool_call_id, "at": as_text(now())}
    rows: Any = (await conn.look(_ON_RECORD, wanted)).all()
    if not rows:
        return None
    call, execution, run, _request = parts(rows[0], calls, executions, runs, requests)
    *_columns, version, has_grants, is_last_open, may_have_happened = rows[0]
    about_call = [parts(row, calls, executions, runs, requests)[-1] for row in rows]
    return OnRecord(
        run=Run(**run or {}),
        call=Call(**call or {}),
        execution=None if execution is None else Execution(**execution),
        requests=tuple(Request(**each) for each in about_call if each is not None),
        stored_rules=(version or 0, bool(has_grants)),
        is_last_open=bool(is_last_open),
        may_have_happened=bool(may_have_happened),
    )


async def edit_may_have_happened(conn: Connection, edited: Call) -> bool:
    """Tell whether an edited ``once`` call may have happened already, as :class:`OnRecord` does for one as the model made it."""
    if edited.effect != "once":
        return False
    wanted = {"run": edited.run_id, "call": edited.tool_call_id, "key": edited.running_key}
    return bool((await conn.execute(_EDIT_MAY_HAVE_HAPPENED, wanted)).scalar_one())


async def siblings(conn: Connection, run_id: str, tool_call_id: str, *, limit: int) -> list[Sibling]:
    """Return the other calls of the same step, in the model's order, each with its newest request."""
    rows = await conn.execute(_SIBLINGS, {"run": run_id, "call": tool_call_id, "most": limit})
    return list({row["tool_call_id"]: _sibling(row) for row in rows.mappings()}.values())


def _sibling(row: RowMapping) -> Sibling:
    columns = dict(row)
    more = max(0, columns.pop("chars") - len(row["input"]))
    return Sibling(**{**columns, "input": cut_line(row["input"], SIBLING_CHARS, more=more)})


async def of_run(conn: Connection, run_id: str) -> list[Execution]:
    """Return the run's executions, in order of start."""
    query = select(executions).where(executions.c.run_id == run_id).order_by(executions.c.started_at)
    return [Execution(**row) for row in (await conn.execute(query)).mappings()]


async def times(conn: Connection) -> list[tuple[datetime, datetime | None]]:
    """Return when handlers ran, in order of start: from, and to; None: one still runs."""
    query = select(executions.c.started_at, executions.c.ended_at).order_by(executions.c.started_at)
    rows = (await conn.execute(query)).all()
    return [(from_text(each.started_at), None if each.ended_at is None else from_text(each.ended_at)) for each in rows]


async def begin(conn: Connection, new: NewExecution) -> None:
    """Redeem: insert the row that lets the handler start. Raises IntegrityError on a second one for call or decision."""
    await begin_writes(new).run(conn)


def begin_writes(new: NewExecution) -> Writes:
    """Return what :func:`begin` writes."""
    row = {**vars(new), "state": "executing", "attempts": 1, "started_at": as_text(now())}
    return Writes(_BEGIN, {executions: [row]}, {})


async def begin_again(conn: Connection, lost: Execution, *, decision_id: str | None, worker: str, build: str) -> bool:
    """Start the handler once more: a ``read``/``idempotent`` retry, or a ``once`` call a person said did not happen.

    ``lost``: the execution as it was read. False when the row is no longer in that state.
    """
    query = (
        update(executions)
        .where(
            executions.c.run_id == lost.run_id,
            executions.c.tool_call_id == lost.tool_call_id,
            executions.c.state == lost.state,
        )
        .values(
            state="executing", attempts=executions.c.attempts + 1, decision_id=decision_id, worker=worker, build=build
        )
    )
    return (await conn.execute(query)).rowcount == 1


async def finish(
    conn: Connection, *, run_id: str, tool_call_id: str, state: ExecutionState, partial_output: str = ""
) -> bool:
    """End an execution that is in progress; False when it is not (someone else ended it)."""
    ended = {"run": run_id, "call": tool_call_id, "to": state, "partial": partial_output, "at": as_text(now())}
    return (await conn.execute(FINISH, ended)).rowcount == 1


def finish_writes(settled: Writes, state: ExecutionState) -> Writes:
    """Return what ends an execution as :func:`finish` does, and then settles its call. The first count is 0 if it had ended.

    ``settled``: of :func:`turngate.store.runs.calls.settle_writes`.
    """
    return Writes(_FINISH_AND_SETTLE, {}, {**settled.values, "to": state, "partial": ""})


async def finish_start(
    conn: Connection, execution: Execution, *, state: ExecutionState, partial_output: str = ""
) -> bool:
    """End this very start of an execution; False when it has ended, or another start has begun, since it was read."""
    named = {"run": execution.run_id, "call": execution.tool_call_id, "of_start": execution.attempts}
    ended = {**named, "to": state, "partial": partial_output, "at": as_text(now())}
    return (await conn.execute(_FINISH_START, ended)).rowcount == 1


async def stop(conn: Connection, *, run_id: str, tool_call_id: str, attempt: int, partial_output: str) -> bool:
    """Note that the handler of this start was stopped, and what it had said; False when it is not the one in progress."""
    query = (
        update(executions)
        .where(
            executions.c.run_id == run_id,
            executions.c.tool_call_id == tool_call_id,
            executions.c.state == "executing",
            executions.c.attempts == attempt,
        )
        .values(state="failed", partial_output=partial_output, ended_at=as_text(now()))
    )
    return (await conn.execute(query)).rowcount == 1


async def reopen_stopped(conn: Connection, *, run_id: str, tool_call_id: str) -> bool:
    """Take back that a handler was stopped, because its call is still open; False when it was not."""
    query = (
        update(executions)
        .where(executions.c.run_id == run_id, executions.c.tool_call_id == tool_call_id, executions.c.state == "failed")
        .values(state="executing", ended_at=None)
    )
    return (await conn.execute(query)).rowcount == 1


async def resolve_unknown(conn: Connection, *, run_id: str, tool_call_id: str, state: ExecutionState) -> bool:
    """Write what a person said about an unknown outcome; False when it is not unknown."""
    query = (
        update(executions)
        .where(
            executions.c.run_id == run_id, executions.c.tool_call_id == tool_call_id, executions.c.state == "unknown"
        )
        .values(state=state, ended_at=as_text(now()))
    )
    return (await conn.execute(query)).rowcount == 1
