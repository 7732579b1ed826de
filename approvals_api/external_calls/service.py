"""External calls: sent, started and reported by the program that runs them (ADR 0024)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from contextlib import aclosing, suppress
from typing import Final

from turngate.approvals_api.external_calls.views import external_view
from turngate.approvals_api.paging import decode_cursor, encode_cursor
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import start as start_run
from turngate.approvals_api.runs.order import CheckedOrder
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.errors import invalid
from turngate.approvals_api.validation.text import require_storable
from turngate.domain.digest import framed_sha256, repeat_key
from turngate.domain.errors import ConfigurationError, ConflictError, ForbiddenError, NotFoundError
from turngate.domain.tools.external import CONVERSATION, MAX_CONVERSATION_CHARS, agent_of_source
from turngate.domain.tools.results import MAX_DEPTH, REFUSALS, Failure, Ok, is_deeper
from turngate.readable_schema import MAX_SCHEMA_CHARS
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import calls, executions, external_calls, runs
from turngate.store.runs.external_calls import ExternalCall
from turngate.store.runs.runs import Run
from turngate.toolkits.json_schema import JsonSchemaParameters
from turngate.wire.external_calls import MAX_REPORT_CHARS, ExternalCallView, ExternalStart, ExternalState, RunOrder
from turngate.wire.orders import ExternalCallOrder, ReportOrder
from turngate.wire.view import Page

START_WAIT_SECONDS: Final = 10.0
ANSWERED: Final[frozenset[ExternalState]] = frozenset({"ready", "done"})
ENGINES_KINDS: Final = REFUSALS | {"unknown", "unknown_tool", "non_local_tool", "input_validation_error", "diverged"}
"""Failure kinds that say what the engine or a person did: no report may have one of them (I12)."""


async def send(
    services: Services, principal: Principal, order: ExternalCallOrder, *, wait_seconds: float
) -> ExternalCallView:
    """Send a call, and return its current state as soon as it is answered or ``wait_seconds`` are over.

    The same source and call id from the same sender is the same call, however often it is sent. What comes with the call,
    its context and conversation, stays as it was sent first.

    Raises:
        InvalidInputError: the tool's schema cannot be used, or something cannot be stored.
        ConflictError: ``call_id_reused``: the id was used for another call.
        ForbiddenError: ``beyond_token``: the token is not bound to this source.
        UnavailableError: Temporal or the store is away; nothing was changed.
    """
    principal.require("runs:write")
    await asyncio.to_thread(_check, order)  # a large schema takes seconds, and must not stop the other requests
    source, tool = order.source, order.tool.model_dump_json()
    declared = order.tool
    if declared.ask is False and not (principal.bounds.trust_ask or principal.may("admin")):
        # A program does not say that no one need be asked about its own call: a rule does, or the issuer of its token.
        declared = declared.model_copy(update={"ask": None})
    within = () if order.turn is None else (order.turn,)
    external = ExternalCall(
        run_id="",
        tool_call_id=order.tool_call_id,
        tool=declared.model_dump_json(),
        input=order.input,
        context=order.context,
        source_counts=not principal.machine if principal.bounds.sources is None else True,
        turn=order.turn,
        repeat_key=framed_sha256(principal.name, source, repeat_key(order.tool.name, order.input), *within),
        conversation=CONVERSATION.dump_json(order.conversation).decode() if order.conversation else None,
    )
    start_order = CheckedOrder(
        text=f"{source} asks to run {order.tool.name}.",
        conversation_id=None,
        workspace=None,
        model=None,
        key=f"external:{framed_sha256(principal.name, source, order.tool_call_id)}",
        fingerprint=framed_sha256(source, order.tool_call_id, tool, order.input),
        external=external,
    )
    try:
        run = await start_run.start_ordered(services, principal, agent_of_source(source), start_order)
    except ConflictError as conflict:
        if conflict.error_code != "idempotency_key_reused":
            raise
        raise ConflictError(
            f"{source!r} has sent another call under the id {order.tool_call_id!r}: send this one under a new id",
            code="call_id_reused",
        ) from None
    return await look(services, run.id, wait_seconds=wait_seconds)


async def look(
    services: Services, run_id: str, *, wait_seconds: float = 0, states: Collection[ExternalState] = ANSWERED
) -> ExternalCallView:
    """Return the call as soon as it is in one of these states or the time is over. Raises NotFoundError."""
    after = await services.feed.last_seq()  # subscribe first, look second
    view = await _view(services, run_id)
    if view.state in states or wait_seconds <= 0:
        return view
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(wait_seconds),
            aclosing(services.feed.follow(after, run_id, with_progress=False)) as events_of_run,
        ):
            async for _event in events_of_run:
                view = await _view(services, run_id)
                if view.state in states:
                    break
    return view


async def start(services: Services, principal: Principal, run_id: str, *, attempt: str) -> ExternalStart:
    """Redeem the answer for one attempt, and return what to run; the same attempt again gets the same answer.

    A call of effect ``once`` is given to one attempt only. One that may be repeated is given to the newest attempt.

    Raises:
        NotFoundError: no such call. ForbiddenError: ``not_sender``: another principal sent it.
        ConflictError: ``not_ready``: it waits for a person; ``already_started``: another attempt runs it.
        UnavailableError: Temporal is away, or no worker answers; repeat the request.
    """
    run, is_new = await _own(services, principal, run_id), False
    view = await _view(services, run_id)
    if view.state in {"planning", "waiting", "unknown"}:
        raise ConflictError(f"the call may not start: it is {view.state}", code="not_ready", state=view.state)
    async with services.database.write() as conn:
        current = await executions.with_call(conn, run_id, view.tool_call_id)
        call = await external_calls.get(conn, run_id)
        running = current is not None and current[1] is not None and current[1].state == "executing"
        if view.state == "done" or call is None:
            return ExternalStart(run=None, call=view)
        if running and call.running_for != attempt:
            if view.effect == "once":
                raise ConflictError(
                    "another attempt runs this call, and it must not run twice: wait for its result",
                    code="already_started",
                    deadline_at=call.deadline_at,
                )
            await external_calls.hand_over(conn, run_id, attempt)
        elif not running:
            await external_calls.want(conn, run_id, attempt)
            is_new = True
    if is_new:
        await _tell(services, run, view.tool_call_id)
    view = await look(
        services, run_id, wait_seconds=START_WAIT_SECONDS, states={"running", "done", "unknown", "waiting"}
    )
    return ExternalStart(run=await _order(services, run_id, attempt), call=view)


async def report(
    services: Services,
    principal: Principal,
    run_id: str,
    order: ReportOrder,
    *,
    wait_seconds: float = START_WAIT_SECONDS,
) -> ExternalCallView:
    """Store the result of a call from the attempt that ran it; the same report again changes nothing.

    ``result`` None: the attempt does not know. For a call that must not run twice, a person is asked then.

    Raises:
        NotFoundError, ForbiddenError: as :func:`start`. InvalidInputError: the result cannot be stored.
        ConflictError: ``not_started``: this attempt does not run it; ``reported``: it has reported something else;
            ``too_late``: the call was closed, or a person is asked for its outcome. The late report is in the log.
    """
    run = await _own(services, principal, run_id)
    result = order.result
    if result is not None:
        _check_result(result)
    late = False
    async with services.database.write() as conn:
        external = await external_calls.get(conn, run_id)
        if external is None:
            raise NotFoundError(f"there is no call {run_id!r}")
        call = await calls.get(conn, run_id, external.tool_call_id)
        execution = await executions.get(conn, run_id, external.tool_call_id)
        if call is None or execution is None:
            raise ConflictError("the call was not started", code="not_started")
        again = result is not None and external.reported == result and external.running_for == order.attempt
        closed = call.result is not None or execution.state == "unknown"
        late = closed and external.reported is None and not again
        if late:
            payload = {"tool_call_id": external.tool_call_id, "tool": call.tool_name, "ok": isinstance(result, Ok)}
            await events.append(conn, run_id, [("execution.late", payload)])
        elif not again and not await _store_report(conn, run_id, order):
            raise _refused(external)
    if late:
        raise ConflictError("the report is too late: the call was closed, or a person is asked", code="too_late")
    if call.result is None:
        await _tell(services, run, external.tool_call_id)
    return await look(services, run_id, wait_seconds=wait_seconds, states={"done", "unknown"})


def _refused(external: external_calls.ExternalCall) -> ConflictError:
    """Return why a report does not count: another one came first, or another attempt runs the call."""
    if external.reported is not None:
        return ConflictError("another result was reported", code="reported")
    return ConflictError("this attempt does not run the call", code="not_started")


async def list_open(
    services: Services, principal: Principal, source: str, *, limit: int, cursor: str | None
) -> Page[ExternalCallView]:
    """Return one page of this sender's open calls of a source, oldest first."""
    after = decode_cursor(cursor)
    async with services.database.read() as conn:
        rows = await external_calls.open_of(conn, agent_of_source(source), principal.name, limit=limit + 1, after=after)
        views = [await external_view(conn, run_id) for _at, run_id in rows[:limit]]
    return Page(items=views, next_cursor=encode_cursor(*rows[limit - 1]) if len(rows) > limit else None)


