"""Browser sessions: see where somebody is logged in, and end it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path

from approvals_api.http.authentication import Principal
from approvals_api.http.dependencies import AnyoneDep, ServicesDep
from approvals_api.paging import page_after
from approvals_api.v1.parameters import STORABLE, Cursor, Limit
from turngate.domain.errors import NotFoundError
from turngate.store.access import sessions
from turngate.wire.people import SessionView
from turngate.wire.view import Page

router = APIRouter(tags=["people"])

SessionId = Annotated[str, Path(description="The session's id, such as `ses_41c0…`.", max_length=64, pattern=STORABLE)]


@router.get("/sessions")
async def list_sessions(
    services: ServicesDep, principal: AnyoneDep, cursor: Cursor = None, limit: Limit = 50
) -> Page[SessionView]:
    """List the sessions that hold, newest first: one's own, or everyone's with the scope `admin`."""
    if principal.machine and not principal.may("admin"):
        return Page(items=[])  # a program has none, even if somebody who was let in by a link has its name
    async with services.database.read() as conn:
        found = await sessions.listed(conn, _whose(principal), idle=services.settings.session_idle)
    page, more = page_after(found, cursor, limit)
    return Page(items=[SessionView.model_validate(each) for each in page], next_cursor=more)


@router.delete("/sessions/{session_id}", status_code=HTTPStatus.NO_CONTENT)
async def end_session(session_id: SessionId, services: ServicesDep, principal: AnyoneDep) -> None:
    """End a session at once: one of one's own, or anybody's with the scope `admin`."""
    ended = False
    if not principal.machine or principal.may("admin"):
        async with services.database.write() as conn:
            ended = await sessions.revoke(conn, session_id, by=principal.name, of=_whose(principal))
    if not ended:
        raise NotFoundError(f"there is no session {session_id!r} that you may end")


def _whose(principal: Principal) -> str | None:
    return None if principal.may("admin") else principal.name
