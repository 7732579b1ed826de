"""Redemption of calls from outside: the door opens for one attempt of the sender, which runs the call and reports.

Nothing of such a call runs here (ADR 0024). The workflow comes to the door when the sender is there to start the call, again
when its report has come, and again when the time for one is over.
"""

from __future__ import annotations

from datetime import timedelta

from activities.call_marks import Start, refuse, tell_started
from activities.engine import Engine
from activities.lost_calls import again, ask_outcome, is_answer
from activities.read_result import shown_to_model
from activities.redeemed import AlreadySettled, Redeemed, Redemption, Waits
from turngate.domain.contract import RunToolInput, Wait
from turngate.domain.requests import ExecutionState
from turngate.domain.results import Failure, Ok
from turngate.domain.tools import Tool
from turngate.store import calls, events, executions, external_calls, runs, whole_results
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection

NO_REPORT = (
    "The program that was to run this call never said what came of it. It may or may not have taken effect: which?"
)


UNWANTED = Waits(Wait(news="wanted"))
"""The call may run, and nobody is there to run it yet."""


async def is_wanted(conn: Connection, run: runs.Run) -> bool:
    """Tell whether the sender is there to start the call. Until it is, nothing is redeemed: an approval is used once."""
    call = await external_calls.get(conn, run.id)
    return call is not None and call.wanted_by is not None


async def hand_out(conn: Connection, run: runs.Run, call: calls.Call, tool: Tool, start: Start) -> Waits:
    """Let the attempt that wants the call run it, until its deadline. The execution row is written already (I2, I3)."""
    await tell_started(conn, run, call, start)
    return await _let_run(conn, run, tool)


async def came_back(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool,
    execution: executions.Execution,
    order: RunToolInput,
) -> Redemption:
    """Return what becomes of a call that was handed out: its report, more waiting, or a question to a person.

    That our own worker was lost meanwhile says nothing about a call that runs elsewhere.
    """
    outside = await external_calls.get(conn, run.id)
    if execution.state == "executing" and outside is not None and outside.deadline_at is not None:
        reported = outside.reported
        if reported is not None:
            return await _settled(engine, conn, run, call, reported)
        deadline = from_text(outside.deadline_at)
        if now() < deadline:
            return Waits(Wait(until=deadline, news="reported"))
        await external_calls.take_back(conn, run.id)
        if call.effect == "once":
            return await ask_outcome(conn, run, call, tool, execution, why=NO_REPORT, rule="engine:no-report")
        await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="failed")
        late = f"{call.tool_name!r} was started outside, and no result was reported in time."
        return await refuse(conn, run, call, Failure(kind="timeout", reason=late))
    if await is_answer(conn, execution, order) and not await is_wanted(conn, run):
        return UNWANTED
    opened = await again(engine, conn, run, call, tool, execution, order, None)
    return await _let_run(conn, run, tool) if isinstance(opened, Redeemed) else opened


async def _let_run(conn: Connection, run: runs.Run, tool: Tool) -> Waits:
    deadline = now() + tool.timeout
    await external_calls.hand_out(conn, run.id, deadline_at=as_text(deadline))
    # A moment more than the sender has: what it reports at the very end must be in the store before we look.
    return Waits(Wait(until=deadline + timedelta(seconds=1), news="reported"))


async def _settled(
    engine: Engine, conn: Connection, run: runs.Run, call: calls.Call, result: Ok | Failure
) -> AlreadySettled:
    shown, whole = shown_to_model(engine, run, result)
    digest = None if whole is None else await whole_results.keep(conn, whole)
    ok = isinstance(result, Ok)
    state: ExecutionState = "succeeded" if ok else "failed"
    await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state=state)
    await calls.settle(conn, run.id, call.tool_call_id, shown, whole_result=digest)
    told: dict[str, object] = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "ok": ok, "by": "report"}
    if isinstance(result, Failure):
        told["kind"] = result.kind
    await events.append(conn, run.id, [("execution.finished", told)])
    return AlreadySettled()
