"""Calls about what was sent outside."""

from __future__ import annotations

from turngate.client.calls import Call, change, get, model, segment
from turngate.domain.runs.deliveries import DeliveryStatus
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
