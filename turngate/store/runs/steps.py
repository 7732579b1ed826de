"""Steps: one model response and the results of its calls. Responses are unique by (run, step): no one pays twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update

from turngate.domain.agents.no_progress import Trail
from turngate.domain.contract import StepPlan
from turngate.domain.conversation.history import CLOSED_BY_REPAIR, closures
from turngate.domain.conversation.malformed import EMPTY_RESPONSE
from turngate.domain.conversation.messages import Message, ModelResponse, ToolResultPart, user_message
from turngate.domain.digest import derived_id
from turngate.domain.errors import ConflictError
from turngate.domain.tools.results import Failure
from turngate.store.clock import as_text, now
from turngate.store.connection import Connection, note
from turngate.store.events import events
from turngate.store.joined import parts
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, executions, messages, queued_messages, runs, subtree_usage
from turngate.store.tables import calls as calls_table
from turngate.store.tables import messages as messages_table
from turngate.store.tables import requests, steps
from turngate.store.tables import runs as runs_table
from turngate.store.together import Together, Writes

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_THIS = (steps.c.run_id == bindparam("run")) & (steps.c.step == bindparam("at_step"))
_POSITION = (
    select(runs_table, steps, queued_messages.WAITS_FOR_NEXT_STEP, queued_messages.WAITS)
    .select_from(
        runs_table.outerjoin(
            steps,
            (steps.c.run_id == runs_table.c.id) & steps.c.step.between(bindparam("first"), bindparam("at_step")),
        )
    )
    .where(runs_table.c.id == bindparam("run"))
)
_PLAN = update(steps).where(_THIS, steps.c.plan.is_(None)).values(plan=bindparam("planned"))
_CLOSE = (
    update(steps)
    .where(_THIS, steps.c.closed_at.is_(None))
    .values(closed_at=bindparam("at"), results_message_id=bindparam("head"), trail=bindparam("new_trail"))
)
_RESPOND = Together(runs.ADVANCE, messages_table, steps, guarded=True)
_ANSWER = Together(runs.COMPLETE, messages_table, steps, runs.MOVE_CONVERSATION, guarded=True)
_ANSWER_ALONE = Together(messages_table, steps, runs.MOVE_CONVERSATION)
_PLANNED_RESPONSE = Together(messages_table, steps, calls_table, requests)
_RESULTS = Together(_CLOSE, messages_table, runs.MOVE_HEAD, runs.MOVE_CONVERSATION, guarded=True)
_RESULT_AND_CLOSE = Together(executions.FINISH, calls.SETTLE, _CLOSE, messages_table, runs.MOVE_CONVERSATION)
_CLOSED_BY_RESULT = events.Change(
    ", head_message_id = :head",
    only_if="EXISTS (SELECT 1 FROM executions WHERE executions.run_id = runs.id AND executions.tool_call_id = :call "
    "AND executions.state = 'executing')",
)
_RECORD_PLAN = Together(_PLAN, calls_table, requests)
_OPEN = (
    select(messages_table, calls_table, steps.c.corrective)
    .select_from(
        steps.join(messages_table, messages_table.c.id == steps.c.assistant_message_id).outerjoin(
            calls_table, (calls_table.c.run_id == steps.c.run_id) & (calls_table.c.step == steps.c.step)
        )
    )
    .where(_THIS, steps.c.closed_at.is_(None))
    .order_by(calls_table.c.position)
)
# Locked where calls are to be closed: of two that do so, one waits here, and then finds the step closed.
_HELD_OPEN = _OPEN.with_for_update(of=steps)
_TRAIL = select(steps.c.trail).where(_THIS)
_SET_TRAIL = update(steps).where(_THIS).values(trail=bindparam("new_trail"))


@dataclass(frozen=True, kw_only=True)
class NewStep:
    """A step with its response, as it is recorded.

    ``plan``: stored with it; None: it is planned later. With the plan of a final response the step is stored as closed and the
    run as completed. ``corrective``: the user message that closes the step of a response that could not be used.
    ``cost_micros``: what it cost, in millionths; it counts against the run's budgets, as its tokens do. ``asked_at``: when the
    request was sent; None: no model was asked.
    """

    number: int
    response: ModelResponse
    plan: StepPlan | None = None
    corrective: str | None = None
    cost_micros: int = 0
    asked_at: datetime | None = None

    @property
    def is_final(self) -> bool:
        """Whether the run ends with it."""
        return self.plan is not None and self.plan.final


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A step that was just closed.

    ``messages``: its response, and the message that closes it. ``calls``: with their results, in the model's order.
    ``trail``: as it was stored with it.
    """

    messages: tuple[messages.NewMessage, messages.NewMessage]
    calls: tuple[calls.Call, ...]
    trail: Trail | None

    @property
    def head_message_id(self) -> str:
        """The message that closes it."""
        return self.messages[-1].id


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step. ``plan`` is None between storing the response and planning it; ``closed_at`` None while calls are open.

    ``corrective``: the message that tells the model why its response could not be used. ``trail``: JSON of a closed step's
    Trail; None: the run was not checked for progress. ``model_spec``: the model that was called, where ``model`` is the
    provider's name for it; None: no model was called (an external call). ``asked_at``: when the model was asked.
    """

    run_id: str
    step: int
    assistant_message_id: str
    results_message_id: str | None
    model: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    plan: str | None
    created_at: str
    closed_at: str | None
    corrective: str | None = None
    trail: str | None = None
    model_spec: str | None = None
    asked_at: str | None = None

    @property
    def decoded_trail(self) -> Trail:
        """Its trail, or an empty one."""
        return Trail() if self.trail is None else Trail.model_validate_json(self.trail)

    @property
    def stored_plan(self) -> StepPlan | None:
        """The plan as the workflow got it."""
        return None if self.plan is None else StepPlan.model_validate_json(self.plan)


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run is before a step.

    ``before``: the trail before the last two steps. ``previous``: the step before this one. ``stored``: this one; None: it
    has no stored response. ``has_messages``: a message waits for the run's next step. ``seen``: the run's number of events, if
    no message waits for it or the run after it: while it has no more, none does.
    """

    run: runs.Run
    before: Trail
    previous: Step | None
    stored: Step | None
    has_messages: bool
    seen: int | None


