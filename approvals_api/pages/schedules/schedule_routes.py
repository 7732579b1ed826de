"""The pages of schedules: the list, and one with its next and last fires, to pause, resume, run now or delete it."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from approvals_api.http.authentication import check_form_token
from approvals_api.http.dependencies import RunReaderDep, ServicesDep, StarterDep
from approvals_api.pages.frames import frame_of, typed_of
from approvals_api.pages.templating import render
from approvals_api.paging import decode_cursor
from approvals_api.principal import Principal
from approvals_api.schedules import service as schedule_service
from approvals_api.schedules.views import schedule_detail, schedule_page
from approvals_api.services import Services
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError, NotFoundError, TurngateError
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)

PAGE_SIZE: Final = 50
MAX_CURSOR_CHARS: Final = 500


@router.get("/schedules")
async def schedules_page(
    request: Request,
    services: ServicesDep,
    principal: RunReaderDep,
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS)] = None,
) -> HTMLResponse:
    """List schedules, newest first."""
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    page = await schedule_page(services, limit=PAGE_SIZE, before=decode_cursor(cursor))
    state = framed_sha256(*(f"{each.id} {each.revision} {each.next_fire_at}" for each in page.items))[:16]
    return render("schedules.html", frame=frame, page=page, cursor=cursor, state=state)


@router.get("/schedules/{schedule_id}")
async def one_schedule(
    request: Request, services: ServicesDep, principal: RunReaderDep, schedule_id: str
) -> HTMLResponse:
    """Show one schedule."""
    return await _show(request, services, principal, schedule_id, None)


@router.post("/schedules/{schedule_id}")
async def act_on_schedule(request: Request, services: ServicesDep, principal: StarterDep, schedule_id: str) -> Response:
    """Pause or resume a schedule, start a run of it now, or delete it."""
    typed = await typed_of(request)
    target = f"/schedules/{schedule_id}"
    try:
        check_form_token(request, typed.get("csrf_token"))
        match typed.get("action"):
            case "pause":
                await schedule_service.pause(services, principal, schedule_id, reason=typed.get("reason", "").strip())
            case "resume":
                await schedule_service.resume(services, principal, schedule_id)
            case "run":
                run = await schedule_service.fire_now(services, principal, schedule_id, key=typed.get("key") or None)
                target = f"/runs/{run.id}"
            case "delete":
                await schedule_service.delete(services, principal, schedule_id)
            case _:
                raise InvalidInputError("this form has no known action: use the buttons on this page")
    except NotFoundError:
        raise
    except TurngateError as error:
        return await _show(request, services, principal, schedule_id, error)
    return RedirectResponse(target, HTTPStatus.SEE_OTHER)


async def _show(
    request: Request, services: Services, principal: Principal, schedule_id: str, error: TurngateError | None
) -> HTMLResponse:
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    schedule = await schedule_detail(services, schedule_id)
    fires = [f"{each.fire_at} {each.outcome} {each.run_status}" for each in schedule.fires]
    return render(
        "schedule.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        schedule=schedule,
        error=error,
        key=f"web_{secrets.token_hex(12)}",
        may_act=principal.may("runs:write"),
        state=framed_sha256(str(schedule.revision), schedule.next_fire_at or "", *fires)[:16],
    )
