"""All pages. Every page works by plain GET and POST; GET never changes state."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from turngate.approvals_api.http.authentication import SHOW_AGAIN, require_same_origin
from turngate.approvals_api.pages import (
    account_routes,
    audit_routes,
    claim_routes,
    conversation_routes,
    fork_routes,
    grant_routes,
    inbox_routes,
    request_routes,
    run_routes,
)
from turngate.approvals_api.pages.frames import typed_of
from turngate.approvals_api.pages.policy import policy_routes, rule_routes
from turngate.approvals_api.pages.schedules import schedule_routes
from turngate.approvals_api.pages.system import health_routes, notification_routes, retention_routes
from turngate.approvals_api.pages.templating import Frame, render
from turngate.domain.errors import TurngateError

routers = (
    account_routes.router,
    inbox_routes.router,
    # After the inbox: its "bulk" is no request's id.
    request_routes.router,
    claim_routes.router,
    grant_routes.router,
    policy_routes.router,
    rule_routes.router,
    run_routes.router,
    fork_routes.router,
    schedule_routes.router,
    conversation_routes.router,
    notification_routes.router,
    health_routes.router,
    retention_routes.router,
    audit_routes.router,
)


# The HTML error page: the same words as the API's problem, for a person.


_HEADLINES: Final = {
    HTTPStatus.BAD_REQUEST: "This can't be read",
    HTTPStatus.FORBIDDEN: "Not allowed",
    HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.CONFLICT: "Something changed meanwhile",
    HTTPStatus.GONE: "Too late",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Too large",
    HTTPStatus.UNPROCESSABLE_ENTITY: "This can't be accepted",
    HTTPStatus.TOO_MANY_REQUESTS: "Too fast",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Turngate failed",
    HTTPStatus.SERVICE_UNAVAILABLE: "Not available at the moment",
}
"""What HTTP calls a status is for programs."""


_FORGOTTEN: Final = ("/login", "/account/password")
"""Forms whose fields no page repeats."""


async def render_error(
    request: Request, status: int, title: str, detail: str, details: Mapping[str, Any] | None = None
) -> HTMLResponse:
    """Return the page for an error. Needs neither the store nor a login, because either may be what failed.

    What one of our forms sent stays in the page, with a button that shows the form again: a session may end, or the store may be
    away, while a person types. ``details``: of the error; complaints under ``errors`` are listed, the rest is for machines.
    """
    complaints = (details or {}).get("errors")
    ended = status == HTTPStatus.UNAUTHORIZED
    return render(
        "error.html",
        frame=Frame(),
        status=status,
        code=status,
        title="Your session ended" if ended else _HEADLINES.get(HTTPStatus(status), title),
        detail="Nothing was sent. Log in again." if ended else detail,
        complaints=complaints if isinstance(complaints, list) else [],
        path=f"{quote(request.url.path)}{f'?{request.url.query}' if request.url.query else ''}",
        typed=await _form_to_show_again(request, status),
    )


async def _form_to_show_again(request: Request, status: int) -> Mapping[str, str]:
    """Return what one of our forms sent, ready to show the form again; empty: it can't be."""
    path = request.url.path
    if request.method != "POST" or status == HTTPStatus.NOT_FOUND or path in _FORGOTTEN or path.startswith("//"):
        return {}
    try:
        require_same_origin(request)  # no other site fills in our forms
        typed = await typed_of(request)
    except (TurngateError, HTTPException, ClientDisconnect, RuntimeError):
        return {}  # it can't be read, or was read already
    if typed.get("csrf_token", SHOW_AGAIN) == SHOW_AGAIN:
        return {}  # not from our pages, or it can't be shown again
    return {**typed, "csrf_token": SHOW_AGAIN}