async def get(conn: Connection, run_id: str, step: int) -> Step | None:
    """Return one step, or None when its response is not stored yet."""
    query = select(steps).where(steps.c.run_id == run_id, steps.c.step == step)
    row = (await conn.execute(query)).mappings().one_or_none()
    return Step(**row) if row else None


async def position(conn: Connection, run_id: str, step: int) -> Position | None:
    """Return where a run is before this step, in one query; None: there is no such run."""
    rows: Any = (await conn.execute(_POSITION, {"run": run_id, "first": step - 2, "at_step": step})).all()
    if not rows:
        return None
    pairs = [parts(row, runs_table, steps) for row in rows]
    by_number = {each["step"]: Step(**each) for _run, each in pairs if each is not None}
    before = by_number.get(step - 2)
    run = runs.Run(**pairs[0][0] or {})
    *_columns, has_messages, has_any = rows[0]
    return Position(
        run=run,
        before=Trail() if before is None else before.decoded_trail,
        previous=by_number.get(step - 1),
        stored=by_number.get(step),
        has_messages=bool(has_messages),
        seen=None if has_any else run.event_count,
    )


async def of_run(conn: Connection, run_id: str) -> list[Step]:
    """Return the run's steps in order."""
    query = select(steps).where(steps.c.run_id == run_id).order_by(steps.c.step)
    return [Step(**row) for row in (await conn.execute(query)).mappings()]


