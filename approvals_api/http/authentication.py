"""Who sends a request: a person by session cookie or a program by bearer token, and what they may do.

Also the two guards that cookies need: the same-origin check of every unsafe request, and the form token of HTML forms.
Logging in and out is :mod:`turngate.approvals_api.access.login`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from fastapi import Request, Response

from turngate.approvals_api.http.public_address import public_address, public_path
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.settings import ATTEMPT_SECONDS
from turngate.domain.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from turngate.domain.identity import ROLE_SCOPES
from turngate.domain.runs.trace import read_traceparent
from turngate.store.access import people, sessions, tokens

if TYPE_CHECKING:
    from turngate.approvals_api.services import Services

SESSION_COOKIE = "turngate_session"
HOST_PREFIX = "__Host-"
"""Browsers take a cookie of such a name only with ``Secure`` and for this host alone, so no other host can plant one."""
SECURE_PREFIX = "__Secure-"
"""The same for a cookie of one path, which the other prefix doesn't allow: only with ``Secure``."""
PORT = re.compile("[0-9]{1,5}")
USUAL_PORTS = frozenset({"80", "443"})
"""Which browsers leave out."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
WANTED_PAGE_COOKIE = "turngate_wanted_page"
"""The page that a person asked for before they were logged in."""
MAX_WANTED_PAGE_CHARS = 2_000


async def authenticate(services: Services, request: Request) -> Principal:
    """Return who sends the request. A bearer token wins over a cookie. What a user may do is looked up each time.

    Raises:
        UnauthenticatedError: no credential, or one that is unknown, revoked or expired, or whose user is disabled.
        ForbiddenError: an unsafe request with a cookie that another site may have sent (code ``cross_origin``).
    """
    header = request.headers.get("authorization")
    traceparent = read_traceparent(request.headers.get("traceparent"))
    if header is not None:
        return await _by_token(services, header, traceparent)
    cookie = session_secret(request)
    if cookie is None:
        raise UnauthenticatedError(
            "you are not logged in: open the log-in page, or send `Authorization: Bearer TOKEN` with a token from "
            "`turngate token NAME --scope SCOPE`",
        )
    async with services.database.glance() as conn:
        session = await sessions.find(conn, cookie, idle=services.settings.session_idle)
    if session is None:
        raise UnauthenticatedError("this session is over: log in again")
    require_same_origin(request)
    await people.refresh(services.database, session.people_version)
    if session.seen_is_due:
        # A note that cannot be written is no reason to refuse the request.
        with contextlib.suppress(UnavailableError):
            async with services.database.write() as conn:
                await sessions.note_seen(conn, session.id)
    return Principal(
        name=session.name,
        via="session",
        scopes=ROLE_SCOPES[session.role],
        role=session.role,
        session_id=session.id,
        traceparent=traceparent,
    )


async def _by_token(services: Services, header: str, traceparent: str | None) -> Principal:
    scheme, _space, secret = header.partition(" ")
    async with services.database.glance() as conn:
        token = await tokens.find(conn, secret.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise UnauthenticatedError(
            "this token is unknown, revoked or expired, or its user is disabled: send `Authorization: Bearer TOKEN` "
            "with one from `turngate token NAME --scope SCOPE`",
        )
    await people.refresh(services.database, token.people_version)
    if token.use_is_due:
        with contextlib.suppress(UnavailableError):
            async with services.database.write() as conn:
                await tokens.note_used(conn, token.id)
    return Principal(
        name=token.acts_as,
        via="token",
        scopes=token.scopes,
        role=token.role,
        machine=token.machine,
        token_id=token.id,
        bounds=token.bounds,
        traceparent=traceparent,
    )


def require_same_origin(request: Request) -> None:
    """Raise ForbiddenError for an unsafe request that did not come from our own pages; safe methods pass.

    ``Sec-Fetch-Site`` is set by the browser and cannot be forged by a page; where it is missing ``Origin`` must name our
    host, by the request or by our public address. With neither there is no proof, so the request is refused.
    Source: https://owasp.org/www-community/attacks/csrf and https://www.w3.org/TR/fetch-metadata/
    """
    if request.method in SAFE_METHODS:
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        same = site in {"same-origin", "none"}
    else:
        ours = {request.headers.get("host", ""), public_address().netloc} - {""}
        same = origin is not None and urlsplit(origin).netloc in ours
    if not same:
        raise ForbiddenError(
            "this request came from another site: use Turngate's own pages, or a token instead of the session cookie",
            code="cross_origin",
        )


def cookie_name(request: Request, name: str = SESSION_COOKIE) -> str:
    """Return what a cookie is called here: on https with a prefix that protects it, and with the port and path if there are any.

    A browser sends the cookies of a host to each of its ports, and those of ``/`` to each path: two Turngates on one host
    would read each other's.
    """
    address = public_address()
    host = address.netloc or request.headers.get("host", "")
    return cookie_name_at(host, address.path, name, https=is_https(request))


def cookie_name_at(host: str, path: str, name: str = SESSION_COOKIE, *, https: bool) -> str:
    """Return what a cookie is called at an address. ``host``: with its port if it has one; ``path``: empty, or ``/turngate``."""
    _host, _colon, port = host.rpartition(":")
    own = [name, *([port] if PORT.fullmatch(port) and port not in USUAL_PORTS else []), *path.split("/")[1:]]
    if not https:
        return "_".join(own)
    return f"{SECURE_PREFIX if path else HOST_PREFIX}{'_'.join(own)}"


def is_https(request: Request) -> bool:
    """Tell whether the browser came by https: the public address says so, or uvicorn knows by ``X-Forwarded-Proto``."""
    return public_address().scheme == "https" or request.url.scheme == "https"


def session_secret(request: Request) -> str | None:
    """Return the session cookie's secret; None when there is none. A session may have begun before its cookie had a port."""
    before = f"{HOST_PREFIX}{SESSION_COOKIE}" if is_https(request) else SESSION_COOKIE
    return request.cookies.get(cookie_name(request)) or request.cookies.get(before) or None


