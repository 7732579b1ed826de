"""Calls that no handler runs: control calls, which the loop carries out, and sub-agents, which answer by a run of their own."""

from __future__ import annotations

from activities.execution.door import Door
from activities.execution.redemption import Delegated, Settled, Waits
from activities.execution.settlement import Start, tell_started
from activities.execution.sub_agents import brief_of, child_run, open_child, too_deep
from activities.planning.signals import SIGNAL, read_signal, result_of, wait_of
from turngate.domain.contract import Wait
from turngate.domain.tools import results
from turngate.domain.tools.control_calls import Finish, WaitUntil
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.results import Failure
from turngate.store.events import events
from turngate.store.runs import calls, executions, recovery, runs


async def take_signal(door: Door, start: Start) -> Settled | Waits:
    """Store what a control call asks of the run. All but a wait are settled by that; they act when the step is closed."""
    run, call = door.run, door.call
    try:
        signal = read_signal(door.engine, door.tool, door.tool.decode(call.running_input))
    except InvalidToolInput as invalid:
        return await _refuse_started(door, results.invalid_input(str(invalid), invalid.problem))
    await calls.set_signal(door.conn, run.id, call.tool_call_id, signal.model_dump_json())
    await tell_started(door.conn, call, start, signal=signal.signal)
    if isinstance(signal, WaitUntil):
        return Waits(wait_of(signal))
    await executions.finish(door.conn, run_id=run.id, tool_call_id=call.tool_call_id, state="succeeded")
    await calls.settle(door.conn, run.id, call.tool_call_id, result_of(signal))
    payload = {"tool_call_id": call.tool_call_id, "tool": door.tool.name, "ok": True, "signal": signal.signal}
    await events.append(door.conn, run.id, [("execution.finished", payload)])
    return Settled(finishes=isinstance(signal, Finish))


async def delegate(door: Door, start: Start) -> Settled | Delegated:
    """Record the sub-agent's run, for the workflow to start."""
    brief = too_deep(door.run, door.tool) or brief_of(door.tool, door.tool.decode(door.call.running_input))
    if isinstance(brief, Failure):
        return await _refuse_started(door, brief)
    child_id = await open_child(door, brief)
    await tell_started(door.conn, door.call, start, child_run_id=child_id)
    return Delegated(child_run(door.engine, child_id, door.tool))


async def resume(door: Door) -> Waits | Delegated:
    """Return the wait or the run that an earlier attempt opened for this call.

    A sub-agent's run whose workflow was lost with its parent's continues where it was. One that has ended is not started
    again: there is nothing to wait for, and its ending becomes the call's result.
    """
    call = door.call
    if call.child_run_id is not None:
        child = await runs.get(door.conn, call.child_run_id)
        if child is None or child.status != "running":
            return Waits(Wait())
        state = await recovery.turn_state(door.conn, child) if child.step else None
        return Delegated(child_run(door.engine, call.child_run_id, door.tool, state))
    signal = SIGNAL.validate_json(call.signal or "")  # settled calls never come here, and every other signal is settled
    assert isinstance(signal, WaitUntil)  # noqa: S101 - see above
    return Waits(wait_of(signal))


async def _refuse_started(door: Door, failure: Failure) -> Settled:
    await executions.finish(door.conn, run_id=door.run.id, tool_call_id=door.call.tool_call_id, state="failed")
    return await door.refuse(failure)
