"""Logging in by a one-time link, and out."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from approvals_api import principals
from approvals_api.dependencies import ServicesDep
from approvals_api.pages.frames import typed_of
from approvals_api.pages.templating import Frame, render

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def login_page(link: str = "") -> HTMLResponse:
    """Show the button that uses the link up.

    A button, because a GET changes nothing: chat programs and scanners open links to preview them, and would use it up.
    """
    return render("login.html", frame=Frame(), link=link, refused=False)


@router.post("/login")
async def login(request: Request, services: ServicesDep) -> Response:
    """Use up a login link and open a session."""
    principals.require_same_origin(request)
    link = (await typed_of(request)).get("link", "")
    secret = await principals.log_in(services, link) if link else None
    if secret is None:
        return render("login.html", frame=Frame(), status=403, link="", refused=bool(link))
    response = RedirectResponse("/", status_code=303)
    principals.set_session_cookie(request, response, secret)
    return response


@router.post("/logout")
async def logout(request: Request, services: ServicesDep) -> Response:
    """End the session here and in the store."""
    principals.require_same_origin(request)
    principals.check_form_token(request, (await typed_of(request)).get("csrf_token"))
    secret = principals.session_secret(request)
    if secret is not None:
        await principals.log_out(services, secret)
    response = RedirectResponse("/login", status_code=303)
    principals.clear_session_cookie(response)
    return response
