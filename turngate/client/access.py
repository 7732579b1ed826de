"""Calls about who is who: oneself, sessions, API tokens."""

from __future__ import annotations

from collections.abc import Sequence

from turngate.client.calls import Call, change, get, model, nothing, post, segment, without_none
from turngate.domain.identity import Scope, TokenBounds
from turngate.wire.access import MeView, NewTokenView, SessionView, TokenView
from turngate.wire.view import Page


def get_me() -> Call[MeView]:
    """Return who one is here: name, role, scopes, and how one came in."""
    return get("/me", model(MeView))


def list_sessions(*, limit: int = 50, cursor: str | None = None) -> Call[Page[SessionView]]:
    """Return one page of the sessions that hold, newest first: one's own, or everyone's with the scope ``admin``."""
    return get("/sessions", model(Page[SessionView]), limit=limit, cursor=cursor)


def end_session(session_id: str) -> Call[None]:
    """End a session at once. Raises NotFoundError for one that is over, or not one's own."""
    return change("DELETE", f"/sessions/{segment(session_id)}", nothing)


def list_tokens(*, limit: int = 50, cursor: str | None = None) -> Call[Page[TokenView]]:
    """Return one page of the tokens that hold, newest first. Their secrets are nowhere."""
    return get("/tokens", model(Page[TokenView]), limit=limit, cursor=cursor)


def issue_token(
    name: str,
    scopes: Sequence[Scope],
    *,
    user: str | None = None,
    expires_in_seconds: int | None = None,
    bounds: TokenBounds | None = None,
) -> Call[NewTokenView]:
    """Make a token; its secret is in this answer and nowhere else. Not sent again: that would make another.

    ``user``: oneself, to act under one's own name; None: it acts under ``name``. ``expires_in_seconds`` None: never.
    ``bounds``: what narrows its scopes.
    """
    body = {
        "name": name,
        "scopes": list(scopes),
        "user": user,
        "expires_in_seconds": expires_in_seconds,
        "bounds": None if bounds is None else bounds.model_dump(exclude_defaults=True),
    }
    return post("/tokens", model(NewTokenView), without_none(body))


def revoke_token(token_id: str) -> Call[None]:
    """Revoke a token; it stops working at once. Raises NotFoundError for one that is unknown or revoked already."""
    return change("DELETE", f"/tokens/{segment(token_id)}", nothing)
