"""Forking: a new conversation that continues after a closed step of a run, and shares its past at no cost.

Messages name their parent, so nothing is copied: the fork's first message is a child of the last one of that step. The run
that is forked, and its conversation, are only read; it may be running, ended, a fork itself, or a sub-agent's.
"""

from __future__ import annotations

from dataclasses import replace

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.retention.erase import require_content
from turngate.approvals_api.runs import start
from turngate.approvals_api.runs.lead import lead_after
from turngate.approvals_api.runs.order import ForkPoint, checked_order
from turngate.approvals_api.runs.overrides import changed_overrides, require_policy_right
from turngate.approvals_api.runs.ownership import own_run
from turngate.approvals_api.runs.switch_model import require_known_model
from turngate.approvals_api.services import Services
from turngate.domain.errors import InvalidInputError
from turngate.store.database import Connection
from turngate.store.runs import overrides, steps
from turngate.store.runs.runs import Run
from turngate.wire.orders import ForkOrder, StartOrder


async def fork(
    services: Services,
    principal: Principal,
    run_id: str,
    wanted: ForkOrder,
    *,
    idempotency_key: str | None = None,
) -> Run:
    """Start a run after a closed step of another one, and return it.

    The same ``idempotency_key`` with the same content returns the first fork again, also if the run has continued since.

    Args:
        services: the process's services.
        principal: who forks; must hold ``runs:write``.
        run_id: the run to fork.
        wanted: the fork's first message, and what it has instead of what the run has.
        idempotency_key: 1 to 255 characters.

    Raises:
        NotFoundError: no such run.
        InvalidInputError: no such closed step (the message lists the closed ones), ``unknown_tool``, ``invalid_policy``, or
            what :func:`start.start` refuses.
        ConflictError: ``idempotency_key_reused``.
        ForbiddenError: the principal may not start runs, or not with their own policy.
        UnavailableError: Temporal or the store is away; nothing was changed.
    """
    principal.require("runs:write")
    async with services.database.read() as conn:
        run = await own_run(conn, principal, run_id)
        await require_content(conn, run.erasure_id, "a fork of it")
        point = await fork_point(conn, run, wanted.step)
        lead = await lead_after(conn, run, point.step)
        published = await start.published_agent(conn, wanted.agent or lead.agent)
        run_overrides = changed_overrides(await overrides.get(conn, run.world), published, wanted)
        if wanted.model is not None:
            await require_known_model(conn, wanted.model)
    require_policy_right(principal, run_overrides)
    own_model = lead.model if published.name == lead.agent else None
    first = StartOrder(
        agent=published.name,
        input=wanted.text,
        workspace=wanted.workspace or run.workspace,
        model=wanted.model or own_model,
        unattended=None if run.attended else run.unattended_asks,
    )
    order = replace(
        await checked_order(first, principal, idempotency_key=idempotency_key, text_at="/text"),
        forked_from=point,
        fingerprint=wanted.fingerprint(principal.name, run_id),
        run_overrides=run_overrides,
        summarise=wanted.summarise,
    )
    return await start.start_ordered(services, principal, published.name, order)


async def fork_point(conn: Connection, run: Run, step: int | None) -> ForkPoint:
    """Return where a fork of this run begins; raises InvalidInputError when the step is not closed, or not there."""
    closed = {each.step: each for each in await steps.of_run(conn, run.id) if each.closed_at is not None}
    number = max(closed, default=None) if step is None else step
    if number is None or number not in closed:
        raise _no_such_step(run, step, sorted(closed))
    closed_step = closed[number]
    # A control call that finishes the run adds its answer after the results; a response without calls is its own last message.
    ended_here = run.status == "completed" and number == run.step
    last = run.head_message_id if ended_here else closed_step.results_message_id or closed_step.assistant_message_id
    return ForkPoint(run_id=run.id, step=number, message_id=last)


def _no_such_step(run: Run, step: int | None, closed: list[int]) -> InvalidInputError:
    wanted = "" if step is None else f" {step}"
    match closed:
        case []:
            there_is = "none of its steps is closed yet" if run.status == "running" else "it ended before its first one"
        case [only]:
            there_is = f"its one closed step is {only}"
        case _:
            there_is = f"its closed steps are {closed[0]} to {closed[-1]}"
    message = f"run {run.id} has no closed step{wanted} to fork from: {there_is}"
    return InvalidInputError(message, code="no_such_step", errors=[{"pointer": "/step", "message": message}])
