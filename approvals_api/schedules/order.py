"""The order for a new or changed schedule, checked as far as possible without the store."""

from __future__ import annotations

import re
from typing import Any, Final
from zoneinfo import ZoneInfo

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs.order import checked_order
from turngate.approvals_api.validation.errors import invalid
from turngate.approvals_api.validation.text import require_storable
from turngate.domain.agents.schedules import ID_PREFIX
from turngate.store.clock import now
from turngate.store.schedules.schedules import Schedule
from turngate.wire.orders import ScheduleOrder, StartOrder

NAME: Final = r"^(?!sched_)[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MAX_NOTES_CHARS: Final = 2_000


async def check_wanted(wanted: ScheduleOrder, principal: Principal) -> None:
    """Raise InvalidInputError unless everything that can be checked without the store is valid."""
    if not re.fullmatch(NAME, wanted.name):
        raise invalid("/name", f"1 to 64 letters, digits, '.', '_' and '-', and not beginning with {ID_PREFIX}")
    first = StartOrder(
        agent=wanted.agent,
        input=wanted.input,
        conversation_id=wanted.conversation_id,
        workspace=wanted.workspace,
        model=wanted.model,
    )
    await checked_order(first, principal)
    if wanted.conversation_id is not None and wanted.conversation == "new":
        raise invalid("/conversation_id", "needs conversation continue")
    if wanted.conversation == "continue" and wanted.overlap == "allow":
        raise invalid("/overlap", "a conversation has one live run at a time: use skip or buffer_one")
    if len(wanted.notes) > MAX_NOTES_CHARS:
        raise invalid("/notes", f"at most {MAX_NOTES_CHARS:,} characters, not {len(wanted.notes):,}")
    require_storable(wanted.notes, "/notes")
    require_zone(wanted.timetable.time_zone)
    ends_at = wanted.timetable.ends_at
    if ends_at is not None and ends_at <= now():
        raise invalid("/timetable/ends_at", "this is in the past, so it would never fire")


def require_zone(zone: str) -> None:
    """Raise InvalidInputError unless there is such a time zone."""
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, LookupError):  # no such zone is a KeyError, a folder of zones an OSError
        raise invalid(
            "/timetable/time_zone", f"{zone!r} is no time zone: use an IANA name, such as Europe/Berlin"
        ) from None


def columns_of(wanted: ScheduleOrder) -> dict[str, Any]:
    """Return the columns to store, without the conversation."""
    return {
        "name": wanted.name,
        "agent": wanted.agent,
        "input": wanted.input,
        "workspace": wanted.workspace,
        "model": wanted.model,
        "unattended_asks": wanted.unattended,
        "timetable": wanted.timetable.model_dump_json(),
        "overlap": wanted.overlap,
        "catch_up_seconds": wanted.catch_up_seconds,
        "notes": wanted.notes,
    }


def as_wanted(schedule: Schedule) -> ScheduleOrder:
    """Return the order that would create this schedule."""
    return ScheduleOrder(
        name=schedule.name,
        agent=schedule.agent,
        input=schedule.input,
        timetable=schedule.times,
        conversation="new" if schedule.conversation_id is None else "continue",
        conversation_id=schedule.conversation_id,
        workspace=schedule.workspace,
        model=schedule.model,
        unattended=schedule.unattended_asks,
        overlap=schedule.overlap,
        catch_up_seconds=schedule.catch_up_seconds,
        notes=schedule.notes,
    )
