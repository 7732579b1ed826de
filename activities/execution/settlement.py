"""Writing what happens to a call: it starts, gets its result, or gets a failure in place of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from turngate.activities.engine.engine import Engine
from turngate.activities.execution.large_results import clip_for_model
from turngate.domain.digest import idempotency_key
from turngate.domain.requests import ExecutionState
from turngate.domain.tools.failures import MAX_REASON_CHARS
from turngate.domain.tools.presentation import PRESENTATION, warning_in
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.evidence import running_digests
from turngate.store.runs import calls, executions, runs, whole_results
from turngate.store.together import NO_WRITES, Writes


@dataclass(frozen=True, kw_only=True)
class Start:
    """What lets a call start: the decision and who made it, both None when policy allowed it, and the digest it is for."""

    attempt: int
    decision_id: str | None
    by: str | None
    digest: str


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """A result as it is stored. ``whole``: its text, where the model is shown only a part of it.

    ``presentation``: the tool's own view of it for people, as JSON; None for the default view.
    """

    for_model: Ok | Failure
    whole: str | None = None
    presentation: str | None = None

    @classmethod
    def of(cls, engine: Engine, run: runs.Run, result: Ok | Failure, *, presentation: str | None = None) -> Self:
        """Return a result as the run's model is shown it."""
        for_model, whole = clip_for_model(engine, run, result)
        return cls(for_model=for_model, whole=whole, presentation=presentation)


async def tell_started(
    conn: Connection, call: calls.Call, start: Start, *, writes: Writes = NO_WRITES, last: bool = False, **more: object
) -> None:
    """Append the event of a start: of a handler, a control call or a sub-agent. ``more``: further fields.

    ``writes``: what goes to the database with it. ``last``: nothing follows in the transaction.
    """
    key = idempotency_key(call.run_id, call.tool_call_id)
    payload = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "idempotency_key": key, **vars(start), **more}
    await events.append(conn, call.run_id, [("execution.started", payload)], writes=writes, last=last)


async def settle(
    conn: Connection,
    call: calls.Call,
    result: CallResult,
    *,
    by: str | None = None,
    state: ExecutionState | None = None,
) -> None:
    """Store the result of a call that was started; the caller ends its execution.

    ``by``: where the result comes from (``probe``, ``report``); None: its handler, or the engine itself.
    ``state``: how the execution ended, where the result alone does not tell; its event says the same.
    """
    writes, finished = await _finished(conn, call, result)
    if by is not None:
        finished["by"] = by
    if state is not None:
        finished["state"] = state
    await events.append(conn, call.run_id, [("execution.finished", finished)], writes=writes)


async def finish(conn: Connection, call: calls.Call, result: CallResult) -> bool:
    """End the execution of a call with its handler's result, last in the transaction.

    False, and the result does not count, if the execution had ended.
    """
    writes, finished = await finished_with(conn, call, result)
    ended, _settled = await events.append(conn, call.run_id, [finished], writes=writes, last=True)
    return ended == 1


async def finished_with(conn: Connection, call: calls.Call, result: CallResult) -> tuple[Writes, events.NewEvent]:
    """Return what ends the execution of a call with its handler's result, and its event."""
    settled, finished = await _finished(conn, call, result)
    return executions.finish_writes(settled, end_state(result.for_model)), ("execution.finished", finished)


async def _finished(conn: Connection, call: calls.Call, result: CallResult) -> tuple[Writes, dict[str, object]]:
    """Return what stores a result, and the payload of its event. A result that is clipped is kept whole."""
    digest = None if result.whole is None else await whole_results.keep(conn, result.whole)
    view = calls.ResultView(presentation=result.presentation, whole_result=digest)
    writes = calls.settle_writes(call.run_id, call.tool_call_id, result.for_model, view)
    digests = events.digests(result={call.tool_call_id: calls.written_digest(writes, call.nonce)})
    presentation = None if result.presentation is None else PRESENTATION.validate_json(result.presentation)
    # Whether, and not what: content has no place in the record.
    warned = {"warned": True} if warning_in(result.for_model, presentation) else {}
    state = end_state(result.for_model)
    return writes, {**end_payload(call, result.for_model), "state": state, **warned, **digests}


async def refuse(conn: Connection, call: calls.Call, failure: Failure, *, approved: str | None = None) -> None:
    """Settle a call with a failure in place of running it. ``approved``: the request in which people approved it."""
    settled = await calls.settle(conn, call.run_id, call.tool_call_id, failure, nonce=call.nonce)
    payload = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "kind": failure.kind}
    of_request = {} if approved is None else {"request_id": approved}
    digests = events.digests(result={call.tool_call_id: settled}, running=running_digests(call))
    await events.append(conn, call.run_id, [("call.closed", {**payload, **of_request, **digests})])


def end_payload(call: calls.Call, result: Ok | Failure) -> dict[str, object]:
    """Return the payload of the event of an execution's end: which call, and whether it succeeded or how it failed."""
    payload: dict[str, object] = {"tool_call_id": call.tool_call_id, "tool": call.tool_name}
    payload["ok"] = isinstance(result, Ok)
    return payload | {"kind": result.kind} if isinstance(result, Failure) else payload


def end_state(result: Ok | Failure) -> ExecutionState:
    """Return the state of an execution that ended with this result: ``failed`` only where it is known that it did."""
    if isinstance(result, Ok):
        return "succeeded"
    return "unknown" if result.kind == "unknown" else "failed"


def run_failure(tool: Tool | None, result: Ok | Failure | None) -> str:
    """Return why a call with this result fails its run, in words for people; "" when the run continues."""
    if tool is None or not isinstance(result, Failure) or not tool.fails_run(result):
        return ""
    return f"tool {tool.name!r} failed: {result.kind}: {result.reason}"[:MAX_REASON_CHARS]
