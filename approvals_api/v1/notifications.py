"""Notifications: the delivery log, sending again, and the browsers that are notified."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from approvals_api import browsers
from approvals_api.browsers import MAX_ENDPOINT_CHARS, MAX_KEY_CHARS, BrowserOrder
from approvals_api.events import deliveries
from approvals_api.http.dependencies import AdminDep, OperatorDep, ReaderDep, ServicesDep
from approvals_api.http.exact_routes import api_router
from approvals_api.http.problems import problems
from approvals_api.paging import decode_cursor
from approvals_api.v1.parameters import Cursor, Limit
from approvals_api.validation.text import STORABLE
from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.store.events.push_subscriptions import Address
from turngate.wire.notifications import BrowsersView, BrowserView, DeliveryView, PushFilter
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


# Browsers that are notified (Web Push): each person's own.


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class BrowserKeysBody(_Body):
    """The keys of a browser's subscription, in base64url."""

    p256dh: Annotated[str, Field(max_length=MAX_KEY_CHARS)]
    auth: Annotated[str, Field(max_length=MAX_KEY_CHARS)]


class BrowserBody(_Body):
    """A subscription as `PushSubscription.toJSON()` gives it. ``wanted``: which requests it announces."""

    endpoint: Annotated[str, Field(max_length=MAX_ENDPOINT_CHARS, description="An https URL of a push service.")]
    keys: BrowserKeysBody
    wanted: PushFilter = PushFilter()


BrowserId = Annotated[str, Path(description="The browser's id, such as `psh_70c1…`.", max_length=64, pattern=STORABLE)]


@router.get("/notifications/browsers")
async def list_browsers(services: ServicesDep, principal: ReaderDep) -> BrowsersView:
    """List your browsers that are notified, and show the key with which to subscribe another one."""
    push = services.settings.push
    async with services.database.read() as conn:
        own = await browsers.listed(conn, principal)
    return BrowsersView(server_key=None if push is None else push.key.read().public, items=own)


@router.post(
    "/notifications/browsers",
    responses=problems({409: "`push_off`: this server notifies no browser; `too_many_browsers`"}),
)
async def add_browser(
    body: BrowserBody, request: Request, services: ServicesDep, principal: OperatorDep
) -> BrowserView:
    """Notify a browser of the requests that you may decide.

    The same endpoint again changes what it announces. A message has the tool, the agent and the risk, and never an argument.
    """
    order = BrowserOrder(
        address=Address(endpoint=body.endpoint, p256dh=body.keys.p256dh, auth=body.keys.auth),
        wanted=body.wanted,
        user_agent=request.headers.get("user-agent", ""),
    )
    return browsers.browser_view(await browsers.subscribe(services, principal, order))


@router.delete("/notifications/browsers/{browser_id}", status_code=HTTPStatus.NO_CONTENT)
async def remove_browser(browser_id: BrowserId, services: ServicesDep, principal: ReaderDep) -> None:
    """Notify one of your browsers no longer; if there is none, nothing happens."""
    await browsers.remove(services, principal, browser_id)
