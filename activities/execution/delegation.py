"""Calls that no handler runs: control calls, which the loop carries out, and sub-agents, which answer by a run of their own."""

from __future__ import annotations

from typing import Any, Final

from turngate.activities.engine.engine import Engine
from turngate.activities.execution.door import Door
from turngate.activities.execution.redemption import Delegated, Settled, Waits
from turngate.activities.execution.settlement import Start, tell_started
from turngate.activities.planning.control_calls import CONTROL_CALL, read_control_call, result_of, wait_of
from turngate.domain.contract import ChildRun, Wait
from turngate.domain.conversation.messages import Message, user_message
from turngate.domain.crashes import report_crash
from turngate.domain.digest import derived_id
from turngate.domain.requests import ExecutionState
from turngate.domain.runs.trace import RunTrace
from turngate.domain.runs.turn_state import TurnState
from turngate.domain.tools import results
from turngate.domain.tools.control_calls import Finish, WaitUntil
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import text_digest
from turngate.store.runs import calls, executions, messages, recovery, runs
from turngate.store.runs.new_run import NewRun, open_run

MAX_DEPTH = 5
"""Agents above and including a sub-agent; agents that call each other by name would never end."""


def too_deep(run: runs.Run, tool: Tool) -> Failure | None:
    """Return why no sub-agent may be started from this run, or None."""
    if run.path.count("/") + 1 < MAX_DEPTH:
        return None
    return Failure(
        kind="denied",
        reason=f"{tool.name!r} was not started: agents may be nested {MAX_DEPTH} deep, and this is the last. "
        "Do the task with your own tools.",
        fields={"refused_by": "engine"},
    )


def agent_name(tool: Tool) -> str:
    """Return the name of the agent that answers the tool's calls."""
    return str(tool.agent)


def brief_of(tool: Tool, params: Any) -> Message | Failure:
    """Return the sub-agent's input message, or why there is none: what writes it is the author's code, and failed."""
    try:
        return user_message("" if tool.brief is None else tool.brief(params))
    except Exception as error:  # noqa: BLE001 - reported, with its traceback
        report_crash("brief failed", error, tool=tool.name)
        why = f"its task could not be written from these arguments ({type(error).__name__}); this was logged"
        return Failure(kind="execution_error", reason=f"{tool.name!r} was not started: {why}.")


async def open_child(door: Door, child_id: str, brief: Message) -> None:
    """Record the sub-agent's run: a conversation of its own, starting with the brief.

    The same call derives the same run. It inherits workspace, attendance, the run's own policy and its starter, so who may
    not decide here may not there.
    """
    run, call, agent = door.run, door.call, door.engine.agent(agent_name(door.tool))
    new = NewRun(
        id=child_id,
        conversation_id=derived_id("conv", child_id),
        agent=agent.name,
        agent_version=agent.version,
        model=agent.model,
        workspace=run.workspace,
        task=brief.text,
        input_message_id=derived_id("msg", child_id, "input"),
        started_by=run.started_by,
        parent_run_id=run.id,
        parent_tool_call_id=call.tool_call_id,
        path=f"{run.path}/{agent.name}",
        attended=run.attended,
        unattended_asks=run.unattended_asks,
        world=run.world,
        traceparent=RunTrace.of(run.id, run.traceparent).stored_below(call.tool_call_id),
    )
    await calls.set_child(door.conn, run.id, call.tool_call_id, child_id)
    await open_run(
        door.conn,
        new,
        new.input_after(None, brief),
        details={"parent_run_id": run.id},
        begins_conversation=True,
    )


def child_run(engine: Engine, run_id: str, tool: Tool, state: TurnState | None = None) -> ChildRun:
    """Return what the workflow needs to start the sub-agent's run, with the sub-agent's own limits.

    ``state``: where it continues, when its workflow was lost.
    """
    agent = engine.agent(agent_name(tool))
    return ChildRun(run_id=run_id, agent=agent.name, limits=agent.limits.for_run(), state=state)


