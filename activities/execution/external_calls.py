"""Redemption of calls from outside: the door opens for one attempt of the sender, which runs the call and reports.

Nothing of such a call runs here (ADR 0024). The workflow comes to the door when the sender is there to start the call, again
when its report has come, and again when the time for one is over.
"""

from __future__ import annotations

from datetime import timedelta

from activities.engine.engine import Engine
from activities.execution.lost_calls import again, ask_outcome, end_start, is_answer
from activities.execution.redemption import Redeemed, Redemption, Waits
from activities.execution.settlement import Start, ended_state, refuse, settle_with, tell_started
from turngate.domain.contract import RunToolInput, Wait
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.runs import calls, executions, external_calls, runs

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
            await end_start(conn, execution, ended_state(reported))
            return await settle_with(engine, conn, run, call, reported, by="report")
        deadline = from_text(outside.deadline_at)
        if now() < deadline:
            return Waits(Wait(until=deadline, news="reported"))
        await external_calls.take_back(conn, run.id)
        if call.effect == "once":
            return await ask_outcome(conn, run, call, tool, execution, why=NO_REPORT, rule="engine:no-report")
        await end_start(conn, execution, "failed")
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
