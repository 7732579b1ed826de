"""Redemption: the one door to a tool's handler.

In one transaction it checks that the call may run (policy allowed it, or this decision approved it), that the bytes
about to run are the ones that were shown, and writes the execution row, unique by call and by decision. Only a
:class:`Redeemed` opens the door; every other way out means the handler does not start (I2, I3, I6). Signals and
sub-agents have no handler: behind the same door stands what the engine does for them.
"""

from __future__ import annotations

from dataclasses import replace

from activities.engine.engine import Engine
from activities.engine.preconditions import idempotency_key
from activities.engine.rules import RulesInForce
from activities.execution.authorization import authority, judged, raises
from activities.execution.delegation import delegate, take_signal, underway
from activities.execution.external_calls import UNWANTED, came_back, hand_out, is_wanted
from activities.execution.lost_calls import again
from activities.execution.preflight import Seen, looks_first
from activities.execution.redemption import AlreadySettled, AskAgain, LookFirst, Redeemed, Redemption, Waits
from activities.execution.settlement import Start, refuse, tell_started
from activities.planning.requests import ask_after_all, ask_again, asked_after_all, asked_again, is_stale
from activities.planning.signals import is_finish
from turngate.domain.contract import RunToolInput
from turngate.domain.policy.judged_verdict import with_judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools import results
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.policy import grants
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, runs


async def redeem(engine: Engine, conn: Connection, order: RunToolInput, seen: Seen | None = None) -> Redemption:
    """Let the call through, or settle it without running. The caller's write transaction holds all of it.

    ``seen``: what was seen after :class:`LookFirst`; None the first time.
    """
    run = await runs.get(conn, order.run_id)
    found = await executions.standing(conn, order.run_id, order.call)
    if run is None or found is None:
        raise LookupError(f"no planned call {order.call!r} in run {order.run_id!r}")
    call, execution = found
    tool = engine.tool(await engine.agent_of(conn, run), call.tool_name)
    closed = await _closed_already(conn, run, call, tool)
    if closed is not None:
        return closed
    if execution is not None:
        return await _started_before(engine, conn, run, call, tool, execution, order, seen)
    not_yet = None if tool is None else await _not_yet(engine, conn, run, call, tool, order)
    if not_yet is not None:
        return not_yet
    expected, request, problem = await authority(conn, call, order)
    rules = await engine.rules(conn, run)
    verdict = problem or judged(rules, run, call, tool, expected, decided=request is not None)
    barred = verdict if isinstance(verdict, Failure) else seen.barred if seen is not None else None
    if isinstance(verdict, Failure) or barred is not None or tool is None:
        return await refuse(conn, run, call, barred or results.unknown_tool(call.tool_name, []))
    other: Redemption | None = await _other_way(engine, conn, run, call, tool, request, seen, expected)
    other = other or await _no_longer_allowed(engine, conn, run, call, tool, request, rules, verdict, seen)
    if other is not None:
        return other
    key = idempotency_key(run.id, call.tool_call_id)
    await executions.begin(
        conn,
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        digest=expected,
        decision_id=order.decision_id,
        idempotency_key=key,
    )
    by = None if request is None else request.decided_by
    start = Start(attempt=1, decision_id=order.decision_id, by=by, digest=expected)
    match tool.kind:
        case "signal":
            return await take_signal(engine, conn, run, call, tool, start)
        case "agent":
            return await delegate(engine, conn, run, call, tool, start)
        case "external":
            return await hand_out(conn, run, call, tool, start)
    await tell_started(conn, run, call, start)
    return Redeemed(tool, run, call, call.running_input, key)


async def _not_yet(
    engine: Engine, conn: Connection, run: runs.Run, call: calls.Call, tool: Tool, order: RunToolInput
) -> Waits | AskAgain | None:
    """Return what comes before the door is asked at all: whoever is to run the call, or the answer to a later question."""
    if tool.kind == "external" and not await is_wanted(conn, run):
        return UNWANTED
    if order.decision_id is None and call.disposition == "ask":
        asked = await asked_after_all(engine, conn, run, call, tool)
        return None if asked is None else AskAgain(asked)
    return None


async def _closed_already(
    conn: Connection, run: runs.Run, call: calls.Call, tool: Tool | None
) -> AlreadySettled | None:
    """Return what became of a call that must not start, whatever brings it here; None: the door may be asked."""
    if call.result is not None:
        return AlreadySettled(finishes=is_finish(call), raises=raises(tool, call.settled_result))
    if run.is_dry:  # planning has closed every call of it; nothing of a dry replay may ever run
        return await refuse(conn, run, call, results.diverged(call.tool_name))
    return None


