"""Calls about schedules: make one, see them, change one, pause one, resume it, fire it out of turn, delete it."""

from __future__ import annotations

from typing import Literal

from turngate.client.calls import Call, change, get, key_or_new, post, segment, without_none
from turngate.client.calls import model as read_as
from turngate.domain.agents.schedules import DEFAULT_CATCH_UP_SECONDS, Overlap, Timetable
from turngate.domain.requests import UnattendedAsks
from turngate.wire.runs import RunSummary
from turngate.wire.schedules import ScheduleDetail, ScheduleView
from turngate.wire.view import Page


def create_schedule(
    name: str,
    *,
    agent: str,
    text: str,
    timetable: Timetable,
    conversation: Literal["new", "continue"] = "new",
    conversation_id: str | None = None,
    workspace: str | None = None,
    model: str | None = None,
    unattended: UnattendedAsks = "park",
    overlap: Overlap = "skip",
    catch_up_seconds: int = DEFAULT_CATCH_UP_SECONDS,
    notes: str = "",
    idempotency_key: str | None = None,
) -> Call[ScheduleDetail]:
    """Make a schedule: a run of ``agent`` with ``text`` as its input, whenever the timetable says so, unattended.

    Args:
        name: unique; letters, digits, ``.``, ``_`` and ``-``.
        agent: name of a published agent.
        text: the input of each run.
        timetable: when.
        conversation: each run begins a ``new`` one, or they ``continue`` one.
        conversation_id: the one to continue; None: one of the schedule's own.
        workspace: absolute path of a directory on the server's machine.
        model: in place of the agent's own, ``provider:name``.
        unattended: what happens to what would be asked, as of a run.
        overlap: what happens to a fire while the run before it is live: ``skip``, ``buffer_one`` or ``allow``.
        catch_up_seconds: 10 and up; a fire that could not be taken for longer is missed.
        notes: for people who read it.
        idempotency_key: the same key again returns the first schedule.

    Raises ConflictError ``name_taken`` or ``idempotency_key_reused``, InvalidInputError for what does not fit.
    """
    optional = {"conversation_id": conversation_id, "workspace": workspace, "model": model}
    body = {
        "name": name,
        "agent": agent,
        "input": text,
        "timetable": timetable.model_dump(mode="json", exclude_defaults=True),
        "conversation": conversation,
        "unattended": unattended,
        "overlap": overlap,
        "catch_up_seconds": catch_up_seconds,
        "notes": notes,
        **without_none(optional),
    }
    return post("/schedules", read_as(ScheduleDetail), body, key=key_or_new(idempotency_key))


def list_schedules(*, limit: int = 50, cursor: str | None = None) -> Call[Page[ScheduleView]]:
    """Return one page of schedules, newest first, without deleted ones. ``limit``: 1 to 200."""
    return get("/schedules", read_as(Page[ScheduleView]), limit=limit, cursor=cursor)


def get_schedule(schedule: str) -> Call[ScheduleDetail]:
    """Return a schedule, by id or name, with its next and its last fires. Raises NotFoundError."""
    return get(f"/schedules/{segment(schedule)}", read_as(ScheduleDetail))


def change_schedule(
    schedule: str,
    *,
    revision: int,
    name: str | None = None,
    agent: str | None = None,
    text: str | None = None,
    timetable: Timetable | None = None,
    workspace: str | None = None,
    model: str | None = None,
    unattended: UnattendedAsks | None = None,
    overlap: Overlap | None = None,
    catch_up_seconds: int | None = None,
    notes: str | None = None,
) -> Call[ScheduleDetail]:
    """Change a schedule; what is None stays. ``revision``: the schedule's as you looked at it; the others as in ``create``.

    Raises ConflictError ``revision_differs`` when someone changed it since, ``name_taken`` or ``schedule_deleted``.
    """
    body = {
        "revision": revision,
        "name": name,
        "agent": agent,
        "input": text,
        "timetable": None if timetable is None else timetable.model_dump(mode="json", exclude_defaults=True),
        "workspace": workspace,
        "model": model,
        "unattended": unattended,
        "overlap": overlap,
        "catch_up_seconds": catch_up_seconds,
        "notes": notes,
    }
    return change("PATCH", f"/schedules/{segment(schedule)}", read_as(ScheduleDetail), without_none(body))


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
