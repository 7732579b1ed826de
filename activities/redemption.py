"""Redemption: the one door to a tool's handler.

In one transaction it checks that the call may run (policy allowed it, or this decision approved it), that the bytes
about to run are the ones that were shown, and writes the execution row, unique by call and by decision. Only a
:class:`Redeemed` opens the door; every other way out means the handler does not start (I2, I3, I6).
"""

from __future__ import annotations

from dataclasses import dataclass

from activities.engine import Engine
from activities.planning import request_id_of
from turngate.domain import results
from turngate.domain.contract import RunToolInput
from turngate.domain.digest import call_digest, derived_id, framed_sha256
from turngate.domain.policy import evaluate
from turngate.domain.results import Failure
from turngate.domain.tools import InvalidToolInput, Tool, ToolManifest
from turngate.store import calls, events, executions, requests, runs
from turngate.store.clock import as_text, now
from turngate.store.database import Connection

MAX_STARTS = 5
"""How often a ``read`` or ``idempotent`` handler is started when its workers keep dying under it."""


@dataclass(frozen=True)
class Redeemed:
    """The handler may start now, with exactly this input."""

    tool: Tool
    run: runs.Run
    raw_input: str
    edited_input: str | None
    idempotency_key: str


@dataclass(frozen=True)
class AlreadySettled:
    """The call has its result; an earlier attempt's answer was lost on the way."""


@dataclass(frozen=True)
class OutcomeUnknown:
    """The handler of a ``once`` call was started and nobody knows how it ended; a person is asked."""

    request_id: str
    digest: str


Redemption = Redeemed | AlreadySettled | OutcomeUnknown


async def redeem(engine: Engine, conn: Connection, order: RunToolInput) -> Redemption:
    """Let the call through, or settle it without running. The caller's write transaction holds all of it."""
    run = await runs.get(conn, order.run_id)
    found = await executions.standing(conn, order.run_id, order.call)
    if run is None or found is None:
        raise LookupError(f"no planned call {order.call!r} in run {order.run_id!r}")
    call, execution = found
    if call.result is not None:
        return AlreadySettled()
    tool = engine.agent(run.agent).toolkit.find(call.tool_name)
    if execution is not None:
        return await _again(engine, conn, run, call, tool, execution, order)
    expected, problem = await _authority(conn, call, order)
    if problem is None:
        problem = _mismatch(engine, run, call, tool, expected)
    if problem is not None or tool is None:
        return await _refuse(conn, run, call, problem or results.unknown_tool(call.tool_name, []))
    key = framed_sha256(run.id, call.tool_call_id)[:32]
    await executions.begin(
        conn,
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        digest=expected,
        decision_id=order.decision_id,
        idempotency_key=key,
    )
    await _started(conn, run, call, attempt=1, decision_id=order.decision_id)
    return Redeemed(tool, run, call.edited_input or call.input, call.edited_input, key)


async def _authority(conn: Connection, call: calls.Call, order: RunToolInput) -> tuple[str, Failure | None]:
    """Return the digest that was allowed or approved, or why there is none."""
    if call.disposition == "run" and order.decision_id is None:
        return call.digest, None
    if call.disposition == "ask" and order.decision_id is not None:
        request = await requests.get(conn, request_id_of(call.run_id, call.tool_call_id, "approval"))
        if request is not None and request.status == "approved" and request.decision_id == order.decision_id:
            if request.verb != "edit":
                return request.digest, None
            decision = await requests.decision(conn, order.decision_id)
            if decision is not None:
                return decision.digest, None
    return "", _not_run("no approval or allowing rule for it is on record")


def _mismatch(engine: Engine, run: runs.Run, call: calls.Call, tool: Tool | None, expected: str) -> Failure | None:
    """Return why the bytes about to run are not the ones that were shown, or are no longer allowed; None when they are."""
    if tool is None:
        return _not_run("the tool is no longer there")
    raw_input = call.edited_input or call.input
    actual = digest_of(engine, call, tool, raw_input)
    if actual != expected:
        return _not_run("the call, its tool or the policy is not what was shown when it was allowed; send it again")
    try:
        params = tool.decode(raw_input)
    except InvalidToolInput as problem:
        return results.invalid_input(str(problem))
    verdict = evaluate(engine.policy, tool, params, agent=run.agent)
    return results.denied(verdict.rule, verdict.reason) if verdict.answer == "deny" else None


def digest_of(engine: Engine, call: calls.Call, tool: Tool, raw_input: str) -> str:
    """Return the digest of this input for this call, under the tool and policy as they are in this process now."""
    return call_digest(
        tool_name=tool.name,
        manifest_digest=tool.manifest.digest,
        raw_input=raw_input,
        run_id=call.run_id,
        tool_call_id=call.tool_call_id,
        policy_version=engine.policy.version,
    )


