"""Calls whose worker was lost: what a retry may do, and who is asked what became of them (DESIGN §3.6)."""

from __future__ import annotations

from activities.engine.engine import Engine
from activities.execution.authorization import judged, not_run
from activities.execution.preflight import Seen
from activities.execution.redemption import AlreadySettled, OutcomeUnknown, Redeemed, Redemption
from activities.execution.settlement import Start, refuse, settle_with, tell_started
from activities.planning.requests import opened, request_id_of
from turngate.domain.contract import RunToolInput
from turngate.domain.digest import derived_id
from turngate.domain.runs.requests import ExecutionState
from turngate.domain.tools import results
from turngate.domain.tools.probes import DidNotHappen, Happened
from turngate.domain.tools.results import Failure, Ok, as_object
from turngate.domain.tools.tool import Tool, ToolManifest
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, runs

MAX_STARTS = 5
"""How often a handler is started when its workers keep dying under it; a ``once`` one only where its probe allows it."""

MOVED_ON = "another attempt moved this execution on; looking again"
LOST = "The worker was lost while this call ran. It may or may not have taken effect: which?"


async def again(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool | None,
    execution: executions.Execution,
    order: RunToolInput,
    seen: Seen | None,
) -> Redemption:
    """The handler was started before, and no result came of it."""
    # One request per lost start: a call that a person sends again may be lost again, and is asked about again.
    outcome_id = _outcome_id(execution)
    if execution.state == "unknown":
        if not await is_answer(conn, execution, order):
            return OutcomeUnknown(outcome_id, call.digest)
    elif call.effect == "once" and seen is not None and isinstance(seen.probed, Happened):
        return await _it_happened(engine, conn, run, call, execution, seen.probed)
    elif call.effect == "once" and _may_start_again(execution, seen):
        pass  # it starts again, on the tool's own word that the first start will never take effect
    elif call.effect == "once":
        # Before anything else is looked at: even when the call could not run again, nobody knows whether it has run.
        return await ask_outcome(conn, run, call, tool, execution)
    elif execution.attempts >= MAX_STARTS:
        lost = f"its worker was lost {execution.attempts} times while it ran"
        await end_start(conn, execution, "failed")
        return await refuse(conn, run, call, Failure(kind="execution_error", reason=f"{call.tool_name!r}: {lost}."))
    verdict = judged(await engine.rules(conn, run), run, call, tool, execution.digest, decided=True)
    if tool is None or isinstance(verdict, Failure):
        problem = verdict if isinstance(verdict, Failure) else not_run("the tool is no longer there")
        return await _not_again(conn, run, call, execution, problem)
    begun = await executions.begin_again(
        conn,
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        from_state=execution.state,
        decision_id=order.decision_id,
    )
    if not begun:
        raise LookupError(MOVED_ON)
    decided = None if order.decision_id is None else await requests.by_decision(conn, order.decision_id)
    by = None if decided is None else decided.decided_by
    start = Start(attempt=execution.attempts + 1, decision_id=order.decision_id, by=by, digest=execution.digest)
    await tell_started(conn, run, call, start)
    raw_input = call.running_input
    return Redeemed(tool, run, call, raw_input, execution.idempotency_key, attempt=start.attempt)


async def is_answer(conn: Connection, execution: executions.Execution, order: RunToolInput) -> bool:
    """Tell whether the order comes with the answer to what became of this execution."""
    outcome = await requests.get(conn, _outcome_id(execution))
    return outcome is not None and outcome.decision_id is not None and outcome.decision_id == order.decision_id


async def asked_outcome(conn: Connection, order: RunToolInput) -> OutcomeUnknown | None:
    """Return the request that asks what became of this call, while that is what it waits for; None: it does not."""
    found = await executions.standing(conn, order.run_id, order.call)
    if found is None:
        return None
    call, execution = found
    if call.result is not None or execution is None or execution.state != "unknown":
        return None
    return OutcomeUnknown(_outcome_id(execution), call.digest)


