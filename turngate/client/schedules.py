"""Calls about schedules: make one, see them, change one, pause one, resume it, fire it out of turn, delete it."""

from __future__ import annotations

from turngate.client.calls import Call, change, get, key_or_new, post, segment
from turngate.client.calls import model as read_as
from turngate.wire.orders import ScheduleChange, ScheduleOrder
from turngate.wire.runs import RunSummary
from turngate.wire.schedules import ScheduleDetail, ScheduleView
from turngate.wire.view import Page


def create_schedule(order: ScheduleOrder, *, idempotency_key: str | None = None) -> Call[ScheduleDetail]:
    """Create a schedule. The same ``idempotency_key`` again returns the first schedule.

    Raises ConflictError ``name_taken`` or ``idempotency_key_reused``, InvalidInputError for what does not fit.
    """
    return post("/schedules", read_as(ScheduleDetail), order.members(), key=key_or_new(idempotency_key))


def list_schedules(*, limit: int = 50, cursor: str | None = None) -> Call[Page[ScheduleView]]:
    """Return one page of schedules, newest first, without deleted ones. ``limit``: 1 to 200."""
    return get("/schedules", read_as(Page[ScheduleView]), limit=limit, cursor=cursor)


def get_schedule(schedule: str) -> Call[ScheduleDetail]:
    """Return a schedule, by id or name, with its next and its last fires. Raises NotFoundError."""
    return get(f"/schedules/{segment(schedule)}", read_as(ScheduleDetail))


def change_schedule(schedule: str, wanted: ScheduleChange, *, revision: int) -> Call[ScheduleDetail]:
    """Change a schedule. ``revision``: the schedule's when you looked at it.

    Raises ConflictError ``revision_differs`` if someone changed it since, ``name_taken`` or ``schedule_deleted``.
    """
    body = {"revision": revision, **wanted.members()}
    return change("PATCH", f"/schedules/{segment(schedule)}", read_as(ScheduleDetail), body)


def pause_schedule(schedule: str, *, reason: str = "") -> Call[ScheduleDetail]:
    """Hold a schedule: no fire opens a run. A repeat changes nothing. Raises ConflictError ``schedule_deleted``."""
    return change("POST", f"/schedules/{segment(schedule)}/pause", read_as(ScheduleDetail), {"reason": reason})


def resume_schedule(schedule: str) -> Call[ScheduleDetail]:
    """Resume a schedule from its next fire. Raises ConflictError ``schedule_deleted``."""
    return change("POST", f"/schedules/{segment(schedule)}/resume", read_as(ScheduleDetail))


def run_schedule(schedule: str, *, idempotency_key: str | None = None) -> Call[RunSummary]:
    """Open a run of a schedule now, out of turn. Raises ConflictError ``run_live`` (details name it)."""
    key = key_or_new(idempotency_key)
    return Call(method="POST", path=f"/schedules/{segment(schedule)}/run", read=read_as(RunSummary), key=key)


def delete_schedule(schedule: str) -> Call[ScheduleDetail]:
    """Delete a schedule; its runs stay, and live ones continue. Raises ConflictError ``schedule_deleted``."""
    return change("DELETE", f"/schedules/{segment(schedule)}", read_as(ScheduleDetail))
