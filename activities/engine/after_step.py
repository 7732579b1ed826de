"""After a step is closed: the agent's after-hooks see its results. They can change nothing."""

from __future__ import annotations

import structlog

from activities.engine.author_code import heard
from activities.engine.engine import Engine
from turngate.domain.agents.hooks import RunScope
from turngate.store.runs import messages, runs, steps

log = structlog.get_logger(__name__)

HOOK_SECONDS = 30.0


async def after_step(engine: Engine, run: runs.Run, step: int) -> None:
    """Call the hooks of the run's agent for a closed step; what they raise is logged. ``run.agent``: who took that step.

    Not in a dry replay: nothing has happened there that they could tell of.
    """
    agent = engine.agents.get(run.agent)
    if agent is None or not agent.hooks or run.is_dry:
        return
    async with engine.database.read() as conn:
        closed = await steps.get(conn, run.id, step)
        results_id = None if closed is None else closed.results_message_id
        closing = [] if results_id is None else [await messages.get(conn, results_id)]
    results = [message for message in closing if message.role == "tool"]  # not what a malformed response was answered
    scope = RunScope(run_id=run.id, agent=agent.name, step=step)
    for hook in agent.hooks:
        try:
            await heard(hook.after_step(scope, results), seconds=HOOK_SECONDS)
        except Exception:
            log.exception("after_step hook failed", hook=type(hook).__name__, run_id=run.id)
