"""Starting a run: one transaction in the store, then its workflow. Used by the JSON API, the pages and forking."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace

from sqlalchemy.exc import IntegrityError

from approvals_api.gateway import BUSY_WAIT
from approvals_api.own_worlds import own_facts
from approvals_api.principals import Principal
from approvals_api.run_order import Order, checked_order
from approvals_api.services import Services
from approvals_api.switching import require_known_model
from turngate.domain.contract import AgentTurnInput
from turngate.domain.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from turngate.domain.external import is_external
from turngate.domain.messages import user_message
from turngate.domain.outcomes import end_told
from turngate.domain.requests import UnattendedAsks
from turngate.domain.turn_state import TurnState
from turngate.store import agents, events, external_calls, messages, runs, summaries, worlds
from turngate.store.agents import PublishedAgent
from turngate.store.database import Connection
from turngate.store.runs import Run
from turngate.store.tables import conversations

logger = logging.getLogger(__name__)

SWEEP_PAGE = 200
SUMMARISED = {"summarise": True}
"""Of a fork's beginning: a summary stands in place of the past it shares."""


async def start(
    services: Services,
    principal: Principal,
    *,
    agent: str,
    text: str,
    conversation_id: str | None = None,
    workspace: str | None = None,
    model: str | None = None,
    idempotency_key: str | None = None,
    unattended: UnattendedAsks | None = None,
) -> Run:
    """Start a run and return it; the same ``idempotency_key`` with the same content returns the first run again.

    Args:
        services: the process's services.
        principal: who starts it; must hold ``runs:write``.
        agent: name of a published agent.
        text: the input message, 1 to 100,000 characters.
        conversation_id: go on with this conversation; None begins one.
        workspace: absolute path of an existing directory on this machine, or None.
        model: in place of the agent's own (``provider:name`` or a profile's name).
        idempotency_key: 1 to 255 characters.
        unattended: nobody attends the run, and this becomes of what would be asked; None: somebody does.

    Raises:
        InvalidInputError: unknown agent (the message lists those there are), ``unknown_model``, workspace or text that does
            not fit.
        NotFoundError: no such conversation.
        ConflictError: ``run_live`` (details name the live run) or ``idempotency_key_reused``.
        ForbiddenError: the principal may not start runs.
        UnavailableError: Temporal or the store is away; nothing was changed.
    """
    principal.require("runs:write")  # before anything is looked at
    order = await checked_order(
        by=principal.name,
        agent=agent,
        text=text,
        conversation_id=conversation_id,
        workspace=workspace,
        model=model,
        idempotency_key=idempotency_key,
        unattended=unattended,
    )
    if model is not None:
        async with services.database.read() as conn:
            await require_known_model(conn, model)
    return await start_ordered(services, principal, agent, order)


async def start_ordered(services: Services, principal: Principal, agent: str, order: Order) -> Run:
    """Start the run that a checked order asks for: record it, then start its workflow. Raises as :func:`start` does."""
    principal.require("runs:write")
    async with services.database.read() as conn:
        published = await (published_agent(conn, agent) if order.external is None else _stands_for(conn, agent))
        first = await _first_under_key(conn, order)
    if first is not None:
        return await _again(services, first, published)
    if not await services.gateway.ready(BUSY_WAIT):
        raise UnavailableError("Temporal cannot be reached, so no run was started. Try again when it is back.")
    try:
        async with services.database.write() as conn:
            run = await _record(conn, principal, published, order)
    except IntegrityError:  # somebody else was first with this key or in this conversation
        return await _again(services, await _first_or_conflict(services, order), published)
    try:
        await services.gateway.start_run(turn_input(services, run, published), published.task_queue)
    except UnavailableError:
        await _take_back(services, run, order)
        raise
    return run


