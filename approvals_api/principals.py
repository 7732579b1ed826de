"""Who is asking: a person by session cookie or a machine by bearer token, and what they may do.

Also the two guards that cookies need: the same-origin check of every unsafe request, and the form token of HTML forms.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from fastapi import Request, Response

from turngate.domain.errors import ForbiddenError, UnauthenticatedError
from turngate.store import access

if TYPE_CHECKING:
    from approvals_api.services import Services

SESSION_COOKIE = "turngate_session"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OPERATOR_SCOPES: frozenset[str] = frozenset({"requests:read", "requests:decide", "runs:write"})


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Somebody who was let in. ``name`` becomes ``decided_by`` and ``started_by``; it never comes from a body."""

    name: str
    via: Literal["session", "token"]
    scopes: frozenset[str]

    def may(self, *scopes: access.Scope) -> bool:
        """Tell whether the principal holds one of these scopes; ``admin`` holds all."""
        return "admin" in self.scopes or not self.scopes.isdisjoint(scopes)

    def require(self, *scopes: access.Scope) -> None:
        """Raise ForbiddenError (code ``missing_scope``) unless the principal holds one of these scopes (I10)."""
        if not self.may(*scopes):
            needed = " or ".join(scopes)
            raise ForbiddenError(
                f"{self.name!r} may not do this: it needs the scope {needed}. Use a credential that holds it.",
                code="missing_scope",
                needed=list(scopes),
            )


async def authenticate(services: Services, request: Request) -> Principal:
    """Return who is asking. A bearer token comes before a cookie.

    Raises:
        UnauthenticatedError: no credential, or one that is unknown, revoked or over.
        ForbiddenError: an unsafe request with a cookie that another site may have sent (code ``cross_origin``).
    """
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _space, secret = header.partition(" ")
        async with services.database.read() as conn:
            token = await access.find_token(conn, secret.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise UnauthenticatedError(
                "this token is unknown or revoked: send `Authorization: Bearer TOKEN` with one from "
                "`turngate token NAME --scope SCOPE`",
            )
        return Principal(name=token.name, via="token", scopes=token.scopes)
    cookie = session_secret(request)
    if cookie is None:
        raise UnauthenticatedError(
            "nobody is logged in: open the link that `turngate login-link` prints, or send "
            "`Authorization: Bearer TOKEN` with a token from `turngate token NAME --scope SCOPE`",
        )
    async with services.database.read() as conn:
        operator = await access.session_operator(conn, cookie)
    if operator is None:
        raise UnauthenticatedError("this session is over: open a new link from `turngate login-link`")
    require_same_origin(request)
    return Principal(name=operator, via="session", scopes=OPERATOR_SCOPES)


def require_same_origin(request: Request) -> None:
    """Raise ForbiddenError for an unsafe request that did not come from our own pages; safe methods pass.

    ``Sec-Fetch-Site`` is set by the browser and cannot be forged by a page; where it is missing ``Origin`` must name our
    host. With neither there is no proof, so the request is refused.
    Source: https://owasp.org/www-community/attacks/csrf and https://www.w3.org/TR/fetch-metadata/
    """
    if request.method in SAFE_METHODS:
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        same = site in {"same-origin", "none"}
    else:
        same = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not same:
        raise ForbiddenError(
            "this request came from another site: use Turngate's own pages, or a token instead of the session cookie",
            code="cross_origin",
        )


def session_secret(request: Request) -> str | None:
    """Return the session cookie's secret; None when there is none."""
    return request.cookies.get(SESSION_COOKIE) or None


def form_token(secret: str) -> str:
    """Return the token that forms of this session carry.

    Keyed by the session's secret, so it needs no store, holds in every process and cannot be made by another site; the
    secret cannot be won back from it.
    """
    return hmac.new(secret.encode(), b"turngate form token v1", hashlib.sha256).hexdigest()


def check_form_token(request: Request, token: str | None) -> None:
    """Raise ForbiddenError (code ``form_token``) unless the form was made for this request's session."""
    secret = session_secret(request)
    if secret is None or token is None or not hmac.compare_digest(form_token(secret).encode(), token.encode()):
        raise ForbiddenError("this form is out of date: load the page again, then send it again", code="form_token")


async def log_in(services: Services, secret: str) -> str | None:
    """Use up a one-time login link; returns the secret of a new session, or None when the link is no good (any more)."""
    async with services.database.write() as conn:
        operator = await access.use_link(conn, secret)
        return None if operator is None else await access.open_session(conn, operator)


async def log_out(services: Services, secret: str) -> None:
    """End a session at once. Safe to repeat."""
    async with services.database.write() as conn:
        await access.close_session(conn, secret)


def set_session_cookie(request: Request, response: Response, secret: str) -> None:
    """Give the browser its session. ``Lax``, not ``Strict``, so that a link from elsewhere finds the operator logged in."""
    response.set_cookie(
        SESSION_COOKIE,
        secret,
        max_age=int(access.SESSION_LIFETIME.total_seconds()),
        path="/",
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )


def clear_session_cookie(response: Response) -> None:
    """Take the session back from the browser."""
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="lax")
