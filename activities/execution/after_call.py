"""After a call has run: the agent's after-hooks, and the tool's own view of its result for people. Neither can change it."""

from __future__ import annotations

import asyncio

import structlog

from activities.engine.author_code import heard
from activities.engine.engine import Engine
from activities.execution.redemption import Redeemed
from turngate.domain.agents.hooks import HookedCall, RunScope
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.presentation import PRESENTATION, presented
from turngate.domain.tools.results import Failure, Ok

log = structlog.get_logger(__name__)

PRESENTER_SECONDS = 2.0
HOOK_SECONDS = 30.0


async def presentation_of(redeemed: Redeemed, result: Ok | Failure) -> str | None:
    """Return the tool's own view of call and result as JSON; None for a tool without one, or one that fails or hangs."""
    if redeemed.tool.present is None:
        return None
    try:
        params = redeemed.tool.decode(redeemed.raw_input)
        shown = asyncio.to_thread(presented, redeemed.tool, params, result)
        return PRESENTATION.dump_json(await heard(shown, seconds=PRESENTER_SECONDS)).decode()
    except Exception:
        log.exception("presenter failed", tool=redeemed.tool.name)
        return None


async def after_tool(engine: Engine, redeemed: Redeemed, result: Ok | Failure) -> None:
    """Show the stored result to the agent's hooks; what they raise is logged."""
    run, call = redeemed.run, redeemed.call
    agent = engine.agent(run.agent)
    if not agent.hooks:
        return
    try:
        params = redeemed.tool.decode(redeemed.raw_input)
    except InvalidToolInput:
        return  # its policy has changed under it: the result says so
    scope = RunScope(run_id=run.id, agent=agent.name, step=call.step)
    hooked = HookedCall(
        tool_name=call.tool_name, tool_call_id=call.tool_call_id, raw_input=redeemed.raw_input, params=params
    )
    for hook in agent.hooks:
        try:
            await heard(hook.after_tool(scope, hooked, result), seconds=HOOK_SECONDS)
        except Exception:
            log.exception("after_tool hook failed", hook=type(hook).__name__, tool=call.tool_name, run_id=run.id)
