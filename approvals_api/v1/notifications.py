"""Notifications: the delivery log, and sending again."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from turngate.approvals_api.events import deliveries
from turngate.approvals_api.http.dependencies import AdminDep, ReaderDep, ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.v1.parameters import Cursor, Limit
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.wire.notifications import DeliveryView
from turngate.wire.view import Page

router = api_router("notifications")

DeliveryId = Annotated[
    str,
    Path(
        description="The delivery's id, such as `ntf_70c1…`: what a webhook calls `webhook-id`.",
        max_length=255,
        pattern=STORABLE,
    ),
]
ChannelName = Annotated[
    str | None, Query(description="Only deliveries to this channel.", max_length=100, pattern=STORABLE)
]


@router.get("/notifications/deliveries")
async def list_deliveries(
    services: ServicesDep,
    _principal: ReaderDep,
    cursor: Cursor = None,
    limit: Limit = 50,
    channel: ChannelName = None,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries of this status.")] = None,
) -> Page[DeliveryView]:
    """List deliveries and whether they arrived, newest first."""
    before = decode_cursor(cursor)
    async with services.database.read() as conn:
        return await deliveries.delivery_page(conn, limit=limit, before=before, channel=channel, status=status)


@router.post(
    "/notifications/deliveries/{delivery_id}/retry",
    responses=problems({409: "`not_retryable`: it was delivered, or is being sent"}),
)
async def retry_delivery(delivery_id: DeliveryId, services: ServicesDep, principal: AdminDep) -> DeliveryView:
    """Send a failed or waiting delivery again.

    It is due at once; the answer shows it waiting. After its 24 hours a delivery gets one attempt each time.
    """
    async with services.database.write() as conn:
        return await deliveries.send_again(conn, delivery_id, by=principal.name)
