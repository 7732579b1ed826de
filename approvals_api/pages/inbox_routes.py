"""The inbox: what waits and what was decided, under filters that stand in the URL, and the views people save of it."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from approvals_api.http.authentication import check_form_token
from approvals_api.http.dependencies import ReaderDep, ServicesDep
from approvals_api.pages.frames import frame_of, typed_of
from approvals_api.pages.templating import render
from approvals_api.paging import decode_cursor
from approvals_api.requests import saved_views as saved_view_operations
from approvals_api.runs import views as run_views
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError
from turngate.domain.runs.inbox import InboxFilter, InboxStatus
from turngate.store.requests import requests, saved_views
from turngate.wire.agents import AgentView
from turngate.wire.requests import RequestItem

router = APIRouter(include_in_schema=False)

PAGE_SIZE: Final = 50
MAX_CURSOR_CHARS: Final = 500
TABS: Final[tuple[InboxStatus, ...]] = (
    "pending",
    "decided",
    "approved",
    "rejected",
    "responded",
    "expired",
    "cancelled",
    "all",
)


@router.get("/")
async def inbox(request: Request, services: ServicesDep, principal: ReaderDep) -> HTMLResponse:
    """Show one page of the requests that the URL's filter means: pending ones oldest first, others newest first.

    One filter drives list, count and badge: the badge is what the filter without conditions counts.
    """
    words = dict(request.query_params)
    cursor = words.pop("cursor", None)
    words.pop("saved", None)
    if cursor is not None and len(cursor) > MAX_CURSOR_CHARS:
        raise InvalidInputError("this cursor is none of ours: go back to the first page", code="bad_cursor")
    shown = InboxFilter.from_words(words)
    wanted = shown.of(principal.name)
    after = decode_cursor(cursor)
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        page = await run_views.request_page(conn, wanted, limit=PAGE_SIZE, after=after)
        count = frame.pending if wanted == InboxFilter() else await requests.count(conn, wanted)
        agents = await run_views.agent_list(conn)
        views = await saved_views.of_person(conn, principal.name)
    return render(
        "inbox.html",
        frame=frame,
        every=TABS,
        filter=shown,
        query_of=lambda **changed: shown.model_copy(update=changed).query,
        page=page,
        count=count,
        cursor=cursor,
        agents=agents,
        tools=_tools(agents),
        views=views,
        may_decide=principal.may("requests:decide"),
        state=_list_state(page.items, count),
    )


@router.post("/views")
async def save_view(request: Request, services: ServicesDep, principal: ReaderDep) -> Response:
    """Save the filter at hand under a name, or remove a saved one; each person has their own."""
    typed = await typed_of(request)
    check_form_token(request, typed.get("csrf_token"))
    shown = InboxFilter.from_query(typed.get("query", ""))
    name = typed.get("name", "").strip()
    if typed.get("action") == "remove":
        await saved_view_operations.remove(services, principal, name)
    else:
        await saved_view_operations.save(services, principal, name, shown.query)
    return RedirectResponse(f"/?{shown.query}" if shown.query else "/", status_code=303)


def _tools(agents: list[AgentView]) -> list[str]:
    return sorted({tool for agent in agents for tool in agent.tools})


def _list_state(items: list[RequestItem], count: int) -> str:
    told = (f"{each.id} {each.status} {each.approvals} {each.claimed_by} {each.parked_at}" for each in items)
    return framed_sha256(str(count), *told)[:16]
