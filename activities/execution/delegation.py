"""Calls that no handler runs: signals, which the loop carries out, and sub-agents, which answer by a run of their own."""

from __future__ import annotations

from activities.engine.engine import Engine
from activities.execution.redemption import AlreadySettled, Delegated, Waits
from activities.execution.settlement import Start, refuse, tell_started
from activities.execution.sub_agents import brief_of, child_run, open_child, too_deep
from activities.planning.signals import SIGNAL, read_signal, result_of, wait_of
from turngate.domain.contract import Wait
from turngate.domain.tools import results
from turngate.domain.tools.control_calls import Finish, WaitUntil
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import calls, executions, recovery, runs


async def take_signal(
    engine: Engine, conn: Connection, run: runs.Run, call: calls.Call, tool: Tool, start: Start
) -> AlreadySettled | Waits:
    """Note what the call asks of the run. All but a wait are settled by that; they are carried out with the step's end."""
    try:
        signal = read_signal(engine, tool, tool.decode(call.running_input))
    except InvalidToolInput as invalid:
        await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="failed")
        return await refuse(conn, run, call, results.invalid_input(str(invalid), invalid.problem))
    await calls.set_signal(conn, run.id, call.tool_call_id, signal.model_dump_json())
    await tell_started(conn, run, call, start, signal=signal.signal)
    if isinstance(signal, WaitUntil):
        return Waits(wait_of(signal))
    await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="succeeded")
    await calls.settle(conn, run.id, call.tool_call_id, result_of(signal))
    told = {"tool_call_id": call.tool_call_id, "tool": tool.name, "ok": True, "signal": signal.signal}
    await events.append(conn, run.id, [("execution.finished", told)])
    return AlreadySettled(finishes=isinstance(signal, Finish))


async def delegate(
    engine: Engine, conn: Connection, run: runs.Run, call: calls.Call, tool: Tool, start: Start
) -> AlreadySettled | Delegated:
    """Open the sub-agent's run."""
    brief = too_deep(run, tool) or brief_of(tool, tool.decode(call.running_input))
    if isinstance(brief, Failure):
        await executions.finish(conn, run_id=run.id, tool_call_id=call.tool_call_id, state="failed")
        return await refuse(conn, run, call, brief)
    child_id = await open_child(engine, conn, run, call, tool, brief)
    await tell_started(conn, run, call, start, child_run_id=child_id)
    return Delegated(child_run(engine, child_id, tool))


async def underway(engine: Engine, conn: Connection, call: calls.Call, tool: Tool) -> Waits | Delegated:
    """Answer an attempt that was repeated after the first one had opened the wait or the run.

    A sub-agent's run whose workflow was lost with its parent's goes on where it stood. One that has ended is not started
    again: nothing is waited for, and its ending becomes the call's result.
    """
    if call.child_run_id is not None:
        child = await runs.get(conn, call.child_run_id)
        if child is None or child.status != "running":
            return Waits(Wait())
        state = await recovery.turn_state(conn, child) if child.step else None
        return Delegated(child_run(engine, call.child_run_id, tool, state))
    signal = SIGNAL.validate_json(call.signal or "")  # settled calls never come here, and every other signal is settled
    assert isinstance(signal, WaitUntil)  # noqa: S101 - see above
    return Waits(wait_of(signal))