def form_token(secret: str) -> str:
    """Return the token that forms of this session carry.

    Keyed by the session's secret, so it needs no store, is valid in every process and cannot be made by another site; the
    secret cannot be derived from it.
    """
    return hmac.new(secret.encode(), b"turngate form token v1", hashlib.sha256).hexdigest()


SHOW_AGAIN = "show-again"
"""In place of a form's token: show the form with what was typed, and send nothing."""


def check_form_token(request: Request, token: str | None) -> None:
    """Raise ForbiddenError (code ``form_token``) unless the form was made for this request's session."""
    if token == SHOW_AGAIN:
        raise ForbiddenError("check what you typed, then send it: nothing was sent yet", code="form_token")
    secret = session_secret(request)
    if secret is None or token is None or not hmac.compare_digest(form_token(secret).encode(), token.encode()):
        raise ForbiddenError(
            "this form is from before you logged in, so nothing was sent. Check it, then send it again",
            code="form_token",
        )


def set_cookie(request: Request, response: Response, name: str, value: str, *, max_age: int) -> None:
    """Set a cookie that no script reads; ``max_age`` in seconds. ``Lax``: it also comes with links from elsewhere."""
    response.set_cookie(
        cookie_name(request, name),
        value,
        max_age=max_age,
        path=public_path() or "/",
        httponly=True,
        samesite="lax",
        secure=is_https(request),
    )


def delete_cookie(request: Request, response: Response, name: str) -> None:
    """Remove a cookie of :func:`set_cookie` from the browser."""
    response.delete_cookie(
        cookie_name(request, name), path=public_path() or "/", httponly=True, samesite="lax", secure=is_https(request)
    )


def set_session_cookie(request: Request, response: Response, secret: str) -> None:
    """Set the browser's session: a link from elsewhere finds the operator logged in."""
    set_cookie(request, response, SESSION_COOKIE, secret, max_age=int(sessions.SESSION_LIFETIME.total_seconds()))


def clear_session_cookie(request: Request, response: Response) -> None:
    """Remove the session from the browser."""
    delete_cookie(request, response, SESSION_COOKIE)


def keep_wanted_page(request: Request, response: Response, page: str | None = None) -> None:
    """Have the browser remember the page that the log-in leads to, whichever way it is done; None: the one that it asked for."""
    if page is None:
        page = f"{quote(request.url.path)}{f'?{request.url.query}' if request.url.query else ''}"
    page = quote(page, safe="")
    if len(page) <= MAX_WANTED_PAGE_CHARS:
        set_cookie(request, response, WANTED_PAGE_COOKIE, page, max_age=ATTEMPT_SECONDS)


def wanted_page(request: Request) -> str:
    """Return our page that the person asked for before they were logged in; else the inbox's."""
    page = unquote(request.cookies.get(cookie_name(request, WANTED_PAGE_COOKIE), ""))
    # A browser reads `//host` and `/\host` as another site, also with a tab or a line break between the two.
    ours = page.startswith("/") and page.isascii() and page.isprintable() and page[1:2] not in {"/", "\\"}
    return page if ours and len(page) <= MAX_WANTED_PAGE_CHARS else "/"
