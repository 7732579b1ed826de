"""Logging in and out, and one's own account: sessions and password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.access.login import Browser, Login, log_out
from turngate.approvals_api.http import authentication
from turngate.approvals_api.http.authentication import check_form_token, set_session_cookie
from turngate.approvals_api.http.dependencies import AnyoneDep, ServicesDep, limits_of
from turngate.approvals_api.pages.frames import COMPACT, OPENS_NEXT, SOUND, frame_of, has_chosen, keep_choice, typed_of
from turngate.approvals_api.pages.templating import Frame, render
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.approvals_api.settings import ATTEMPT_SECONDS, LOGIN_LINK, ApiSettings
from turngate.domain.errors import ForbiddenError, InvalidInputError, NotFoundError
from turngate.http_environment import is_loopback
from turngate.store.access import sessions, users

if TYPE_CHECKING:
    from turngate.approvals_api.access.oidc import OidcProvider

router = APIRouter(include_in_schema=False)


OIDC_COOKIE: Final = "turngate_oidc"
CALLBACK: Final = "/login/oidc/callback"
LOGGED_IN: Final = "/login/done"
"""Where a log-in in a window of its own ends."""


@router.get("/login")
async def login_page(request: Request, link: str = "") -> HTMLResponse:
    """Show the button that uses up the link, or the other ways to log in.

    A button, because a GET changes nothing: chat programs and scanners open links to preview them, and would use it up.
    """
    return _login_page(request, link=link)


@router.post("/login")
async def log_in(request: Request, services: ServicesDep) -> Response:
    """Log in by a link or by name and password, and open a session."""
    authentication.require_same_origin(request)
    typed, login = await typed_of(request), _login(request, services)
    link, name, password = (typed.get(each, "") for each in ("link", "name", "password"))
    if link:
        secret = await login.by_link(link)
        refused = "link"
    elif name and password:
        secret = await login.by_password(name, password)
        refused = "password"
    else:
        secret, refused = None, "incomplete"
    if secret is None:
        return _login_page(request, status=403, refused=refused, name=name)
    return _let_in(request, secret)


@router.get(LOGGED_IN)
async def logged_in(request: Request) -> HTMLResponse:
    """Close the window in which someone has logged in, for a page that stays as it is meanwhile."""
    return _login_page(request, is_over=True)


@router.get("/login/oidc")
async def begin_oidc(request: Request, services: ServicesDep, window: bool = False) -> Response:
    """Send the browser to the OpenID provider, with a cookie that identifies it when it comes back.

    ``window``: in a window that was opened for the log-in alone.
    """
    provider = _provider(request)
    if provider is None:
        raise NotFoundError("no OpenID provider is configured here")
    base = services.settings.public_url or f"{request.url.scheme}://{request.url.netloc}"
    url, cookie = await provider.begin(f"{base}{CALLBACK}")
    response = RedirectResponse(url, status_code=303)
    # The way back comes from another site.
    authentication.set_cookie(request, response, OIDC_COOKIE, cookie, max_age=ATTEMPT_SECONDS)
    if window:
        authentication.keep_wanted_page(request, response, LOGGED_IN)
    return response


@router.get(CALLBACK)
async def end_oidc(request: Request, services: ServicesDep) -> Response:
    """Log in the person who comes back from the provider. The only GET that changes state: OpenID Connect requires it."""
    name = authentication.cookie_name(request, OIDC_COOKIE)
    login = _login(request, services)
    secret = await login.by_oidc(_provider(request), request.query_params, request.cookies.get(name))
    response = _let_in(request, secret)
    authentication.delete_cookie(request, response, OIDC_COOKIE)
    return response


@router.post("/logout")
async def logout(request: Request, services: ServicesDep) -> Response:
    """End the session here and in the store."""
    authentication.require_same_origin(request)
    authentication.check_form_token(request, (await typed_of(request)).get("csrf_token"))
    secret = authentication.session_secret(request)
    if secret is not None:
        await log_out(services.database, secret)
    response = RedirectResponse("/login", status_code=303)
    authentication.clear_session_cookie(request, response)
    return response


def _let_in(request: Request, secret: str) -> Response:
    response = RedirectResponse(authentication.wanted_page(request), status_code=303)
    authentication.set_session_cookie(request, response, secret)
    authentication.delete_cookie(request, response, authentication.WANTED_PAGE_COOKIE)
    return response


def _login_page(
    request: Request, *, status: int = 200, link: str = "", refused: str = "", name: str = "", is_over: bool = False
) -> HTMLResponse:
    oidc = _provider(request)
    provider = None if oidc is None else urlsplit(oidc.settings.issuer).hostname
    settings: ApiSettings = request.app.state.services.settings
    # Where this machine keeps its data is no stranger's business.
    is_here = is_loopback(settings.host) and is_loopback(request.url.hostname or "")
    return render(
        "login.html",
        frame=Frame(),
        status=status,
        link=link,
        refused=refused,
        name=name,
        is_over=is_over,
        provider=provider,
        command=settings.login_link if is_here else LOGIN_LINK,
    )


def _login(request: Request, services: Services) -> Login:
    browser = Browser(
        address=request.client.host if request.client else "",
        user_agent=request.headers.get("user-agent", ""),
        had=authentication.session_secret(request),
    )
    return Login(database=services.database, limits=limits_of(request), browser=browser)


def _provider(request: Request) -> OidcProvider | None:
    provider: OidcProvider | None = request.app.state.oidc
    return provider


WRONG_PASSWORD = "This is not your password."  # noqa: S105 - a complaint


@router.get("/account")
async def account_page(
    request: Request, services: ServicesDep, principal: AnyoneDep, changed: str = ""
) -> HTMLResponse:
    """Show the account and where it is logged in."""
    if principal.session_id is None:
        raise ForbiddenError("this page is for browsers; programs ask GET /api/v1/me", code="no_session")
    return await _page(request, services, principal, changed=changed == "password")


@router.post("/account/after-decision")
async def choose_after_decision(request: Request, _principal: AnyoneDep) -> Response:
    """Choose what this browser shows after a decision: the request, or the next one."""
    return await _choose(request, OPENS_NEXT, "opens", "next")


@router.post("/account/density")
async def choose_density(request: Request, _principal: AnyoneDep) -> Response:
    """Choose how dense this browser shows the pages."""
    return await _choose(request, COMPACT, "density", "compact")


@router.post("/account/sound")
async def choose_sound(request: Request, _principal: AnyoneDep) -> Response:
    """Choose whether this browser makes a sound for a new request while a page is open."""
    return await _choose(request, SOUND, "sound", "on")


async def _choose(request: Request, choice: str, field: str, wanted: str) -> Response:
    """Keep in the browser whether a form's field says so."""
    typed = await typed_of(request)
    check_form_token(request, typed.get("csrf_token"))
    response = RedirectResponse("/account", status_code=303)
    keep_choice(request, response, choice, wanted=typed.get(field) == wanted)
    return response


