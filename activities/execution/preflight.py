"""Preflight: what has to be looked at before a call may start and takes author's code, so outside any transaction.

The agent's before-hooks, the tool's precondition (is the world still as it was when a person said yes?) and its probe
(did a lost call take effect?). It only looks; :mod:`activities.execution.door` decides with what was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog
import svcs

from activities.engine import author_code
from activities.engine.author_code import call_injected, heard
from activities.engine.engine import Engine
from activities.engine.preconditions import idempotency_key, precondition, precondition_or_failure
from activities.execution.executor import encoded
from activities.execution.redemption import LookFirst
from activities.planning.requests import previewed
from turngate.domain.agents.app import Agent
from turngate.domain.agents.hooks import Deny, HookedCall, RunScope
from turngate.domain.tools import results
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.probes import DidNotHappen, Happened, ProbeAnswer
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.store.runs import calls, runs

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen. ``barred``: why the call must not run. ``precondition``: its value now, as JSON; None: it has none.

    ``preview``: taken anew when the precondition changed. ``for_asking``: both were taken for a first question.
    ``probed``: the probe's answer, None when it has none to give.
    """

    barred: Failure | None = None
    precondition: str | None = None
    preview: Preview | None = None
    probed: ProbeAnswer = None
    for_asking: bool = False


def looks_first(agent: Agent, tool: Tool, *, asked: bool, lost: bool) -> bool:
    """Tell whether author's code has to be heard before this call starts.

    ``asked``: a person allowed it. ``lost``: it was started before, and nobody knows how that ended.
    """
    if lost:
        return tool.probe is not None and tool.effect == "once"
    return bool(agent.hooks) or (asked and tool.precondition is not None)


async def look(engine: Engine, first: LookFirst) -> Seen:
    """Hear hooks and precondition of a call that is about to start, or the probe of one that was lost."""
    run, call, tool = first.run, first.call, first.tool
    if first.lost:
        return Seen(probed=await probe(engine, tool, run.id, call.tool_call_id))
    raw_input = call.running_input
    params = tool.decode(raw_input)  # redemption has: it fits
    barred = await _hooks(first.agent, run, call, raw_input, params)
    if first.for_asking and barred is None:
        depends_on = await precondition_or_failure(engine, tool, params, run, call.tool_call_id)
        preview = await previewed(tool, params, run.workspace)
        return Seen(precondition=depends_on, preview=preview, for_asking=True)
    if barred is not None or first.asked_with is None:
        return Seen(barred=barred, precondition=first.asked_with)
    try:
        current = await precondition(engine, tool, params, run, call.tool_call_id)
    except Exception as error:
        log.exception("precondition failed", tool=tool.name, run_id=run.id)
        why = f"its precondition could not be checked again ({type(error).__name__})"
        return Seen(barred=Failure(kind="execution_error", reason=f"The call did not run: {why}."))
    if current == first.asked_with:
        return Seen(precondition=current)
    return Seen(precondition=current, preview=await previewed(tool, params, run.workspace))


async def probe(engine: Engine, tool: Tool, run_id: str, tool_call_id: str) -> ProbeAnswer:
    """Ask the tool whether a lost call took effect; None when it does not know, fails, or answers anything else.

    The result of a call that did is JSON already, by the tool's success type; one that does not fit is no answer.
    """
    if tool.probe is None:
        return None
    try:
        async with svcs.Container(engine.services) as container:
            asked = call_injected(tool.probe, container, key=idempotency_key(run_id, tool_call_id))
            answer = await heard(asked, seconds=author_code.AUTHOR_SECONDS)
        if isinstance(answer, Happened):
            return Happened(encoded(tool, answer.result))
    except Exception:
        log.exception("probe failed", tool=tool.name, run_id=run_id)
        return None
    return answer if isinstance(answer, DidNotHappen) else None


async def _hooks(agent: Agent, run: runs.Run, call: calls.Call, raw_input: str, params: Any) -> Failure | None:
    """Hear the before-hooks in order; the first no counts, and a hook that fails is a no (I2)."""
    scope = RunScope(run_id=run.id, agent=agent.name, step=call.step)
    hooked = HookedCall(tool_name=call.tool_name, tool_call_id=call.tool_call_id, raw_input=raw_input, params=params)
    for hook in agent.hooks:
        try:
            answer = await heard(hook.before_tool(scope, hooked), seconds=author_code.AUTHOR_SECONDS)
        except Exception as error:
            log.exception("before_tool hook failed", hook=type(hook).__name__, tool=call.tool_name, run_id=run.id)
            why = f"{type(hook).__name__}.before_tool failed ({type(error).__name__})"
            return Failure(kind="execution_error", reason=f"The call did not run: {why}. This was logged.")
        if isinstance(answer, Deny):
            return results.forbidden_by_hook(answer.reason)
        if answer is not None:
            why = f"{type(hook).__name__}.before_tool answered {type(answer).__name__} in place of Deny or None"
            return Failure(kind="execution_error", reason=f"The call did not run: {why}.")
    return None
