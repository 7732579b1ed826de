"""The grants' pages: the list, one grant with the calls that it allowed, and the button that ends it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep
from turngate.approvals_api.pages.frames import frame_of, typed_of
from turngate.approvals_api.pages.inbox_routes import PAGE_SIZE
from turngate.approvals_api.pages.list_place import MAX_CURSOR_CHARS
from turngate.approvals_api.pages.templating import Frame, render
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.policy import grants
from turngate.wire.policy import GrantDetail, GrantView
from turngate.wire.view import Page

router = APIRouter(include_in_schema=False)

Which = Literal["standing", "all"]
WHICH: Final[tuple[Which, ...]] = ("standing", "all")


@router.get("/grants")
async def grants_page(
    request: Request,
    services: ServicesDep,
    principal: ReaderDep,
    status: Which = "standing",
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS)] = None,
) -> HTMLResponse:
    """List grants, newest first."""
    before = decode_cursor(cursor)
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        page = await grants.grant_page(conn, limit=PAGE_SIZE, before=before, active_only=status == "standing")
    return draw_grants(frame, page, status, cursor, may_revoke=principal.may("requests:decide"))


@router.get("/grants/{grant_id}")
async def grant_page(request: Request, services: ServicesDep, principal: ReaderDep, grant_id: str) -> HTMLResponse:
    """Show one grant with the calls that it allowed."""
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        grant = await grants.grant_detail(conn, grant_id)
    return draw_grant(frame, grant, may_revoke=principal.may("requests:decide"))


@router.post("/grants/{grant_id}/revoke")
async def revoke(request: Request, services: ServicesDep, principal: OperatorDep, grant_id: str) -> Response:
    """End a grant at once."""
    check_form_token(request, (await typed_of(request)).get("csrf_token"))
    await grants.revoke(services, principal, grant_id)
    return RedirectResponse("/grants", HTTPStatus.SEE_OTHER)


def draw_grants(
    frame: Frame, page: Page[GrantView], status: Which, cursor: str | None = None, *, may_revoke: bool = True
) -> HTMLResponse:
    """Return the list of grants."""
    return render("grants.html", frame=frame, page=page, every=WHICH, tab=status, cursor=cursor, may_revoke=may_revoke)


def draw_grant(frame: Frame, grant: GrantDetail, *, may_revoke: bool = True) -> HTMLResponse:
    """Return the page of one grant."""
    return render("grant.html", frame=frame, grant=grant, may_revoke=may_revoke)