async def start_recorded(services: Services) -> int:
    """Start the workflows of runs whose process died between recording and starting them; returns how many were tried.

    A sub-agent's run is not one of them: its parent's workflow starts it, and nobody else, or nobody would wait for it.
    Safe to repeat: a workflow that was started is left as it is. Raises UnavailableError when Temporal is away.
    """
    tried = 0
    before = None
    while True:
        async with services.database.read() as conn:
            page = await runs.page(conn, limit=SWEEP_PAGE, before=before, status="running")
            published = {agent.name: agent for agent in await agents.every(conn)}
            sources = {run.agent for run in page if is_external(run.agent)}
            published |= {name: await _stands_for(conn, name) for name in sources if published}
        for run in page:
            agent = published.get(run.agent)
            if agent is not None and run.step == 0 and run.parent_run_id is None:
                await services.gateway.start_run(turn_input(services, run, agent), agent.task_queue)
                tried += 1
        if len(page) < SWEEP_PAGE:
            return tried
        before = (page[-1].created_at, page[-1].id)


async def _record(conn: Connection, principal: Principal, agent: PublishedAgent, order: Order) -> Run:
    """Write conversation, input message, run and its first event. Raises IntegrityError when another run was first."""
    conversation_id = order.conversation_id or f"conv_{secrets.token_hex(12)}"
    if order.conversation_id is None:
        await messages.create_conversation(conn, conversation_id)
    elif not await messages.conversation_exists(conn, conversation_id):
        raise NotFoundError(f"there is no conversation {conversation_id!r}")
    live = await runs.live_of_conversation(conn, conversation_id)
    if live is not None:
        raise _live(live)
    fork = order.forked_from
    run_id, model = f"run_{secrets.token_hex(12)}", order.model or agent.model
    message_id = await _input_message(conn, order, conversation_id, run_id)
    await runs.create(
        conn,
        run_id=run_id,
        conversation_id=conversation_id,
        agent=agent.name,
        agent_version=agent.version,
        model=model,
        workspace=order.workspace,
        task=order.text,
        input_message_id=message_id,
        started_by=principal.name,
        idempotency_key=order.key,
        request_fingerprint=order.fingerprint,
        forked_from_run_id=None if fork is None else fork.run_id,
        forked_from_step=None if fork is None else fork.step,
        attended=order.unattended is None,
        unattended_asks=order.unattended or "park",
        world=await worlds.keep(conn, order.world),
        replay_of_run_id=order.replay_of,
        model_chosen_by=principal.name if order.model_is_fixed else None,
    )
    if order.external is not None:
        await external_calls.add(conn, replace(order.external, run_id=run_id))
    # The input is part of the conversation from now on, whatever becomes of the run that answers it.
    await messages.set_head(conn, conversation_id, message_id)
    named = {"agent": agent.name, "model": model}
    started: dict[str, object] = {**named, "started_by": principal.name, "by": principal.name}
    if order.unattended is not None:
        started["unattended"] = order.unattended
    if order.world is not None and not order.world.is_plain:
        started["own"] = own_facts(order.world)
    if fork is not None:
        started["forked_from"] = {"run_id": fork.run_id, "step": fork.step} | (SUMMARISED if order.summarise else {})
    if order.replay_of is not None:
        started["replay_of"] = {"run_id": order.replay_of, "step": 0 if fork is None else fork.step}
    await events.append(conn, run_id, [("run.started", started)])
    run = await runs.get(conn, run_id)
    if run is None:  # pragma: no cover - inserted above, in this transaction
        raise RuntimeError(f"run {run_id} vanished")
    return run


async def _input_message(conn: Connection, order: Order, conversation_id: str, run_id: str) -> str:
    """Write what is said to the new run, and return the message it begins with."""
    if order.begins_at is not None:
        return order.begins_at
    fork = order.forked_from
    head = await messages.head_of(conn, conversation_id) if fork is None or order.continues else fork.message_id
    if order.continues:
        if fork is None or head != fork.message_id:
            raise ConflictError(
                "the conversation has gone on since: fork the run from one of its steps instead",
                code="conversation_moved_on",
            )
        return fork.message_id
    if order.summarise:
        await summaries.want(conn, run_id)
    message_id = f"msg_{secrets.token_hex(12)}"
    await messages.append(
        conn,
        message_id=message_id,
        parent_id=head,
        conversation_id=conversation_id,
        run_id=run_id,
        step=None,
        message=user_message(order.text),
    )
    return message_id


