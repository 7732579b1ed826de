"""Dry runs: a run that repeats another one with its recorded results and without side effects.

The model is really called, by the code that the worker runs now, and policy judges each call as it would now. A call that the
other run made too gets the result that is recorded there; any other call is closed as a divergence. No tool runs and no person
is asked: the activities see to that (:mod:`turngate.activities.planning.dry_run`, :mod:`turngate.activities.execution.door`).
"""

from __future__ import annotations

from dataclasses import replace

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.retention.erase import require_content
from turngate.approvals_api.runs import start
from turngate.approvals_api.runs.fork import fork_point
from turngate.approvals_api.runs.lead import lead_after
from turngate.approvals_api.runs.order import checked_order
from turngate.approvals_api.runs.overrides import changed_overrides
from turngate.approvals_api.runs.ownership import own_run
from turngate.approvals_api.runs.switch_model import require_known_model
from turngate.approvals_api.services import Services
from turngate.domain.errors import ConflictError
from turngate.store.runs import overrides
from turngate.store.runs.runs import Run
from turngate.wire.orders import DryRunOrder, StartOrder


async def start_dry_run(
    services: Services,
    principal: Principal,
    run_id: str,
    wanted: DryRunOrder,
    *,
    idempotency_key: str | None = None,
) -> Run:
    """Start a dry run of a run, and return it. The run may be live; a call that has no result there answers none.

    It needs no more than the right to start runs, also under its own policy: no tool runs under it.

    Args:
        services: the process's services.
        principal: who starts it; must hold ``runs:write``.
        run_id: the run to repeat.
        wanted: where it begins, and what it has instead of what the run has.
        idempotency_key: 1 to 255 characters; the same one with the same content returns the first dry run again.

    Raises:
        NotFoundError: no such run.
        InvalidInputError: ``no_such_step``, ``unknown_agent``, ``unknown_tool``, ``invalid_policy``, or what does not fit.
        ConflictError: ``dry_replay`` (it is one itself), ``idempotency_key_reused``.
        ForbiddenError: the principal may not start runs.
        UnavailableError: Temporal or the store is away; nothing was changed.
    """
    principal.require("runs:write")
    async with services.database.read() as conn:
        run = await own_run(conn, principal, run_id)
        await require_content(conn, run.erasure_id, "a dry run of it", needs_results=True)
        refuse_dry(run, f"start one of run {run.replay_of_run_id}, whose record it follows")
        point = None if wanted.step is None else await fork_point(conn, run, wanted.step)
        lead = await lead_after(conn, run, 0 if point is None else point.step)
        published = await start.published_agent(conn, wanted.agent or lead.agent)
        run_overrides = changed_overrides(await overrides.get(conn, run.world), published, wanted)
        if wanted.model is not None:
            await require_known_model(conn, wanted.model)
    own_model = lead.model if published.name == lead.agent else None
    first = StartOrder(
        agent=published.name,
        input=run.task if run.task.strip() else f"(dry run of {run.id})",  # a sub-agent's brief may be empty
        model=wanted.model or own_model,
        unattended=None if run.attended else run.unattended_asks,
    )
    order = replace(
        await checked_order(first, principal, idempotency_key=idempotency_key),
        workspace=run.workspace,  # rules read it; it may be gone, because no tool works in it
        forked_from=point,
        begins_at=run.input_message_id if point is None else point.message_id,
        replay_of=run.id,
        model_is_fixed=wanted.model is not None or published.name != lead.agent,
        fingerprint=wanted.fingerprint(principal.name, run_id),
        run_overrides=run_overrides,
    )
    return await start.start_ordered(services, principal, published.name, order)


def refuse_dry(run: Run, instead: str) -> None:
    """Raise ConflictError ``dry_replay`` for a run that must not continue: its calls never ran."""
    if run.is_dry:
        raise ConflictError(
            f"run {run.id} is a dry run, in which no tool ran: {instead}", code="dry_replay", run_id=run.id
        )
