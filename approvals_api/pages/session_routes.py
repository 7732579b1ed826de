"""Logging in by a one-time link, by password or by the OpenID provider, and out."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from approvals_api.access import login as login_operations
from approvals_api.access.login import Browser
from approvals_api.access.oidc import ATTEMPT_SECONDS
from approvals_api.http import authentication
from approvals_api.http.dependencies import ServicesDep
from approvals_api.pages.frames import typed_of
from approvals_api.pages.templating import Frame, render
from approvals_api.services import Services
from turngate.domain.errors import NotFoundError

router = APIRouter(include_in_schema=False)

OIDC_COOKIE: Final = "turngate_oidc"
CALLBACK: Final = "/login/oidc/callback"


@router.get("/login")
async def login_page(services: ServicesDep, link: str = "") -> HTMLResponse:
    """Show the button that uses the link up, or the other ways in.

    A button, because a GET changes nothing: chat programs and scanners open links to preview them, and would use it up.
    """
    return _page(services, link=link)


@router.post("/login")
async def login(request: Request, services: ServicesDep) -> Response:
    """Log in by a link or by name and password, and open a session."""
    authentication.require_same_origin(request)
    typed, browser = await typed_of(request), Browser.of(request)
    link, name, password = (typed.get(each, "") for each in ("link", "name", "password"))
    if link:
        secret = await login_operations.by_link(services, browser, link)
        refused = "link"
    elif name and password:
        secret = await login_operations.by_password(services, browser, name, password)
        refused = "password"
    else:
        secret, refused = None, "incomplete"
    if secret is None:
        return _page(services, status=403, refused=refused, name=name)
    return _let_in(request, secret)


@router.get("/login/oidc")
async def begin_oidc(request: Request, services: ServicesDep) -> Response:
    """Send the browser to the OpenID provider, with a cookie by which it is known when it comes back."""
    if services.oidc is None:
        raise NotFoundError("no OpenID provider is set up here")
    base = services.settings.public_url or f"{request.url.scheme}://{request.url.netloc}"
    url, cookie = await services.oidc.begin(f"{base}{CALLBACK}")
    response = RedirectResponse(url, status_code=303)
    response.set_cookie(
        authentication.cookie_name(request, OIDC_COOKIE),
        cookie,
        max_age=ATTEMPT_SECONDS,
        path="/",
        httponly=True,
        samesite="lax",  # the way back comes from another site
        secure=authentication.is_https(request),
    )
    return response


@router.get(CALLBACK)
async def end_oidc(request: Request, services: ServicesDep) -> Response:
    """Log in whoever comes back from the provider. The one GET that changes state: OpenID Connect has no other way."""
    name = authentication.cookie_name(request, OIDC_COOKIE)
    secret = await login_operations.by_oidc(
        services, Browser.of(request), request.query_params, request.cookies.get(name)
    )
    response = _let_in(request, secret)
    response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=authentication.is_https(request))
    return response


@router.post("/logout")
async def logout(request: Request, services: ServicesDep) -> Response:
    """End the session here and in the store."""
    authentication.require_same_origin(request)
    authentication.check_form_token(request, (await typed_of(request)).get("csrf_token"))
    secret = authentication.session_secret(request)
    if secret is not None:
        await login_operations.log_out(services, secret)
    response = RedirectResponse("/login", status_code=303)
    authentication.clear_session_cookie(request, response)
    return response


def _let_in(request: Request, secret: str) -> Response:
    response = RedirectResponse("/", status_code=303)
    authentication.set_session_cookie(request, response, secret)
    return response


def _page(services: Services, *, status: int = 200, link: str = "", refused: str = "", name: str = "") -> HTMLResponse:
    provider = None if services.oidc is None else urlsplit(services.oidc.settings.issuer).hostname
    return render("login.html", frame=Frame(), status=status, link=link, refused=refused, name=name, provider=provider)
