"""Schedules, and what happened to their fires."""

from __future__ import annotations

from turngate.domain.agents.schedules import FireStatus, Overlap, Timetable
from turngate.domain.requests import RunStatus, UnattendedAsks
from turngate.wire.people import Person
from turngate.wire.view import View


class ScheduleView(View):
    """A schedule. ``says``: its timetable in words. ``conversation_id``: the one all its runs continue; None: each begins one.

    ``in_force``: whether Temporal has the schedule as shown here; None: Temporal does not answer. ``next_fire_at``: None if
    there is none, or it is unknown now.
    """

    id: str
    name: str
    agent: str
    input: str
    workspace: str | None
    model: str | None
    conversation_id: str | None
    unattended: UnattendedAsks
    timetable: Timetable
    says: str
    overlap: Overlap
    catch_up_seconds: int
    notes: str
    revision: int
    created_by: Person
    created_at: str
    paused_at: str | None
    paused_by: Person | None
    pause_reason: str
    deleted_at: str | None
    deleted_by: Person | None
    in_force: bool | None = None
    next_fire_at: str | None = None


class FireView(View):
    """What happened to one fire. ``fire_at``: its instant on the timetable, or when ``fired_by`` asked for an extra one.

    ``run_status``: of the run that it opened. ``reason``: why it opened none.
    """

    fire_at: str
    outcome: FireStatus
    run_id: str | None
    run_status: RunStatus | None
    reason: str
    fired_by: Person | None


class ScheduleDetail(ScheduleView):
    """A schedule with its next five fires and its last twenty, newest first. The counts cover all fires so far.

    ``missed``: nothing took them within the catch-up window. ``skipped``: a run was still live. ``clock_changes``: what the
    next year's clock changes do to the timetable, a sentence each.
    """

    next_fires: list[str]
    clock_changes: list[str]
    fires: list[FireView]
    opened: int
    skipped: int
    missed: int