async def record_response(conn: Connection, run: runs.Run, new: NewStep, *, last: bool = False) -> None:
    """Store the model's response as a message after the run's head. ``last``: nothing follows in the transaction.

    Raises:
        IntegrityError: sqlalchemy's, when (run, step) has a response already.
        ConflictError: the run has ended. An attempt that was thought lost must not move a conversation that continued.
    """
    writes = _response_writes(run, new)
    live, *_rows = await writes.run(conn, last=last and run.parent_run_id is None)  # what it used is counted above, too
    if not live:
        raise ConflictError(f"run {run.id} has ended; its response of step {new.number} came too late")
    used = subtree_usage.SubtreeUsage(tokens=writes.values["tokens"], cost_micros=writes.values["cost"])
    await subtree_usage.add(conn, run, used)
    _note_usage(conn, run, new)


async def record_unless_changed(
    conn: Connection,
    run: runs.Run,
    new: NewStep,
    new_events: Sequence[events.NewEvent],
    *,
    seen: int,
    planned: Sequence[calls.Call] = (),
    opened: Sequence[Request] = (),
) -> bool:
    """Store the response with its plan, last in the transaction; False, and nothing is stored, if the run has changed.

    ``planned``, ``opened``: the calls and requests of the plan. ``seen``: of
    :func:`turngate.store.events.events.append_unless_changed`. Raises IntegrityError as :func:`record_response`.
    """
    if run.parent_run_id is not None:
        return False
    writes = _response_writes(run, new)
    if new.is_final:
        writes, change = replace(writes, together=_ANSWER_ALONE), runs.COMPLETED
    else:
        rows = {**writes.rows, calls_table: [vars(each) for each in planned], requests: [vars(each) for each in opened]}
        writes, change = Writes(_PLANNED_RESPONSE, rows, writes.values), runs.ADVANCED
    if await events.append_unless_changed(conn, run.id, new_events, seen=seen, change=change, writes=writes):
        _note_usage(conn, run, new)
        return True
    return False


def _note_usage(conn: Connection, run: runs.Run, new: NewStep) -> None:
    response = new.response
    note(conn, "model.used", model=response.spec or run.model, usage=response.usage, cost_micros=new.cost_micros)


def _response_writes(run: runs.Run, new: NewStep) -> Writes:
    """Return what stores a response. The first of the counts is 0 if the run has ended."""
    step, response = new.number, new.response
    message = response_message(run, step, response.message)
    at = as_text(now())
    recorded = {
        "run_id": run.id,
        "step": step,
        "assistant_message_id": message.id,
        "model": response.model,
        "finish_reason": response.finish_reason,
        "input_tokens": response.usage.input_tokens,
        "output_tokens": response.usage.output_tokens,
        "plan": None if new.plan is None else new.plan.model_dump_json(),
        "created_at": at,
        "closed_at": at if new.is_final else None,
        "corrective": new.corrective,
        "model_spec": response.spec,
        "asked_at": None if new.asked_at is None else as_text(new.asked_at),
    }
    tokens = response.usage.input_tokens + response.usage.output_tokens
    values = {"run": run.id, "at_step": step, "tokens": tokens, "cost": new.cost_micros}
    values |= {"head": message.id, "at": at, "conversation": run.conversation_id}
    rows = {messages_table: [messages.row_of(message)], steps: [recorded]}
    return Writes(_ANSWER if new.is_final else _RESPOND, rows, values)


def response_message(run: runs.Run, step: int, message: Message) -> messages.NewMessage:
    """Return the message of a response. ``run``: as it was when its model was asked."""
    return _message(run, step, "assistant", run.head_message_id, message)


def correction_message(run: runs.Run, step: int, corrective: str | None) -> messages.NewMessage:
    """Return the message that closes a step without usable calls."""
    parent_id = derived_id("msg", run.id, str(step), "assistant")
    return _message(run, step, "results", parent_id, user_message(corrective or EMPTY_RESPONSE))


def _message(run: runs.Run, step: int, name: str, parent_id: str, message: Message) -> messages.NewMessage:
    return messages.NewMessage(
        id=derived_id("msg", run.id, str(step), name),
        parent_id=parent_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        step=step,
        message=message,
    )


