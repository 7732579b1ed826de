"""Messages that were sent while a run was live: read before its next step, or answered by the conversation's next run."""

from __future__ import annotations

from dataclasses import replace

import structlog

from activities.engine.author_code import heard
from activities.engine.engine import Engine
from turngate.domain.agents.hooks import RunScope
from turngate.domain.contract import ChildRun, RunLimits
from turngate.domain.conversation.messages import user_message
from turngate.domain.digest import derived_id
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import messages, queued_messages, runs, steps
from turngate.store.runs.new_run import NewRun, open_run


async def take_messages(conn: Connection, run: runs.Run) -> runs.Run:
    """Append what waits for the run's next step behind its head, and return the run as it goes on. Safe to repeat."""
    for message in await queued_messages.waiting(conn, run.id):
        if message.while_running == "queue":
            continue
        await messages.append(
            conn,
            message_id=message.id,
            parent_id=run.head_message_id,
            conversation_id=run.conversation_id,
            run_id=run.id,
            step=None,
            message=user_message(message.text),
        )
        await runs.move_head(conn, run, message.id)
        await queued_messages.take(conn, message.id, run_id=run.id)
        await events.append(conn, run.id, [("message.taken", {"message_id": message.id, "sent_by": message.sent_by})])
        run = replace(run, head_message_id=message.id)
    return run


async def open_next(engine: Engine, conn: Connection, run: runs.Run) -> ChildRun | None:
    """Record the run that answers the oldest message which waits for a run that has just ended; None: none waits.

    In the transaction that ends it, so that the conversation never lacks one that was accepted. The other messages wait
    for the new run. A sub-agent's run has no next: its end answers its parent.
    """
    if run.parent_run_id is not None:
        return None
    waiting = await queued_messages.waiting(conn, run.id)
    if not waiting:
        return None
    message, next_id = waiting[0], derived_id("run", run.id, waiting[0].id)
    agent = engine.agents.get(run.agent)
    new = NewRun(
        id=next_id,
        conversation_id=run.conversation_id,
        agent=run.agent,
        agent_version=run.agent_version if agent is None else agent.version,
        model=run.chosen_model,
        workspace=run.workspace,
        task=message.text,
        input_message_id=message.id,
        started_by=message.sent_by,
        request_fingerprint=message.fingerprint,
        attended=run.attended,
        unattended_asks=run.unattended_asks,
        world=run.world,
    )
    await queued_messages.take(conn, message.id, run_id=next_id)
    await queued_messages.hand_on(conn, run.id, to=next_id)
    head = await messages.head_of(conn, run.conversation_id)
    await open_run(conn, new, says=user_message(message.text), behind=head, told={"follows": run.id})
    return _to_start(engine, next_id, run.agent)


async def recorded_next(engine: Engine, conn: Connection, run_id: str) -> ChildRun | None:
    """Return the run that :func:`open_next` recorded for this one in an attempt whose answer was lost; None: it did not."""
    run = await runs.get(conn, run_id)
    live = None if run is None else await runs.live_of_conversation(conn, run.conversation_id)
    if live is None or live.step > 0 or live.id != derived_id("run", run_id, live.input_message_id):
        return None
    return _to_start(engine, live.id, live.agent)


def _to_start(engine: Engine, run_id: str, agent_name: str) -> ChildRun:
    agent = engine.agents.get(agent_name)
    return ChildRun(run_id=run_id, agent=agent_name, limits=RunLimits() if agent is None else agent.limits.for_run())


# After a step is closed: the agent's after-hooks see its results. They can change nothing.


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
