"""After a step is closed: the agent's after-hooks see its results. They can change nothing."""

from __future__ import annotations

import asyncio

import structlog

from activities.engine import Engine
from turngate.domain.hooks import RunScope
from turngate.store import messages, runs, steps

log = structlog.get_logger(__name__)

HOOK_SECONDS = 30.0


async def after_step(engine: Engine, run_id: str, step: int | None = None) -> None:
    """Call the hooks for a closed step (None: the run's last one); what they raise is logged."""
    async with engine.database.read() as conn:
        run = await runs.get(conn, run_id)
        agent = None if run is None else engine.agents.get(run.agent)
        if run is None or agent is None or not agent.hooks:
            return
        closed = await steps.get(conn, run_id, step or run.step)
        results_id = None if closed is None else closed.results_message_id
        results = [] if results_id is None else [await messages.get(conn, results_id)]
    scope = RunScope(run_id=run_id, agent=agent.name, step=step or run.step)
    for hook in agent.hooks:
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await hook.after_step(scope, results)
        except Exception:
            log.exception("after_step hook failed", hook=type(hook).__name__, run_id=run_id)
