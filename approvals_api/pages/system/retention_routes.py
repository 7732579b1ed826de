"""The page Retention, for admins: what would go, what must stay, what was erased; and erasing after its id was typed again."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import AdminDep, ServicesDep
from turngate.approvals_api.pages.frames import frame_of, typed_of
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.retention import erase, holds
from turngate.approvals_api.retention.overview import CONVERSATION, ConfirmedErasure, erase_confirmed, retention_view
from turngate.approvals_api.retention.people import preview_person
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import NotFoundError, TurngateError
from turngate.store.retention.erase_content import KINDS
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)

MAX_TARGET_CHARS = 255
Target = Annotated[str, Query(max_length=MAX_TARGET_CHARS, pattern=STORABLE)]


@router.get("/retention")
async def retention_page(
    request: Request, services: ServicesDep, principal: AdminDep, done: Annotated[str, Query(max_length=64)] = ""
) -> HTMLResponse:
    """Show rules, holds and erasures. ``done``: what the person has just done."""
    return await _show(request, services, principal, done=done)


@router.get("/retention/erase")
async def erase_page(
    request: Request, services: ServicesDep, principal: AdminDep, target: Target, with_forks: bool = False
) -> HTMLResponse:
    """Show what erasing would empty, with the form that asks for the id again."""
    typed = {"target": target.strip(), **({"with_forks": "on"} if with_forks else {})}
    try:
        return await _show_erasure(request, services, principal, typed, None)
    except TurngateError as error:
        return await _show(request, services, principal, typed={"erase": target}, error=error)


@router.post("/retention/erase")
async def erase_now(request: Request, services: ServicesDep, principal: AdminDep) -> Response:
    """Erase it, if the id was typed again."""
    typed = await typed_of(request)
    order = ConfirmedErasure(
        target=typed.get("target", ""),
        confirm=typed.get("confirm", "").strip(),
        reason=typed.get("reason", ""),
        with_forks=typed.get("with_forks") == "on",
        interrupt=typed.get("interrupt") == "on",
    )
    try:
        check_form_token(request, typed.get("csrf_token"))
        await erase_confirmed(services, principal, order)
    except NotFoundError:
        raise
    except TurngateError as error:
        return await _show_erasure(request, services, principal, typed, error)
    return RedirectResponse("/retention?done=erased", HTTPStatus.SEE_OTHER)


@router.post("/retention/holds")
async def add_hold(request: Request, services: ServicesDep, principal: AdminDep) -> Response:
    """Put a hold on a conversation or an agent."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        target = typed.get("target", "").strip()
        await holds.add(services.database, target, reason=typed.get("reason", ""), by=principal.name)
    except TurngateError as error:
        return await _show(request, services, principal, typed=typed, error=error)
    return RedirectResponse("/retention?done=held", HTTPStatus.SEE_OTHER)


@router.post("/retention/holds/{hold_id}/release")
async def release_hold(request: Request, services: ServicesDep, principal: AdminDep, hold_id: str) -> Response:
    """Remove a hold."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        await holds.remove(services.database, hold_id, reason=typed.get("reason", ""), by=principal.name)
    except TurngateError as error:
        words = {f"release {hold_id}": typed.get("reason", "")}
        return await _show(request, services, principal, typed=words, error=error)
    return RedirectResponse("/retention?done=released", HTTPStatus.SEE_OTHER)


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    *,
    done: str = "",
    typed: Mapping[str, str] | None = None,
    error: TurngateError | None = None,
) -> HTMLResponse:
    """Show the page, with what was typed where it could not be done."""
    view = await retention_view(services)
    async with services.database.glance() as conn:
        frame = await frame_of(conn, request, principal)
    status = HTTPStatus.OK if error is None else status_of(error)
    return render(
        "retention.html", frame=frame, status=status, retention=view, done=done, typed=typed or {}, error=error
    )


async def _show_erasure(
    request: Request, services: Services, principal: Principal, typed: Mapping[str, str], error: TurngateError | None
) -> HTMLResponse:
    target, with_forks = typed.get("target", ""), typed.get("with_forks") == "on"
    preview, person = None, None
    if target.startswith(CONVERSATION):
        preview = await erase.preview(services.database, target, with_forks=with_forks)
    else:
        person = await preview_person(services.database, target)
    async with services.database.glance() as conn:
        frame = await frame_of(conn, request, principal)
    return render(
        "erase.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        target=target,
        preview=preview,
        person=person,
        kinds=KINDS,
        with_forks=with_forks,
        typed=typed,
        error=error,
    )
