"""Control calls: what a call asks of the run, read when it is planned and carried out when its step is closed."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from turngate.activities.engine.engine import Engine
from turngate.domain.contract import Wait
from turngate.domain.crashes import report_crash
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.control_calls import MAX_WAIT, ControlCall, Finish, HandOff, SwitchModel, WaitUntil
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.results import Ok
from turngate.domain.tools.tool import Tool
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import calls, runs

CONTROL_CALL: TypeAdapter[ControlCall] = TypeAdapter(ControlCall)


def read_control_call(engine: Engine, tool: Tool, params: Any) -> ControlCall:
    """Return what the call asks for, as its tool interprets it. Reads nothing, changes nothing.

    Raises InvalidToolInput, in words for the model: there is no such agent or model, the wait is too long, or the tool
    refuses the arguments. Its ValueError is shown to the model; anything else is the author's bug, and only logged.
    """
    if tool.interpret is None:
        raise InvalidToolInput(f"{tool.name!r} has no meaning here")
    try:
        control_call = CONTROL_CALL.validate_python(tool.interpret(params))
    except ValueError as refused:  # pydantic's own errors are of this kind too
        raise InvalidToolInput(str(refused)) from None
    except Exception as bug:  # noqa: BLE001 - reported, with its traceback
        report_crash("interpret failed", bug, tool=tool.name)
        why = f"{tool.name!r} could not make anything of these arguments ({type(bug).__name__}); this was logged"
        raise InvalidToolInput(why) from None
    match control_call:
        case WaitUntil(until=until) if until is not None and until > now() + MAX_WAIT:
            # Temporal counts timers in nanoseconds: a timer of some centuries would never be accepted, nor end.
            raise InvalidToolInput(f"a wait lasts at most {MAX_WAIT.days} days")
        case HandOff(agent=name) if name not in engine.agents:
            raise InvalidToolInput(f"there is no agent {name!r}; the agents are: {', '.join(engine.agents)}")
        case SwitchModel(model=spec):
            try:
                engine.models.resolve(spec)
            except ConfigurationError as error:
                raise InvalidToolInput(f"the model {spec!r} cannot be used: {error.message}") from None
        case _:
            pass
    return control_call


def result_of(control_call: ControlCall) -> Ok:
    """Return the result of a control call that was accepted. A wait gets it when it is over."""
    match control_call:
        case Finish():
            return Ok(value={"finished": True})
        case HandOff(agent=agent):
            return Ok(value={"handed_off_to": agent})
        case SwitchModel(model=model):
            return Ok(value={"model": model})
        case WaitUntil():
            return Ok(value={"waited": True})


def wait_of(control_call: WaitUntil) -> Wait:
    """Return the timer that the workflow holds."""
    return Wait(until=control_call.until, seconds=control_call.seconds)


def is_finish(call: calls.Call) -> bool:
    """Tell whether a settled call ends the run with its step."""
    return call.signal is not None and isinstance(CONTROL_CALL.validate_json(call.signal), Finish)


async def carry_out(engine: Engine, conn: Connection, run: runs.Run, step: int) -> bool:
    """Hand the run off, or switch its model, as the control calls of the step just closed say; of several the last counts.

    Returns whether anything changed. Part of the transaction that closes the step, so it happens once. LookupError: a call of
    the step finishes the run, so no step follows, whatever was ordered (I13).
    """
    changes: list[events.NewEvent] = []
    agent, model = run.agent, run.model
    for call in await calls.of_step(conn, run.id, step):
        if call.signal is None or not isinstance(call.settled_result, Ok):
            continue
        match CONTROL_CALL.validate_json(call.signal):
            case HandOff(agent=to):
                changes.append(("run.handed_off", {"tool_call_id": call.tool_call_id, "from": agent, "to": to}))
                agent, model = to, engine.agent(to).model
            case SwitchModel(model=to):
                changes.append(("run.model_switched", {"tool_call_id": call.tool_call_id, "from": model, "to": to}))
                model = to
            case Finish():
                raise LookupError(f"run {run.id!r} ends with step {step}: call {call.tool_call_id!r} finishes it")
            case _:
                pass
    if changes:
        await runs.set_lead(conn, run, agent=agent, agent_version=engine.agent(agent).version, model=model)
        await events.append(conn, run.id, changes)
    return bool(changes)
