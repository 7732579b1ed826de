"""Several requests at once: look at each exact call that was picked, then answer them alike. Each has its own answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from approvals_api.http.authentication import Principal, check_form_token
from approvals_api.http.dependencies import OperatorDep, ServicesDep
from approvals_api.pages.frames import frame_of, typed_of
from approvals_api.pages.templating import Frame, render
from approvals_api.requests import bulk
from approvals_api.requests.bulk import MAX_ITEMS, Item
from approvals_api.runs import views as run_views
from approvals_api.services import Services
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.store.requests import requests
from turngate.wire.bulk import DecidedItem
from turngate.wire.problems import status_of
from turngate.wire.requests import RequestItem

router = APIRouter(include_in_schema=False)

PICK: Final = "pick-"


@router.post("/requests/bulk")
async def review(request: Request, services: ServicesDep, principal: OperatorDep) -> Response:
    """Show every call that was picked in the inbox, whole: nothing is approved that was not on the screen."""
    typed = await typed_of(request)
    check_form_token(request, typed.get("csrf_token"))
    return await _show(request, services, principal, typed, None)


@router.post("/requests/bulk/decide")
async def decide(request: Request, services: ServicesDep, principal: OperatorDep) -> Response:
    """Answer the calls that were shown, and show what became of each."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        verb = typed.get("action")
        if verb not in {"approve", "reject"}:
            raise InvalidInputError("several requests can be approved or rejected: use the buttons on this page")
        done = await bulk.decide_many(
            services,
            principal,
            verb="approve" if verb == "approve" else "reject",
            items=[Item(request_id=each, digest=digest) for each, digest in _picked(typed).items()],
            message=typed.get("message", "").replace("\r\n", "\n").strip() if verb == "reject" else "",
            key=typed.get("key") or None,
        )
    except TurngateError as error:
        return await _show(request, services, principal, typed, error)
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        shown = {each.id: each for each in await _items(services, [item.request_id for item in done.items])}
    return await asyncio.to_thread(draw_done, frame, done.items, shown)


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    typed: Mapping[str, str],
    error: TurngateError | None,
) -> HTMLResponse:
    picked = _picked(typed)
    found = await _items(services, list(picked)[:MAX_ITEMS])
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    # A call that changed since the inbox was loaded, or was answered, is not what was picked.
    fresh = [each for each in found if each.status == "pending" and each.digest == picked[each.id]]
    return await asyncio.to_thread(draw_review, frame, fresh, gone=len(picked) - len(fresh), typed=typed, error=error)


def draw_review(
    frame: Frame,
    items: list[RequestItem],
    *,
    gone: int = 0,
    typed: Mapping[str, str] | None = None,
    error: TurngateError | None = None,
) -> HTMLResponse:
    """Return the page of the picked calls. ``gone``: how many of those picked do not wait any more."""
    alike = len({(each.tool_name, each.rule) for each in items}) == 1 and all(each.risk != "high" for each in items)
    return render(
        "bulk.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        items=items,
        gone=gone,
        alike=alike,
        message=(typed or {}).get("message", ""),
        problem="" if error is None else error.message,
        key=f"bulk_{secrets.token_hex(12)}",
    )


def draw_done(frame: Frame, done: list[DecidedItem], shown: Mapping[str, RequestItem]) -> HTMLResponse:
    """Return the page of what became of each."""
    return render("bulk_done.html", frame=frame, done=done, shown=shown)


async def _items(services: Services, ids: list[str]) -> list[RequestItem]:
    async with services.database.read() as conn:
        found = [await requests.get(conn, each) for each in ids]
    return [run_views.request_item(each) for each in found if each is not None]


def _picked(typed: Mapping[str, str]) -> dict[str, str]:
    """Return request id → digest of the call as it was shown."""
    return {name.removeprefix(PICK): digest for name, digest in typed.items() if name.startswith(PICK)}