def _outcome_id(execution: executions.Execution) -> str:
    return derived_id("rq", execution.run_id, execution.tool_call_id, "outcome", str(execution.attempts))


def _may_start_again(execution: executions.Execution, seen: Seen | None) -> bool:
    """Tell whether the tool's probe says that it did not happen; a call that kills its workers is a person's to look at."""
    return seen is not None and isinstance(seen.probed, DidNotHappen) and execution.attempts < MAX_STARTS


async def _it_happened(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    execution: executions.Execution,
    happened: Happened,
) -> AlreadySettled:
    """Settle a lost call with the result its tool's probe found, as if its handler had returned it."""
    await end_start(conn, execution, "succeeded")
    return await settle_with(engine, conn, run, call, Ok(value=as_object(happened.result)), by="probe")


async def _not_again(
    conn: Connection, run: runs.Run, call: calls.Call, execution: executions.Execution, problem: Failure
) -> AlreadySettled:
    """Settle a lost call that may not start again, because it is no longer what was allowed."""
    if execution.state == "unknown":  # a person said that it did not happen, so the problem tells all
        await executions.resolve_unknown(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="failed")
        return await refuse(conn, run, call, problem)
    await end_start(conn, execution, "failed")
    why = f"{results.outcome_unknown(call.tool_name).reason} It was not started again: {problem.reason}"
    return await refuse(conn, run, call, Failure(kind="unknown", reason=why))


async def ask_outcome(
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool | None,
    execution: executions.Execution,
    *,
    why: str = LOST,
    rule: str = "engine:lost-worker",
) -> OutcomeUnknown:
    """Mark the execution unknown and open an ``outcome`` request for it, in the caller's transaction.

    What its handler had said before it was stopped stays with the execution. ``why``, ``rule``: what the person reads.
    Raises LookupError when the execution is not as it was read any more: nobody is to be asked about what has a result.
    """
    outcome_id = _outcome_id(execution)
    await end_start(conn, execution, "unknown", partial_output=execution.partial_output)
    approval = await requests.get(conn, request_id_of(run.id, call.tool_call_id, "approval"))
    opened_at = as_text(now())
    raw_input = call.running_input
    manifest = approval.manifest if approval else _manifest(call, tool).model_dump_json()
    request = requests.Request(
        id=outcome_id,
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        kind="outcome",
        status="pending",
        agent=run.agent,
        tool_name=call.tool_name,
        manifest=manifest,
        input=raw_input,
        digest=call.digest,
        rule=rule,
        reason=why,
        risk="high",
        agent_words=approval.agent_words if approval else "",
        preview_kind=approval.preview_kind if approval else None,
        preview=approval.preview if approval else None,
        not_by=approval.not_by if approval else None,
        expires_at=None,
        created_at=opened_at,
        path=run.path,
    )
    await requests.insert_all(conn, [request])
    told = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "request_id": outcome_id}
    await events.append(conn, run.id, [("execution.unknown", told), opened(request)])
    return OutcomeUnknown(outcome_id, call.digest)


async def end_start(
    conn: Connection, execution: executions.Execution, state: ExecutionState, *, partial_output: str = ""
) -> None:
    """End the start that was read; raises LookupError when it is not as it was read any more.

    On PostgreSQL two attempts may look at a call at once: one that was thought lost may store its result, or the next start
    may begin, after this one has read the row.
    """
    if not await executions.finish_start(conn, execution, state=state, partial_output=partial_output):
        raise LookupError(MOVED_ON)


def _manifest(call: calls.Call, tool: Tool | None) -> ToolManifest:
    """Return what to show of a tool that ran without being asked for; of one that is gone no more than its name is known."""
    if tool is not None:
        return tool.manifest
    return ToolManifest(
        name=call.tool_name, description="", kind="local", parameters={"type": "object"}, success={}, effect="once"
    )
