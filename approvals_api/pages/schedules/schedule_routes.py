"""The pages of schedules: the list; one with its next and last fires, to pause, resume, run or delete it; the form of one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import RunReaderDep, ServicesDep, StarterDep
from turngate.approvals_api.pages.fork_forms import key_of
from turngate.approvals_api.pages.frames import frame_of, number_of, typed_of
from turngate.approvals_api.pages.schedules import schedule_form
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.switch_model import offered_models
from turngate.approvals_api.schedules import service as schedule_service
from turngate.approvals_api.schedules.views import schedule_detail, schedule_page
from turngate.approvals_api.services import Services
from turngate.domain.agents.schedules import Timetable, clock_changes, next_fires
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError, NotFoundError, TurngateError
from turngate.domain.text.hidden_text import has_hidden
from turngate.store.clock import as_text, now
from turngate.wire.problems import status_of
from turngate.wire.schedules import ScheduleDetail

router = APIRouter(include_in_schema=False)

PAGE_SIZE: Final = 50
MAX_CURSOR_CHARS: Final = 500
NEXT_FIRES: Final = 5


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
    return render(
        "schedules.html",
        frame=frame,
        page=page,
        cursor=cursor,
        state=state,
        may_act=principal.may("runs:write"),
    )


@router.get("/schedules/new")
async def new_schedule(request: Request, services: ServicesDep, principal: StarterDep) -> HTMLResponse:
    """Show the form of a new schedule."""
    return await _show_form(request, services, principal, schedule_form.NEW, None)


@router.post("/schedules/new")
async def create_schedule(request: Request, services: ServicesDep, principal: StarterDep) -> Response:
    """Create a schedule, once its next fires were on the page."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        wanted = schedule_form.schedule_order(typed)
        if not _has_seen(typed, wanted.timetable):
            await schedule_service.check(services, principal, wanted)
            return await _show_form(request, services, principal, typed, None)
        held = typed.get("paused") == "yes"
        schedule = await schedule_service.create(services, principal, wanted, key=typed.get("key") or None, paused=held)
    except TurngateError as error:
        return await _show_form(request, services, principal, typed, error)
    return RedirectResponse(f"/schedules/{schedule.id}", HTTPStatus.SEE_OTHER)


@router.get("/schedules/{schedule_id}/edit")
async def edit_schedule(
    request: Request, services: ServicesDep, principal: StarterDep, schedule_id: str
) -> HTMLResponse:
    """Show the form of an existing schedule."""
    schedule = await schedule_detail(services, schedule_id)
    return await _show_form(request, services, principal, schedule_form.controls_of(schedule), None, schedule)


@router.post("/schedules/{schedule_id}/edit")
async def change_schedule(request: Request, services: ServicesDep, principal: StarterDep, schedule_id: str) -> Response:
    """Change a schedule, once the next fires of a changed timetable were on the page."""
    typed = await typed_of(request)
    schedule = await schedule_detail(services, schedule_id)
    try:
        check_form_token(request, typed.get("csrf_token"))
        change = schedule_form.schedule_change(typed)
        if change.timetable is not None and not _has_seen(typed, change.timetable):
            await schedule_service.check_change(services, principal, schedule_id, change)
            return await _show_form(request, services, principal, typed, None, schedule)
        revision = number_of(typed, "revision") or 0
        await schedule_service.update(services, principal, schedule_id, change, revision=revision)
    except NotFoundError:
        raise
    except TurngateError as error:
        return await _show_form(request, services, principal, typed, error, schedule)
    return RedirectResponse(f"/schedules/{schedule.id}", HTTPStatus.SEE_OTHER)


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
        return await _show(request, services, principal, schedule_id, error, reason=typed.get("reason", ""))
    return RedirectResponse(target, HTTPStatus.SEE_OTHER)


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    schedule_id: str,
    error: TurngateError | None,
    *,
    reason: str = "",
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
        reason=reason,
        key=f"web_{secrets.token_hex(12)}",
        may_act=principal.may("runs:write"),
        state=framed_sha256(str(schedule.revision), schedule.next_fire_at or "", *fires)[:16],
    )


def _has_seen(typed: Mapping[str, str], timetable: Timetable) -> bool:
    """Tell whether the page that was sent showed the next fires of this very timetable."""
    return typed.get("seen") == schedule_form.seen_mark(timetable)


async def _show_form(
    request: Request,
    services: Services,
    principal: Principal,
    typed: Mapping[str, str],
    error: TurngateError | None,
    schedule: ScheduleDetail | None = None,
) -> HTMLResponse:
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        agents = await run_views.agent_list(conn)
        models = await offered_models(conn)
    timetable, fires, changes = None, list[str](), list[str]()
    with suppress(InvalidInputError):
        timetable = schedule_form.timetable_of(typed)
        fires = [as_text(each) for each in await asyncio.to_thread(next_fires, timetable, now(), NEXT_FIRES)]
        changes = await asyncio.to_thread(clock_changes, timetable, now())
    return render(
        "schedule_form.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        schedule=schedule,
        typed=typed,
        errors=schedule_form.complaints(error),
        agents=agents,
        models=models,
        timetable=timetable,
        seen="" if timetable is None else schedule_form.seen_mark(timetable),
        fires=fires,
        clock_changes=changes,
        hides=has_hidden,
        key=key_of(typed, error),
    )