async def _store_report(conn: Connection, run_id: str, order: ReportOrder) -> bool:
    if order.result is None:
        return await external_calls.give_up(conn, run_id, order.attempt, at=as_text(now()))
    return await external_calls.report(conn, run_id, order.attempt, order.result)


async def _view(services: Services, run_id: str) -> ExternalCallView:
    async with services.database.read() as conn:
        return await external_view(conn, run_id)


async def _own(services: Services, principal: Principal, run_id: str) -> Run:
    """Return the run of a call that this principal sent."""
    principal.require("runs:write")
    async with services.database.read() as conn:
        run = await runs.get(conn, run_id)
        call = await external_calls.get(conn, run_id)
    if run is None or call is None:
        raise NotFoundError(f"there is no external call {run_id!r}")
    if run.started_by != principal.name:
        raise ForbiddenError(f"only {run.started_by!r}, who sent this call, can start and report it", code="not_sender")
    return run


async def _order(services: Services, run_id: str, attempt: str) -> RunOrder | None:
    """Return what the attempt must run; None: another attempt runs it, or none."""
    async with services.database.read() as conn:
        external = await external_calls.get(conn, run_id)
        current = None if external is None else await executions.with_call(conn, run_id, external.tool_call_id)
    if external is None or external.deadline_at is None or external.running_for != attempt or current is None:
        return None
    call, execution = current
    if execution is None or execution.state != "executing" or external.report is not None:
        return None
    return RunOrder(
        tool_name=call.tool_name,
        input=call.running_input,
        edited=call.edited_input is not None,
        idempotency_key=execution.idempotency_key,
        deadline_at=external.deadline_at,
    )


