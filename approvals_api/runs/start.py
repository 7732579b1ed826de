"""Starting a run: one transaction in the store, then its workflow."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from sqlalchemy.exc import IntegrityError

from turngate.approvals_api.gateway.client import BUSY_WAIT
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs.order import (
    CheckedOrder,
    checked_order,
    keep,
    record,
    require_workspace,
    run_live,
    take_back,
)
from turngate.approvals_api.runs.ownership import require_bounds
from turngate.approvals_api.runs.switch_model import require_known_model
from turngate.approvals_api.services import Services
from turngate.domain.contract import AgentTurnInput
from turngate.domain.errors import ConflictError, InvalidInputError, UnavailableError
from turngate.domain.runs.labels import UNATTENDED, RunLabels, labels_of, pseudonym
from turngate.domain.runs.run_filter import LIVE_RUNS
from turngate.domain.runs.turn_state import TurnState
from turngate.domain.tools.external import is_external
from turngate.store import agents
from turngate.store.agents import PublishedAgent
from turngate.store.database import Connection
from turngate.store.events import traces
from turngate.store.runs import runs
from turngate.store.runs.runs import Run
from turngate.store.schedules.schedules import Schedule
from turngate.wire.orders import StartOrder

SWEEP_PAGE = 200
SALT: Final = "salt"


async def start(
    services: Services,
    principal: Principal,
    wanted: StartOrder,
    *,
    idempotency_key: str | None = None,
) -> Run:
    """Start a run and return it; the same ``idempotency_key`` with the same content returns the first run again.

    Args:
        services: the process's services.
        principal: who starts it; must hold ``runs:write``.
        wanted: the agent, its input, and where it works.
        idempotency_key: 1 to 255 characters.

    Raises:
        InvalidInputError: unknown agent (the message lists the agents), ``unknown_model``, ``workspace_refused``,
            workspace or text that does not fit.
        NotFoundError: no such conversation.
        ConflictError: ``run_live`` (details name the live run) or ``idempotency_key_reused``.
        ForbiddenError: the principal may not start runs, or not this one (``beyond_token``).
        UnavailableError: Temporal or the store is away; nothing was changed.
    """
    principal.require("runs:write")  # before anything is read
    order = await checked_order(wanted, principal, idempotency_key=idempotency_key)
    if wanted.model is not None:
        async with services.database.read() as conn:
            await require_known_model(conn, wanted.model)
    return await start_ordered(services, principal, wanted.agent, order)


async def start_ordered(services: Services, principal: Principal, agent: str, order: CheckedOrder) -> Run:
    """Start the run of a checked order: record it, then start its workflow. Raises as :func:`start`."""
    principal.require("runs:write")
    await require_bounds(principal, agent, order.workspace)
    async with services.database.glance() as conn:
        published = await (published_agent(conn, agent) if order.external is None else _agent_of_source(conn, agent))
        first = await _first_under_key(conn, order)
    if first is not None:
        return await _again(services, first, published)
    if order.replay_of is None:  # in a dry run, no tool works in it
        await require_workspace(services, order.workspace)
    if not await services.gateway.ready(BUSY_WAIT):
        raise UnavailableError("Temporal cannot be reached, so no run was started. Try again when it is back.")
    try:
        async with services.database.write() as conn:
            run = await record(conn, principal, published, order)
    except IntegrityError:  # someone else was first with this key or in this conversation
        return await _again(services, await _first_or_conflict(services, order), published)
    try:
        await start_workflow(services, run, published)
    except UnavailableError:
        async with services.database.write() as conn:
            if await take_back(conn, run, order):
                raise
    return run


async def start_recorded(services: Services) -> int:
    """Start the workflows of runs whose process died between recording and starting them; returns how many were tried.

    A sub-agent's run is not one of them: only its parent's workflow may start it, which waits for it.
    Safe to repeat: a workflow that was started is left as it is. Raises UnavailableError when Temporal is away.
    """
    tried = 0
    before = None
    while True:
        async with services.database.read() as conn:
            page = await runs.page(conn, LIVE_RUNS, limit=SWEEP_PAGE, before=before)
            published = {agent.name: agent for agent in await agents.every(conn)}
            sources = {run.agent for run in page if is_external(run.agent)}
            published |= {name: await _agent_of_source(conn, name) for name in sources if published}
        for run in page:
            agent = published.get(run.agent)
            if agent is not None and run.step == 0 and run.parent_run_id is None:
                await start_workflow(services, run, agent)
                tried += 1
        if len(page) < SWEEP_PAGE:
            return tried
        before = (page[-1].created_at, page[-1].id)


async def _again(services: Services, first: Run, agent: PublishedAgent) -> Run:
    """Return the first run; start its workflow if a process died between recording the run and starting it.

    Starting is repeatable. The run is never removed here: it may be running already.
    """
    if first.status == "running" and first.step == 0:
        await start_workflow(services, first, agent)
        async with services.database.write() as conn:
            await keep(conn, first)
    return first


async def _first_under_key(conn: Connection, order: CheckedOrder) -> Run | None:
    first = None if order.key is None else await runs.by_idempotency_key(conn, order.key)
    if first is not None and first.request_fingerprint != order.fingerprint:
        raise ConflictError(
            "this Idempotency-Key was used for another run: send this one under a new key",
            code="idempotency_key_reused",
        )
    return first


async def _first_or_conflict(services: Services, order: CheckedOrder) -> Run:
    async with services.database.read() as conn:
        first = await _first_under_key(conn, order)
        if first is not None:
            return first
        live = None
        if order.conversation_id is not None:
            live = await runs.live_of_conversation(conn, order.conversation_id)
    if live is not None:
        raise run_live(live)
    raise ConflictError("another run was started at the same moment: try again")


async def published_agent(conn: Connection, name: str) -> PublishedAgent:
    """Return an agent; raises InvalidInputError ``unknown_agent``, which lists the agents."""
    agent = None if is_external(name) else await agents.get(conn, name)
    if agent is None:
        names = ", ".join(agent.name for agent in await agents.current(conn))
        known = f"the agents are: {names}" if names else "no worker has published any: start one (`turngate up APP`)"
        message = f"there is no agent {name!r}; {known}"
        raise InvalidInputError(message, code="unknown_agent", errors=[{"pointer": "/agent", "message": message}])
    return agent


async def _agent_of_source(conn: Connection, name: str) -> PublishedAgent:
    """Return the agent of a source of external calls."""
    agent = await agents.get(conn, name)
    if agent is None:
        raise UnavailableError("no worker has run yet to judge this call: start one (`turngate up APP`)")
    return agent


async def start_workflow(services: Services, run: Run, agent: PublishedAgent) -> None:
    """Start the workflow of a recorded run; safe to repeat. Raises UnavailableError when Temporal is away."""
    labels = await run_labels(services, run)
    await services.gateway.start_run(turn_input(services, run, agent), agent.task_queue, labels)


def turn_input(services: Services, run: Run, agent: PublishedAgent, state: TurnState | None = None) -> AgentTurnInput:
    """Return the input of the run's workflow. ``state``: where a recovered one continues."""
    limits = agent.run_limits.for_run().with_heartbeat(services.settings.heartbeat_timeout_seconds)
    return AgentTurnInput(run_id=run.id, agent=run.agent, limits=limits, state=state)