async def _other_way(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool,
    request: requests.Request | None,
    seen: Seen | None,
    expected: str,
) -> LookFirst | AskAgain | None:
    """Return what comes before a call that may run: a look at the world, or another question; None when it may start."""
    standing = None if request is None else await asked_again(engine, conn, run, call, tool, request)
    if standing is not None:
        return AskAgain(standing)
    # An approval that is too old, and nothing says whether the world is still as it was: it counts no more.
    unvouched = request is not None and request.precondition is None and is_stale(request)
    if seen is None or (unvouched and not seen.for_asking):
        agent = engine.agent(run.agent)
        to_show = tool.preview is not None or tool.precondition is not None
        if looks_first(agent, tool, asked=request is not None, lost=False) or (unvouched and to_show):
            asked_with = None if request is None else request.precondition
            return LookFirst(agent, run, call, tool, asked_with=asked_with, lost=False, for_asking=unvouched)
    if request is None or not (unvouched or (seen is not None and seen.precondition != request.precondition)):
        return None
    now_on, preview = (None, None) if seen is None else (seen.precondition, seen.preview)
    return AskAgain(
        await ask_again(engine, conn, run, call, tool, request, digest=expected, precondition=now_on, preview=preview)
    )


async def _no_longer_allowed(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool,
    request: requests.Request | None,
    rules: RulesInForce,
    verdict: Verdict,
    seen: Seen | None,
) -> AlreadySettled | AskAgain | LookFirst | None:
    """Return the question for a call that was allowed when it was planned and is not any more; None when it may start.

    Policy is asked again at the door: a rule may have been stored since, or the grant that allowed the call revoked,
    expired or used up by the calls beside it. A use of the grant is taken here, where nothing comes between it and the
    handler (ADR 0014). Whatever a person approved needs neither.
    """
    if request is not None:
        return None
    while verdict.grant_id is not None:
        if await grants.take_use(conn, verdict.grant_id, run_id=run.id, tool_call_id=call.tool_call_id):
            told = {"grant_id": verdict.grant_id, "tool_call_id": call.tool_call_id, "tool": tool.name}
            await events.append(conn, run.id, [("grant.used", told)])
            return None
        # Another writer was faster, between our look at the grants and this: as if the grant had not been there.
        rules = rules.without(verdict.grant_id)
        again = judged(rules, run, call, tool, call.digest, decided=False)
        if isinstance(again, Failure):
            return await refuse(conn, run, call, again)
        verdict = again
    if verdict.answer == "allow":
        return None
    # What the judge said when the call was planned, of these very bytes; it is not asked again.
    said = Verdict.model_validate_json(call.verdict).judged if call.verdict else None
    verdict = with_judgement(verdict, said, rules.judge, digest=call.digest)
    if verdict.answer == "allow":
        return None
    if (seen is None or not seen.for_asking) and (tool.preview is not None or tool.precondition is not None):
        return LookFirst(engine.agent(run.agent), run, call, tool, asked_with=None, lost=False, for_asking=True)
    return AskAgain(
        await ask_after_all(
            engine,
            conn,
            run,
            call,
            tool,
            verdict,
            precondition=None if seen is None else seen.precondition,
            preview=None if seen is None else seen.preview,
        )
    )


async def _started_before(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool | None,
    execution: executions.Execution,
    order: RunToolInput,
    seen: Seen | None,
) -> Redemption:
    """The door was open once, and no result came of it."""
    if tool is not None and tool.kind in {"signal", "agent"}:
        return await underway(engine, conn, call, tool)
    if tool is not None and tool.kind == "external":
        return await came_back(engine, conn, run, call, tool, execution, order)
    if execution.state == "failed":
        # Its handler was stopped, and the run was not closed after it: its workflow was terminated (Temporal cancels the
        # activities of such a one, as for an interrupt) or lost. The run was recovered, so nobody knows how far it came.
        await executions.reopen_stopped(conn, run_id=run.id, tool_call_id=call.tool_call_id)
        execution = replace(execution, state="executing")
    agent = engine.agent(run.agent)
    unseen = execution.state == "executing" and seen is None
    if unseen and tool is not None and looks_first(agent, tool, asked=False, lost=True):
        return LookFirst(agent, run, call, tool, asked_with=None, lost=True)
    return await again(engine, conn, run, call, tool, execution, order, seen)
