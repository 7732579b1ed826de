"""Calls about the audit log, its chains, and the notifications that were sent."""

from __future__ import annotations

from typing import Final

from turngate.client.calls import Call, change, get, model, segment
from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.wire.events import AuditFilter, AuditItem, ChainState
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


EVERY_EVENT: Final = AuditFilter()


def list_audit(
    wanted: AuditFilter = EVERY_EVENT, *, limit: int = 50, cursor: str | None = None
) -> Call[Page[AuditItem]]:
    """Return one page of events, newest first.

    ``limit``: 1 to 200. A page may have fewer, even none, and still lead to another. ``cursor``: ``next_cursor`` of the page
    before.
    """
    return get(
        "/audit",
        model(Page[AuditItem]),
        run_id=wanted.run_id,
        type=wanted.type,
        actor=wanted.actor,
        tool=wanted.tool,
        since=None if wanted.since is None else wanted.since.isoformat(),
        until=None if wanted.until is None else wanted.until.isoformat(),
        limit=limit,
        cursor=cursor,
    )


def get_chain(run_id: str) -> Call[ChainState]:
    """Compute a run's hash chain again, and return whether it holds. ``system``: the chain of events of no run."""
    return get(f"/audit/chains/{segment(run_id)}", model(ChainState))