def plan_writes(
    run_id: str, step: int, plan: StepPlan, planned: Sequence[calls.Call] = (), opened: Sequence[Request] = ()
) -> Writes:
    """Return what stores the plan with its calls and requests, so that a retry returns the same one.

    The first of their counts is 0 where there is a plan already.
    """
    rows = {calls_table: [vars(each) for each in planned], requests: [vars(each) for each in opened]}
    return Writes(_RECORD_PLAN, rows, {"run": run_id, "at_step": step, "planned": plan.model_dump_json()})


async def replace_plan(conn: Connection, run_id: str, step: int, plan: StepPlan) -> None:
    """Complete the plan of a final response, in the transaction that stored it."""
    query = update(steps).where(steps.c.run_id == run_id, steps.c.step == step)
    await conn.execute(query.values(plan=plan.model_dump_json()))


async def trail(conn: Connection, run_id: str, step: int) -> Trail:
    """Return the trail of a closed step; empty if it has none."""
    stored = (await conn.execute(_TRAIL, {"run": run_id, "at_step": step})).scalar_one_or_none()
    return Trail() if stored is None else Trail.model_validate_json(stored)


async def record_trail(conn: Connection, run_id: str, step: int, new_trail: Trail) -> None:
    """Store the trail of a closed step."""
    await conn.execute(_SET_TRAIL, {"run": run_id, "at_step": step, "new_trail": new_trail.model_dump_json()})


async def close(
    conn: Connection,
    run: runs.Run,
    step: int,
    open_calls: Failure | None,
    *,
    trail_of: Callable[[Sequence[calls.Call]], Trail | None] | None = None,
    is_last: Callable[[Trail | None], bool] | None = None,
) -> Closed | None:
    """Write the one message that closes a step and move the head to it; calls without a result get ``open_calls``.

    ``open_calls`` None: no call may be open. LookupError is raised then, and nothing is written.
    ``trail_of``: what returns the step's trail, from its calls with their results; None: it has none. ``is_last``: what tells
    whether nothing follows in the transaction of a step with this trail; None: something does. Returns None when there was
    nothing to close. Safe to repeat: a closed step stays as it is.
    """
    named = {"run": run.id, "at_step": step}
    rows: Any = (await conn.look(_OPEN, named)).all()
    if any(call is not None and call["result"] is None for _response, call in _with_calls(rows)):
        rows = (await conn.execute(_HELD_OPEN, named)).all()
    if not rows:
        return None
    assistant, step_calls, corrective = _opened(rows)
    if open_calls is None and any(call.result is None for call in step_calls):
        raise LookupError(f"step {step} of run {run.id!r} has open calls, so it can't be closed yet")
    open_calls = open_calls or CLOSED_BY_REPAIR
    if assistant.calls and corrective is None:
        step_calls = [await _settled(conn, call, assistant, open_calls) for call in step_calls]
    closed = _closed(run, step, _Opened(assistant, step_calls, corrective), open_calls, trail_of)
    writes = _close_writes(run, step, closed)
    is_open, *_moved = await writes.run(conn, last=is_last is not None and is_last(closed.trail))
    return closed if is_open else None  # None: another attempt has closed it since it was read


async def close_with_result(
    conn: Connection,
    run: runs.Run,
    step: int,
    result: Writes,
    finished: events.NewEvent,
    *,
    seen: int,
    trail_of: Callable[[Sequence[calls.Call]], Trail | None],
    is_last: Callable[[Trail | None], bool],
) -> Closed | None:
    """Store a handler's result, and close the step of which it is the last, last in the transaction.

    None, and nothing is written, if another call of the step is open, the execution has ended, the run has changed, or something
    has to follow. ``result``: of :func:`turngate.store.runs.executions.finish_writes`. ``seen``: of
    :func:`turngate.store.events.events.append_unless_changed`. ``trail_of``, ``is_last``: as those of :func:`close`.
    """
    rows: Any = (await conn.look(_OPEN, {"run": run.id, "at_step": step})).all()
    if not rows:
        return None
    opened = _opened(rows)
    opened = opened._replace(calls=[calls.with_result(each, result) for each in opened.calls])
    if any(each.result is None for each in opened.calls):
        return None
    closed = _closed(run, step, opened, CLOSED_BY_REPAIR, trail_of)
    if not is_last(closed.trail):
        return None
    close_writes = _close_writes(run, step, closed)
    writes = Writes(_RESULT_AND_CLOSE, close_writes.rows, {**close_writes.values, **result.values})
    if await events.append_unless_changed(conn, run.id, [finished], seen=seen, change=_CLOSED_BY_RESULT, writes=writes):
        return closed
    return None


