"""The delivery log: notifications, whether they arrived, and sending them again."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.events import deliveries
from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import AdminDep, ReaderDep, ServicesDep
from turngate.approvals_api.pages.frames import frame_of, typed_of
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import ConflictError
from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)

PAGE_SIZE: Final = 50
MAX_CURSOR_CHARS: Final = 500
Tab = Literal["all", "gathering", "waiting", "sending", "delivered", "failed"]
TABS: Final[tuple[Tab, ...]] = ("all", "failed", "waiting", "sending", "gathering", "delivered")
Channel = Annotated[str, Query(max_length=100, pattern=STORABLE)]


@router.get("/notifications")
async def delivery_list(
    request: Request,
    services: ServicesDep,
    principal: ReaderDep,
    status: Tab = "all",
    channel: Channel = "",
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS)] = None,
) -> HTMLResponse:
    """Show deliveries, newest first."""
    return await _show(request, services, principal, status, channel, cursor)


@router.post("/notifications/{delivery_id}/retry")
async def retry_delivery(
    request: Request,
    services: ServicesDep,
    principal: AdminDep,
    delivery_id: Annotated[str, Path(max_length=255, pattern=STORABLE)],
    status: Tab = "all",
    channel: Channel = "",
) -> Response:
    """Send a failed or waiting delivery again, and show the list as it was filtered."""
    check_form_token(request, (await typed_of(request)).get("csrf_token"))
    try:
        async with services.database.write() as conn:
            await deliveries.send_again(conn, delivery_id, by=principal.name)
    except ConflictError as error:  # someone was faster; the page says so
        return await _show(request, services, principal, status, channel, None, error)
    return RedirectResponse(f"/notifications?{_query(status, channel)}", HTTPStatus.SEE_OTHER)


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    tab: Tab,
    channel: str,
    cursor: str | None,
    error: ConflictError | None = None,
) -> HTMLResponse:
    before = decode_cursor(cursor)
    wanted: DeliveryStatus | None = None if tab == "all" else tab
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        page = await deliveries.delivery_page(
            conn, limit=PAGE_SIZE, before=before, channel=channel or None, status=wanted
        )
    return render(
        "notifications.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        page=page,
        tab=tab,
        addresses=[(each, f"/notifications?{_query(each, channel)}") for each in TABS],
        query=_query(tab, channel),
        channel=channel,
        cursor=cursor,
        channels=services.settings.channels,
        may_retry=principal.may("admin"),
        error=error,
    )


def _query(tab: Tab, channel: str) -> str:
    return urlencode({"status": tab} | ({"channel": channel} if channel else {}))
