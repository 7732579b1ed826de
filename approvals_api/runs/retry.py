"""Retrying: a new run that continues where one failed or was interrupted, in its conversation, without a new message.

It has the same overrides (instructions, tools, policy). What the first run did stays done. The results of calls that its end
closed say so, so the model knows which of them ran, and no call is sent twice: the model makes a call again if it still needs
it, and policy and people decide it again.
"""

from __future__ import annotations

from dataclasses import replace

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.retention.erase import require_content
from turngate.approvals_api.runs import start
from turngate.approvals_api.runs.dry_run import refuse_dry
from turngate.approvals_api.runs.order import ForkPoint, checked_order
from turngate.approvals_api.runs.ownership import own_run
from turngate.approvals_api.runs.switch_model import require_known_model
from turngate.approvals_api.services import Services
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConflictError
from turngate.store.runs import overrides
from turngate.store.runs.runs import Run
from turngate.wire.orders import StartOrder

RETRIED = frozenset({"failed", "interrupted"})


async def retry(
    services: Services,
    principal: Principal,
    run_id: str,
    *,
    model: str | None = None,
    idempotency_key: str | None = None,
) -> Run:
    """Start the run that continues where this one ended, and return it.

    Args:
        services: the process's services.
        principal: who retries; must hold ``runs:write``.
        run_id: a run that failed or was interrupted, the last one of its conversation.
        model: instead of the run's own.
        idempotency_key: 1 to 255 characters; the same one with the same content returns the first retry again.

    Raises:
        NotFoundError: no such run.
        ConflictError: ``not_failed`` (it is live or completed, or a sub-agent's), ``dry_replay``,
            ``conversation_moved_on``, ``run_live``, ``idempotency_key_reused``.
        InvalidInputError: the model does not fit.
        ForbiddenError: the principal may not start runs.
        UnavailableError: Temporal or the store is away; nothing was changed.
    """
    principal.require("runs:write")
    async with services.database.read() as conn:
        run = await own_run(conn, principal, run_id)
        await require_content(conn, run.erasure_id, "a retry of it")
        run_overrides = await overrides.get(conn, run.world)
        if model is not None:
            await require_known_model(conn, model)
    if run.status not in RETRIED:
        raise ConflictError(
            f"only a run that failed or was interrupted can be retried; this one is {run.status}",
            code="not_failed",
            status=run.status,
        )
    refuse_dry(run, "start another dry run, or fork it from one of its steps")
    if run.parent_run_id is not None:
        raise ConflictError(
            f"this run answered a call of run {run.parent_run_id}: retry that run", code="not_failed", status=run.status
        )
    again = StartOrder(
        agent=run.agent,
        input=run.task,
        conversation_id=run.conversation_id,
        workspace=run.workspace,
        model=model or run.chosen_model or None,
        unattended=None if run.attended else run.unattended_asks,
    )
    order = await checked_order(again, principal, idempotency_key=idempotency_key)
    point = ForkPoint(run_id=run.id, step=run.step, message_id=run.head_message_id)
    fingerprint = framed_sha256(principal.name, "retry", run_id, model or "")
    order = replace(order, forked_from=point, continues=True, fingerprint=fingerprint, run_overrides=run_overrides)
    return await start.start_ordered(services, principal, run.agent, order)