async def _tell(services: Services, run: Run, tool_call_id: str) -> None:
    """Tell the workflow. One that has just ended has closed the call, and needs no signal."""
    with suppress(ConflictError):
        await services.gateway.tell_external(run.id, tool_call_id)


def _check(order: ExternalCallOrder) -> None:
    tool = order.tool
    for pointer, text in (
        ("/tool_call_id", order.tool_call_id),
        ("/input", order.input),
        ("/context", order.context),
        ("/tool/description", tool.description),
        *((f"/conversation/{at}/text", each.text) for at, each in enumerate(order.conversation)),
        *((f"/conversation/{at}/tool", each.tool) for at, each in enumerate(order.conversation)),
    ):
        require_storable(text, pointer)
    if sum(len(each.text) for each in order.conversation) > MAX_CONVERSATION_CHARS:
        raise invalid(
            "/conversation", f"at most {MAX_CONVERSATION_CHARS:,} characters together: leave older messages out"
        )
    try:
        # In the form that is stored: a schema may contain any character as an escape.
        size = len(json.dumps(tool.parameters))
        JsonSchemaParameters(tool.parameters)
    except ConfigurationError as error:
        raise invalid("/tool/parameters", error.message) from None
    if size > MAX_SCHEMA_CHARS:
        raise invalid("/tool/parameters", f"at most {MAX_SCHEMA_CHARS:,} characters of JSON, not {size:,}")
    require_storable(tool.model_dump_json(), "/tool/parameters")


def _check_result(result: Ok | Failure) -> None:
    if isinstance(result, Failure) and result.kind in ENGINES_KINDS:
        raise invalid("/result/kind", f"only the engine reports {result.kind!r}: use a kind of your own")
    if is_deeper(result.model_dump(), MAX_DEPTH):
        raise invalid("/result", f"at most {MAX_DEPTH} levels of arrays and objects")
    if len(result.model_dump_json()) > MAX_REPORT_CHARS:
        raise invalid("/result", f"at most {MAX_REPORT_CHARS:,} characters of JSON")
