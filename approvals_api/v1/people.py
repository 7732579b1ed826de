"""People and programs: who you are, browser sessions, API tokens."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated

from fastapi import Path

from turngate.approvals_api.http.dependencies import NAMES_NO_RUN, AdminDep, AnyoneDep, ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.paging import page_after
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.v1.bodies import NewTokenBody
from turngate.approvals_api.v1.parameters import Cursor, Limit
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import ForbiddenError, NotFoundError
from turngate.domain.identity import name_key
from turngate.store.access import sessions, tokens
from turngate.store.access.tokens import Token
from turngate.store.clock import now
from turngate.wire import people
from turngate.wire.access import MeView, NewTokenView, SessionView, TokenView
from turngate.wire.view import Page

router = api_router("people")


@router.get("/me", dependencies=[NAMES_NO_RUN])
async def get_me(principal: AnyoneDep) -> MeView:
    """Show who you are here: name, role, scopes, and how you logged in."""
    return MeView(
        name=principal.name,
        role=principal.role,
        scopes=sorted(principal.scopes),
        via=principal.via,
        machine=principal.machine,
        session_id=principal.session_id,
    )


# Browser sessions.


SessionId = Annotated[str, Path(description="The session's id, such as `ses_41c0…`.", max_length=64, pattern=STORABLE)]


@router.get("/sessions", dependencies=[NAMES_NO_RUN])
async def list_sessions(
    services: ServicesDep, principal: AnyoneDep, cursor: Cursor = None, limit: Limit = 50
) -> Page[SessionView]:
    """List the open sessions, newest first: your own, or everyone's with the scope `admin`."""
    if principal.machine and not principal.may("admin"):
        return Page(items=[])  # a program has none, even if a person who logged in by a link has its name
    async with services.database.read() as conn:
        open_sessions = await sessions.listed(conn, _whose(principal), idle=services.settings.session_idle)
    page, more = page_after(open_sessions, cursor, limit)
    return Page(items=[SessionView.model_validate(each) for each in page], next_cursor=more)


@router.delete("/sessions/{session_id}", status_code=HTTPStatus.NO_CONTENT, dependencies=[NAMES_NO_RUN])
async def end_session(session_id: SessionId, services: ServicesDep, principal: AnyoneDep) -> None:
    """End a session at once: one of your own, or anyone's with the scope `admin`."""
    ended = False
    if not principal.machine or principal.may("admin"):
        async with services.database.write() as conn:
            ended = await sessions.revoke(conn, session_id, by=principal.name, of=_whose(principal))
    if not ended:
        raise NotFoundError(f"there is no session {session_id!r} that you can end")


def _whose(principal: Principal) -> str | None:
    return None if principal.may("admin") else principal.name


# API tokens.


TokenId = Annotated[str, Path(description="The token's id, from the list.", max_length=64, pattern=STORABLE)]


@router.get("/tokens")
async def list_tokens(
    services: ServicesDep, _principal: AdminDep, cursor: Cursor = None, limit: Limit = 50
) -> Page[TokenView]:
    """List the valid tokens, newest first. Their secrets are stored nowhere."""
    async with services.database.read() as conn:
        valid = await tokens.listed(conn)
    page, more = page_after(valid, cursor, limit)
    return Page(items=[_token_view(each) for each in page], next_cursor=more)


@router.post("/tokens", status_code=HTTPStatus.CREATED)
async def issue_token(body: NewTokenBody, services: ServicesDep, principal: AdminDep) -> NewTokenView:
    """Create a token; its secret is in this answer and nowhere else.

    A token that starts runs can't decide requests, unless it is bound to a user: an agent that holds it could approve its own
    calls. Bound to a user, it acts under that user's name, so you can only bind a token to yourself.
    """
    own = people.id_of(principal.name if body.user is None else body.user)
    if body.user is not None and (principal.machine or name_key(own) != name_key(principal.name)):
        raise ForbiddenError(
            f"a token bound to {body.user!r} would decide in that name: only {body.user!r} can create it here, or the "
            "administrator of this Turngate with `turngate token NAME --user USER --scope SCOPE`",
            code="not_yourself",
        )
    expires_at = None if body.expires_in_seconds is None else now() + timedelta(seconds=body.expires_in_seconds)
    async with services.database.write() as conn:
        secret = await tokens.issue(
            conn,
            tokens.NewToken(
                name=body.name, scopes=body.scopes, owner=body.user, expires_at=expires_at, bounds=body.bounds
            ),
            by=principal.name,
        )
    async with services.database.read() as conn:
        token = await tokens.find(conn, secret)
    if token is None:
        raise NotFoundError("the token was revoked at once")
    return NewTokenView(**_token_view(token).model_dump(), secret=secret)


@router.delete("/tokens/{token_id}", status_code=HTTPStatus.NO_CONTENT)
async def revoke_token(token_id: TokenId, services: ServicesDep, principal: AdminDep) -> None:
    """Revoke a token; it stops working at once."""
    async with services.database.write() as conn:
        revoked = await tokens.revoke(conn, token_id=token_id, by=principal.name)
    if not revoked:
        raise NotFoundError(f"there is no token {token_id!r} that is not revoked yet")


def _token_view(token: Token) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        scopes=sorted(token.scopes),
        owner=token.owner,
        created_at=token.created_at,
        expires_at=token.expires_at,
        last_used_at=token.last_used_at,
        bounds=token.bounds,
    )