async def answer_of(conn: Connection, child: runs.Run) -> tuple[Ok | Failure, ExecutionState]:
    """Return the call's result and how it ended: the answer of the sub-agent's run, or how that ended without one.

    Such a call has failed only if nothing below it may have changed anything.
    """
    if child.status == "completed":
        head = await messages.get(conn, child.head_message_id)
        return Ok(value={"answer": head.text, "agent": child.agent, "run_id": child.id}), "succeeded"
    effects = await effects_below(conn, child.id)
    if child.status == "interrupted":
        ended = results.agent_interrupted(child.agent, child.id, child.reason, effects)
    else:
        ended = results.agent_failed(child.agent, child.id, child.reason, child.error_class, effects)
    return ended, "unknown" if effects else "failed"


async def effects_below(conn: Connection, run_id: str) -> list[str]:
    """Return the calls of a run, and of the runs below it, that may have changed something: what each did, in order.

    Which of a ``once`` call is not known, a person is asked, in the run that made it.
    """
    states = {each.tool_call_id: each.state for each in await executions.of_run(conn, run_id)}
    effects = list[str]()
    for call in await calls.of_run(conn, run_id):
        state = states.get(call.tool_call_id)
        if call.child_run_id is not None:
            effects += await effects_below(conn, call.child_run_id)
        elif call.signal is None and call.effect != "read" and state in _MAY_HAVE_CHANGED[call.effect == "once"]:
            effects.append(f"{call.tool_name} ({'it happened' if state == 'succeeded' else 'it may have happened'})")
    return effects


_MAY_HAVE_CHANGED: Final[dict[bool, frozenset[ExecutionState]]] = {
    True: frozenset({"succeeded", "unknown", "executing"}),
    False: frozenset({"succeeded", "unknown", "executing", "failed"}),
}
"""Is it a ``once`` call? → states of its execution. A failure is known only of these."""


async def take_control_call(door: Door, start: Start) -> Settled | Waits:
    """Store what a control call asks of the run. All but a wait are settled by that; they act when the step is closed."""
    run, call = door.run, door.call
    try:
        control_call = read_control_call(door.engine, door.tool, call.decoded_by(door.tool))
    except InvalidToolInput as invalid:
        return await _refuse_started(door, start, results.invalid_input(str(invalid), invalid.problem))
    stored = control_call.model_dump_json()
    await calls.set_control_call(door.conn, run.id, call.tool_call_id, stored)
    digests = events.digests(control={call.tool_call_id: text_digest(stored, call.nonce)})
    await tell_started(door.conn, call, start, signal=control_call.signal, **digests)
    if isinstance(control_call, WaitUntil):
        return Waits(wait_of(control_call))
    await executions.finish(door.conn, run_id=run.id, tool_call_id=call.tool_call_id, state="succeeded")
    settled = await calls.settle(door.conn, run.id, call.tool_call_id, result_of(control_call), nonce=call.nonce)
    payload = {"tool_call_id": call.tool_call_id, "tool": door.tool.name, "ok": True}
    payload |= {"state": "succeeded", "signal": control_call.signal}
    digests = events.digests(result={call.tool_call_id: settled})
    await events.append(door.conn, run.id, [("execution.finished", {**payload, **digests})])
    return Settled(finishes=isinstance(control_call, Finish))


async def delegate(door: Door, start: Start) -> Settled | Delegated:
    """Record the sub-agent's run, for the workflow to start."""
    brief = too_deep(door.run, door.tool) or brief_of(door.tool, door.call.decoded_by(door.tool))
    if isinstance(brief, Failure):
        return await _refuse_started(door, start, brief)
    child_id = derived_id("run", door.run.id, door.call.tool_call_id)
    # In this order: an event of the child takes the counter of all events, and one of this run takes the run before it.
    await tell_started(door.conn, door.call, start, child_run_id=child_id)
    await open_child(door, child_id, brief)
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
    # Settled calls never come here, and every control call but a wait is settled.
    control_call = CONTROL_CALL.validate_json(call.signal or "")
    assert isinstance(control_call, WaitUntil)  # noqa: S101 - see above
    return Waits(wait_of(control_call))


async def _refuse_started(door: Door, start: Start, failure: Failure) -> Settled:
    # The approval is spent and the execution is on record: without the event of its start nothing accounts for its row.
    await tell_started(door.conn, door.call, start)
    await executions.finish(door.conn, run_id=door.run.id, tool_call_id=door.call.tool_call_id, state="failed")
    return await door.refuse(failure)