# Labels: what Temporal knows of runs and schedules, with the pseudonym of the person in whose name they start.


async def run_labels(services: Services, run: Run) -> RunLabels:
    """Return the labels of a run. Never raises: while the store is away, they lack its starter."""
    return labels_of(run, starter=await _pseudonym(services, run.started_by))


async def schedule_labels(services: Services, schedule: Schedule) -> RunLabels:
    """Return the labels of a schedule's fires, and so of its runs."""
    return RunLabels(
        agent=schedule.agent,
        source="schedule",
        priority=UNATTENDED,
        starter=await _pseudonym(services, schedule.created_by),
        schedule=schedule.id,
    )


async def _pseudonym(services: Services, name: str) -> str | None:
    """Return what a person is called in Temporal, which keeps it beyond an erasure (docs/adr/0058). None: nothing, now."""
    if await services.gateway.labels.attributes() != "on":
        return None
    if SALT not in services.read_once:
        with suppress(UnavailableError):
            await _read_salt(services)
    salt = services.read_once.get(SALT)
    return None if salt is None else pseudonym(salt, name)


async def _read_salt(services: Services) -> None:
    async with services.database.glance() as conn:
        salt = await traces.salt(conn)
    if salt is None:
        with suppress(IntegrityError):  # another process added it at the same moment
            async with services.database.write() as conn:
                await traces.add_salt(conn)
        async with services.database.read() as conn:
            salt = await traces.salt(conn)
    if salt is not None:
        services.read_once[SALT] = salt
