"""Schedules as they are shown: what the store has of them, with what Temporal says of their time. Changes nothing."""

from __future__ import annotations

import asyncio
from typing import Final

from turngate.approvals_api.concurrency import for_each
from turngate.approvals_api.gateway.schedules import ScheduleLook
from turngate.approvals_api.paging import one_page
from turngate.approvals_api.services import Services
from turngate.domain.agents.schedules import clock_changes
from turngate.domain.errors import NotFoundError, UnavailableError
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.runs import runs
from turngate.store.schedules import schedule_fires, schedules
from turngate.store.schedules.schedules import Schedule
from turngate.wire.schedules import FireView, ScheduleDetail, ScheduleView
from turngate.wire.view import Page

AT_ONCE: Final = 8
FIRES_SHOWN: Final = 20


class Away:
    """Temporal did not answer."""


TemporalView = ScheduleLook | Away | None


async def existing_schedule(conn: Connection, id_or_name: str, *, hold: bool = False) -> Schedule:
    """Return a schedule by id or name, also a deleted one by its id. Raises NotFoundError.

    ``hold``: lock it, in a write transaction that changes it.
    """
    schedule = await schedules.find(conn, id_or_name)
    if schedule is not None and hold:
        schedule = await schedules.get(conn, schedule.id, hold=True)
    if schedule is None:
        raise NotFoundError(f"there is no schedule {id_or_name!r}")
    return schedule


async def schedule_page(
    services: Services, *, limit: int, before: tuple[str, str] | None = None, created_by: str | None = None
) -> Page[ScheduleView]:
    """Return one page of schedules, newest first, without deleted ones. ``created_by`` None: everyone's."""
    async with services.database.read() as conn:
        rows = await schedules.page(conn, limit=limit + 1, before=before, created_by=created_by)
    listed, more = one_page(rows, limit)
    seen: dict[str, TemporalView] = {}

    async def look(schedule: Schedule) -> None:
        # If Temporal is away for one schedule, it is away for all: wait for it only once.
        away = any(isinstance(each, Away) for each in seen.values())
        seen[schedule.id] = Away() if away else await _look(services, schedule)

    await for_each(listed, look, at_once=AT_ONCE)
    return Page(items=[schedule_view(each, seen[each.id]) for each in listed], next_cursor=more)


async def schedule_detail(services: Services, id_or_name: str) -> ScheduleDetail:
    """Return a schedule with its next and its last fires. Raises NotFoundError."""
    async with services.database.read() as conn:
        schedule = await existing_schedule(conn, id_or_name)
        fires = await schedule_fires.newest(conn, schedule.id, limit=FIRES_SHOWN)
        counts = await schedule_fires.counts(conn, schedule.id)
        opened = {each.run_id: await runs.get(conn, each.run_id) for each in fires if each.run_id is not None}
    seen = await _look(services, schedule)
    known = seen if isinstance(seen, ScheduleLook) else None
    fire_views = []
    for each in fires:
        run = None if each.run_id is None else opened[each.run_id]
        fire_views.append(FireView.model_validate({**vars(each), "run_status": None if run is None else run.status}))
    return ScheduleDetail(
        **schedule_view(schedule, seen).model_dump(),
        next_fires=_next_fires(schedule, known),
        clock_changes=await asyncio.to_thread(clock_changes, schedule.times, now()),
        fires=fire_views,
        opened=counts.get("opened", 0),
        skipped=counts.get("skipped", 0) + (0 if known is None else known.passed_over),
        missed=counts.get("missed", 0) + (0 if known is None else known.missed),
    )


def schedule_view(schedule: Schedule, seen: TemporalView) -> ScheduleView:
    """Return a schedule as it is shown."""
    times = schedule.times
    known = seen if isinstance(seen, ScheduleLook) else None
    coming = _next_fires(schedule, known)
    if isinstance(seen, Away):
        in_force = None
    elif schedule.deleted_at is not None:
        in_force = known is None
    else:
        in_force = known is not None and known.revision == schedule.revision
    fields = {**vars(schedule), "unattended": schedule.unattended_asks, "timetable": times, "says": times.says}
    return ScheduleView.model_validate({**fields, "in_force": in_force, "next_fire_at": coming[0] if coming else None})


def _next_fires(schedule: Schedule, known: ScheduleLook | None) -> list[str]:
    """Return when it fires next. For a paused one, Temporal lists times at which nothing will happen."""
    if known is None or schedule.paused_at is not None or schedule.deleted_at is not None:
        return []
    return [as_text(each) for each in known.next_fires]


async def _look(services: Services, schedule: Schedule) -> TemporalView:
    try:
        return await services.gateway.schedules.look(schedule.id)
    except UnavailableError:
        return Away()
