"""Schedules as they are shown: what the store has of them, with what Temporal says of their time. Changes nothing."""

from __future__ import annotations

from typing import Final

from approvals_api.concurrency import for_each
from approvals_api.gateway.schedules import ScheduleLook
from approvals_api.paging import one_page
from approvals_api.services import Services
from turngate.domain.errors import NotFoundError, UnavailableError
from turngate.store.clock import as_text
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


Looked = ScheduleLook | Away | None


async def existing_schedule(conn: Connection, id_or_name: str, *, hold: bool = False) -> Schedule:
    """Return a schedule by id or name, also a deleted one by its id. Raises NotFoundError.

    ``hold``: as of a write transaction that changes it.
    """
    found = await schedules.find(conn, id_or_name)
    if found is not None and hold:
        found = await schedules.get(conn, found.id, hold=True)
    if found is None:
        raise NotFoundError(f"there is no schedule {id_or_name!r}")
    return found


async def schedule_page(services: Services, *, limit: int, before: tuple[str, str] | None = None) -> Page[ScheduleView]:
    """Return one page of schedules, newest first, without deleted ones."""
    async with services.database.read() as conn:
        found = await schedules.page(conn, limit=limit + 1, before=before)
    shown, more = one_page(found, limit)
    looked: dict[str, Looked] = {}

    async def look(schedule: Schedule) -> None:
        # One that is away for one is away for all: nobody waits for it a second time.
        away = any(isinstance(each, Away) for each in looked.values())
        looked[schedule.id] = Away() if away else await _look(services, schedule)

    await for_each(shown, look, at_once=AT_ONCE)
    return Page(items=[schedule_view(each, looked[each.id]) for each in shown], next_cursor=more)


async def schedule_detail(services: Services, id_or_name: str) -> ScheduleDetail:
    """Return a schedule with its next and its last fires. Raises NotFoundError."""
    async with services.database.read() as conn:
        schedule = await existing_schedule(conn, id_or_name)
        fires = await schedule_fires.newest(conn, schedule.id, limit=FIRES_SHOWN)
        counts = await schedule_fires.counts(conn, schedule.id)
        opened = {each.run_id: await runs.get(conn, each.run_id) for each in fires if each.run_id is not None}
    looked = await _look(services, schedule)
    known = looked if isinstance(looked, ScheduleLook) else None
    shown = []
    for each in fires:
        run = None if each.run_id is None else opened[each.run_id]
        shown.append(FireView.model_validate({**vars(each), "run_status": None if run is None else run.status}))
    return ScheduleDetail(
        **schedule_view(schedule, looked).model_dump(),
        next_fires=_next_fires(schedule, known),
        fires=shown,
        opened=counts.get("opened", 0),
        skipped=counts.get("skipped", 0) + (0 if known is None else known.passed_over),
        missed=counts.get("missed", 0) + (0 if known is None else known.missed),
    )


def schedule_view(schedule: Schedule, looked: Looked) -> ScheduleView:
    """Return a schedule as it is shown."""
    times = schedule.times
    known = looked if isinstance(looked, ScheduleLook) else None
    coming = _next_fires(schedule, known)
    if isinstance(looked, Away):
        in_force = None
    elif schedule.deleted_at is not None:
        in_force = known is None
    else:
        in_force = known is not None and known.revision == schedule.revision
    shown = {**vars(schedule), "unattended": schedule.unattended_asks, "timetable": times, "says": times.says}
    return ScheduleView.model_validate({**shown, "in_force": in_force, "next_fire_at": coming[0] if coming else None})


def _next_fires(schedule: Schedule, known: ScheduleLook | None) -> list[str]:
    """Return when it fires next. Temporal names times of a paused one, too, at which nothing will happen."""
    if known is None or schedule.paused_at is not None or schedule.deleted_at is not None:
        return []
    return [as_text(each) for each in known.next_fires]


async def _look(services: Services, schedule: Schedule) -> Looked:
    try:
        return await services.gateway.schedules.look(schedule.id)
    except UnavailableError:
        return Away()