async def _again(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool | None,
    execution: executions.Execution,
    order: RunToolInput,
) -> Redemption:
    """The handler was started before, and no result came of it."""
    # One request per lost start: a call that a person sends again may be lost again, and is asked about again.
    outcome_id = derived_id("rq", run.id, call.tool_call_id, "outcome", str(execution.attempts))
    if execution.state == "unknown":
        outcome = await requests.get(conn, outcome_id)
        if outcome is None or outcome.decision_id is None or outcome.decision_id != order.decision_id:
            return OutcomeUnknown(outcome_id, call.digest)
    elif call.effect == "once":
        # Before anything else is looked at: even when the call could not run again, nobody knows whether it has run.
        return await _ask_outcome(conn, run, call, tool, outcome_id)
    elif execution.attempts >= MAX_STARTS:
        lost = f"its worker was lost {execution.attempts} times while it ran"
        await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="failed")
        return await _refuse(conn, run, call, Failure(kind="execution_error", reason=f"{call.tool_name!r}: {lost}."))
    problem = _mismatch(engine, run, call, tool, execution.digest)
    if tool is None or problem is not None:
        return await _not_again(conn, run, call, execution, problem or _not_run("the tool is no longer there"))
    begun = await executions.begin_again(
        conn,
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        from_state=execution.state,
        decision_id=order.decision_id,
    )
    if not begun:
        raise LookupError("another attempt moved this execution on; looking again")
    await _started(conn, run, call, attempt=execution.attempts + 1, decision_id=order.decision_id)
    return Redeemed(tool, run, call.edited_input or call.input, call.edited_input, execution.idempotency_key)


async def _not_again(
    conn: Connection, run: runs.Run, call: calls.Call, execution: executions.Execution, problem: Failure
) -> AlreadySettled:
    """Settle a lost call that may not start again, because it is no longer what was allowed."""
    if execution.state == "unknown":  # a person said that it did not happen, so the problem tells all
        await executions.resolve_unknown(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="failed")
        return await _refuse(conn, run, call, problem)
    await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="failed")
    why = f"{results.outcome_unknown(call.tool_name).reason} It was not started again: {problem.reason}"
    return await _refuse(conn, run, call, Failure(kind="unknown", reason=why))


async def _ask_outcome(
    conn: Connection, run: runs.Run, call: calls.Call, tool: Tool | None, outcome_id: str
) -> OutcomeUnknown:
    """Mark the execution unknown and open an ``outcome`` request for it, in the caller's transaction."""
    await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="unknown")
    approval = await requests.get(conn, request_id_of(run.id, call.tool_call_id, "approval"))
    opened_at = as_text(now())
    raw_input = call.edited_input or call.input
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
        rule="engine:lost-worker",
        reason="The worker was lost while this call ran. It may or may not have taken effect: which?",
        risk="high",
        agent_words=approval.agent_words if approval else "",
        preview_kind=approval.preview_kind if approval else None,
        preview=approval.preview if approval else None,
        not_by=approval.not_by if approval else None,
        expires_at=None,
        created_at=opened_at,
    )
    await requests.insert_all(conn, [request])
    named = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "request_id": outcome_id}
    opened = {**named, "kind": "outcome"}
    await events.append(conn, run.id, [("execution.unknown", named), ("request.opened", opened)])
    return OutcomeUnknown(outcome_id, call.digest)


def _manifest(call: calls.Call, tool: Tool | None) -> ToolManifest:
    """Return what to show of a tool that ran without being asked for; of one that is gone no more than its name is known."""
    if tool is not None:
        return tool.manifest
    return ToolManifest(
        name=call.tool_name, description="", kind="local", parameters={"type": "object"}, success={}, effect="once"
    )


async def _refuse(conn: Connection, run: runs.Run, call: calls.Call, failure: Failure) -> AlreadySettled:
    """Settle the call with a failure in place of running it."""
    await calls.settle(conn, run.id, call.tool_call_id, failure)
    told = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "kind": failure.kind}
    await events.append(conn, run.id, [("call.closed", told)])
    return AlreadySettled()


def _not_run(why: str) -> Failure:
    return Failure(kind="execution_error", reason=f"The call did not run: {why}.")


async def _started(conn: Connection, run: runs.Run, call: calls.Call, *, attempt: int, decision_id: str | None) -> None:
    told = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "attempt": attempt, "decision_id": decision_id}
    await events.append(conn, run.id, [("execution.started", told)])