@router.post("/account/sessions/end")
async def end_session(request: Request, services: ServicesDep, principal: AnyoneDep) -> Response:
    """End one of the person's sessions."""
    typed = await typed_of(request)
    check_form_token(request, typed.get("csrf_token"))
    async with services.database.write() as conn:
        await sessions.revoke(conn, typed.get("session_id", ""), by=principal.name, of=principal.name)
    return RedirectResponse("/account", status_code=303)


@router.post("/account/sessions/end-others")
async def end_other_sessions(request: Request, services: ServicesDep, principal: AnyoneDep) -> Response:
    """End all the person's sessions but this one."""
    check_form_token(request, (await typed_of(request)).get("csrf_token"))
    async with services.database.write() as conn:
        await sessions.revoke_all(conn, principal.name, by=principal.name, but=principal.session_id)
    return RedirectResponse("/account", status_code=303)


@router.post("/account/password")
async def change_password(request: Request, services: ServicesDep, principal: AnyoneDep) -> Response:
    """Change the password; every session ends, and this browser gets a new one."""
    typed = await typed_of(request)
    check_form_token(request, typed.get("csrf_token"))
    errors: dict[str, str] = {}
    try:
        secret = await _login(request, services).change_password(
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
        opens_next=has_chosen(request, OPENS_NEXT),
    )