async def _again(services: Services, first: Run, agent: PublishedAgent) -> Run:
    """Return the first run; start its workflow if a crash came between recording the run and starting it.

    Starting is repeatable. The run is never taken back here: it may be at work already.
    """
    if first.status == "running" and first.step == 0:
        await services.gateway.start_run(turn_input(services, first, agent), agent.task_queue)
    return first


async def _take_back(services: Services, run: Run, order: Order) -> None:
    """Remove a run that did not start. Its events stay: the log is append-only, and it says how the run ended.

    Should the workflow have started after all, it finds no run in the store, and nothing can run in its name.
    """
    async with services.database.write() as conn:
        now = await runs.get(conn, run.id)
        if now is None or now.step > 0:
            return
        parent_id = (await messages.path_to(conn, run.input_message_id))[-1].parent_id
        why = "Temporal was away; the run did not start"
        ended = end_told(status="failed", reason=why, error_class="not_started")
        await events.append(conn, run.id, [("run.ended", ended)])
        await events.keep_head(conn, run.id)
        await external_calls.remove(conn, run.id)
        await runs.remove_unstarted(conn, run.id)
        if order.continues:
            return
        if order.conversation_id is None:
            await conn.execute(conversations.delete().where(conversations.c.id == run.conversation_id))
        elif parent_id is not None:
            await messages.set_head(conn, run.conversation_id, parent_id)


async def _first_under_key(conn: Connection, order: Order) -> Run | None:
    first = None if order.key is None else await runs.by_idempotency_key(conn, order.key)
    if first is not None and first.request_fingerprint != order.fingerprint:
        raise ConflictError(
            "this Idempotency-Key was used for another run: send this one under a key of its own",
            code="idempotency_key_reused",
        )
    return first


async def _first_or_conflict(services: Services, order: Order) -> Run:
    async with services.database.read() as conn:
        first = await _first_under_key(conn, order)
        if first is not None:
            return first
        live = None
        if order.conversation_id is not None:
            live = await runs.live_of_conversation(conn, order.conversation_id)
    if live is not None:
        raise _live(live)
    raise ConflictError("another run was started at the same moment: send this again")


async def published_agent(conn: Connection, name: str) -> PublishedAgent:
    """Return an agent; raises InvalidInputError ``unknown_agent``, which lists those there are."""
    found = None if is_external(name) else await agents.get(conn, name)
    if found is None:
        names = ", ".join(agent.name for agent in await agents.every(conn))
        known = f"the agents are: {names}" if names else "no worker has published any: start one (`turngate up APP`)"
        message = f"there is no agent {name!r}; {known}"
        raise InvalidInputError(message, code="unknown_agent", errors=[{"pointer": "/agent", "message": message}])
    return found


async def _stands_for(conn: Connection, name: str) -> PublishedAgent:
    """Return the agent that stands for a source of calls from outside."""
    found = await agents.get(conn, name)
    if found is None:
        raise UnavailableError("no worker has run yet that could judge this call: start one (`turngate up APP`)")
    return found


def turn_input(services: Services, run: Run, agent: PublishedAgent, state: TurnState | None = None) -> AgentTurnInput:
    """Return what the run's workflow is started with. ``state``: where a recovered one goes on."""
    heartbeat = {"heartbeat_timeout_seconds": services.settings.heartbeat_timeout_seconds}
    limits = agent.run_limits.for_run().model_copy(update=heartbeat)
    return AgentTurnInput(run_id=run.id, agent=run.agent, limits=limits, state=state)


def _live(run: Run) -> ConflictError:
    return ConflictError(
        f"run {run.id} of this conversation is still live: wait for its end, or interrupt it",
        code="run_live",
        run_id=run.id,
    )