class _Opened(NamedTuple):
    """An open step: its response, its calls, and the answer to a response that can't be used."""

    response: Message
    calls: list[calls.Call]
    corrective: str | None


def _opened(rows: Sequence[Any]) -> _Opened:
    pairs = _with_calls(rows)
    step_calls = [calls.Call(**call) for _response, call in pairs if call is not None]
    return _Opened(messages.from_row(pairs[0][0] or {}), step_calls, rows[0][-1])


def _with_calls(rows: Sequence[Any]) -> list[list[dict[str, Any] | None]]:
    return [parts(row, messages_table, calls_table) for row in rows]


def _closed(
    run: runs.Run,
    step: int,
    opened: _Opened,
    open_calls: Failure,
    trail_of: Callable[[Sequence[calls.Call]], Trail | None] | None,
) -> Closed:
    """Return the step as it is closed. ``opened``: with every result."""
    assistant, step_calls, corrective = opened
    response = response_message(run, step, assistant)
    if assistant.calls and corrective is None:
        content = results_message(assistant, step_calls, open_calls)
        message = _message(run, step, "results", response.id, content)
    else:
        message = correction_message(run, step, corrective)
    new_trail = None if trail_of is None else trail_of(step_calls)
    return Closed(messages=(response, message), calls=tuple(step_calls), trail=new_trail)


def _close_writes(run: runs.Run, step: int, closed: Closed) -> Writes:
    """Return what closes a step. The first of the counts is 0 if it is closed already."""
    values = {
        "run": run.id,
        "at_step": step,
        "at": as_text(now()),
        "head": closed.head_message_id,
        "conversation": run.conversation_id,
        "new_trail": None if closed.trail is None else closed.trail.model_dump_json(),
    }
    return Writes(_RESULTS, {messages_table: [messages.row_of(closed.messages[-1])]}, values)


async def _settled(conn: Connection, call: calls.Call, assistant: Message, open_call: Failure) -> calls.Call:
    """Return the call with its result; one that the model left open is settled."""
    if call.result is not None or all(part.tool_call_id != call.tool_call_id for part in assistant.calls):
        return call
    digest = await calls.settle(conn, call.run_id, call.tool_call_id, open_call, nonce=call.nonce)
    if digest is not None:
        payload = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "kind": open_call.kind}
        closed = {**payload, **events.digests(result={call.tool_call_id: digest})}
        await events.append(conn, call.run_id, [("call.closed", closed)])
        return replace(call, result=open_call.model_dump_json())
    return (
        await calls.get(conn, call.run_id, call.tool_call_id) or call
    )  # settled since it was read: that result counts


def results_message(assistant: Message, step_calls: Sequence[calls.Call], open_calls: Failure) -> Message:
    """Return the results of the step's calls, in the model's order. ``open_calls``: the result of those that are not there."""
    stored = {call.tool_call_id: call for call in step_calls}
    parts: list[ToolResultPart] = []
    for part in closures(assistant.calls, open_calls):
        call = stored.get(part.tool_call_id)
        if call is not None:
            part = ToolResultPart(  # noqa: PLW2901 - the real result replaces the closure
                tool_call_id=part.tool_call_id,
                tool_name=part.tool_name,
                result=call.settled_result or part.result,
                edited_input=call.edited_input,
                whole_result=call.whole_result,
            )
        parts.append(part)
    return Message(role="tool", parts=tuple(parts))
