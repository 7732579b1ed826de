"""Calls about the audit log, its chains, and the notifications that were sent."""

from __future__ import annotations

from datetime import datetime

from turngate.client.calls import Call, change, get, model, segment
from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.wire.events import AuditItem, ChainState
from turngate.wire.notifications import DeliveryView
from turngate.wire.view import Page


def list_deliveries(
    *, channel: str | None = None, status: DeliveryStatus | None = None, limit: int = 50, cursor: str | None = None
) -> Call[Page[DeliveryView]]:
    """Return one page of deliveries, newest first. ``limit``: 1 to 200."""
    kind = model(Page[DeliveryView])
    return get("/notifications/deliveries", kind, channel=channel, status=status, limit=limit, cursor=cursor)


def retry_delivery(delivery_id: str) -> Call[DeliveryView]:
    """Send a failed or waiting delivery once more. Raises ConflictError ``not_retryable``."""
    return change("POST", f"/notifications/deliveries/{segment(delivery_id)}/retry", model(DeliveryView))


# Calls about the audit log and its chains.


def list_audit(
    *,
    run_id: str | None = None,
    event_type: str | None = None,
    actor: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Call[Page[AuditItem]]:
    """Return one page of events, newest first. All conditions hold together.

    Args:
        run_id: only this run's; ``system``: events of no run.
        event_type: only this type; ``*`` stands for anything, as in ``request.*``.
        actor: only what this one did.
        since: from this instant on, aware.
        until: before this instant, aware.
        limit: 1 to 200. A page may have fewer, even none, and still lead to another.
        cursor: ``next_cursor`` of the page before.
    """
    return get(
        "/audit",
        model(Page[AuditItem]),
        run_id=run_id,
        type=event_type,
        actor=actor,
        since=None if since is None else since.isoformat(),
        until=None if until is None else until.isoformat(),
        limit=limit,
        cursor=cursor,
    )


def get_chain(run_id: str) -> Call[ChainState]:
    """Compute a run's hash chain again, and return whether it holds. ``system``: the chain of events of no run."""
    return get(f"/audit/chains/{segment(run_id)}", model(ChainState))
