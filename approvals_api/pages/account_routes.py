"""One's own account: who one is here, where one is logged in, ending sessions, another password."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from approvals_api.access import login
from approvals_api.access.login import Browser
from approvals_api.http.authentication import Principal, check_form_token, set_session_cookie
from approvals_api.http.dependencies import AnyoneDep, ServicesDep
from approvals_api.pages.frames import frame_of, typed_of
from approvals_api.pages.templating import render
from approvals_api.services import Services
from turngate.domain.errors import ForbiddenError, InvalidInputError
from turngate.store.access import sessions, users

router = APIRouter(include_in_schema=False)

WRONG_PASSWORD = "This is not your password."  # noqa: S105 - a complaint


@router.get("/account")
async def account_page(
    request: Request, services: ServicesDep, principal: AnyoneDep, changed: str = ""
) -> HTMLResponse:
    """Show who one is and where one is logged in."""
    if principal.session_id is None:
        raise ForbiddenError("this page is for browsers; programs ask GET /api/v1/me", code="no_session")
    return await _page(request, services, principal, changed=changed == "password")


@router.post("/account/sessions/end")
async def end_session(request: Request, services: ServicesDep, principal: AnyoneDep) -> Response:
    """End one of one's own sessions."""
    typed = await typed_of(request)
    check_form_token(request, typed.get("csrf_token"))
    async with services.database.write() as conn:
        await sessions.revoke(conn, typed.get("session_id", ""), by=principal.name, of=principal.name)
    return RedirectResponse("/account", status_code=303)


@router.post("/account/sessions/end-others")
async def end_other_sessions(request: Request, services: ServicesDep, principal: AnyoneDep) -> Response:
    """End all of one's own sessions but this one."""
    check_form_token(request, (await typed_of(request)).get("csrf_token"))
    async with services.database.write() as conn:
        await sessions.revoke_all(conn, principal.name, by=principal.name, but=principal.session_id)
    return RedirectResponse("/account", status_code=303)


@router.post("/account/password")
async def change_password(request: Request, services: ServicesDep, principal: AnyoneDep) -> Response:
    """Take another password; every session ends, and this browser gets a new one."""
    typed = await typed_of(request)
    check_form_token(request, typed.get("csrf_token"))
    errors: dict[str, str] = {}
    try:
        secret = await login.change_password(
            services,
            Browser.of(request),
            principal.name,
            current=typed.get("current", ""),
            wanted=typed.get("wanted", ""),
        )
    except InvalidInputError as error:
        secret, errors = None, {"wanted": error.message}
    if secret is None:
        return await _page(request, services, principal, status=422, errors=errors or {"current": WRONG_PASSWORD})
    response = RedirectResponse("/account?changed=password", status_code=303)
    set_session_cookie(request, response, secret)
    return response


async def _page(
    request: Request,
    services: Services,
    principal: Principal,
    *,
    status: int = 200,
    changed: bool = False,
    errors: dict[str, str] | None = None,
) -> HTMLResponse:
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        own = await sessions.listed(conn, principal.name, idle=services.settings.session_idle)
        user = await users.user_called(conn, principal.name)
    return render(
        "account.html",
        frame=frame,
        status=status,
        principal=principal,
        sessions=own,
        user=user,
        changed=changed,
        errors=errors or {},
    )
