"""The form that makes and changes a schedule: reading it, and what it shows of a schedule that exists.

A control is named as the member of the API's body that it means, so that complaints find their control.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from pydantic import ValidationError

from turngate.approvals_api.pages.fork_forms import text_of, word_of
from turngate.approvals_api.schedules.order import require_zone
from turngate.approvals_api.validation.errors import invalid
from turngate.domain.agents.schedules import (
    DEFAULT_CATCH_UP_SECONDS,
    MAX_CATCH_UP_SECONDS,
    MIN_CATCH_UP_SECONDS,
    Overlap,
    Timetable,
)
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.requests import UnattendedAsks
from turngate.store.clock import as_text
from turngate.wire.orders import ScheduleChange, ScheduleOrder
from turngate.wire.schedules import ScheduleDetail

UNITS: Final = {"min": 60, "h": 3_600, "d": 86_400, "s": 1}
"""Unit → seconds, as the form offers them."""
MOST_DIGITS: Final = 9
NEW: Final = {
    "kind": "cron",
    "timetable/time_zone": "UTC",
    "every_unit": "min",
    "unattended": "park",
    "overlap": "skip",
    "conversation": "new",
    "catch_up_seconds": str(DEFAULT_CATCH_UP_SECONDS),
}
"""What the form of a new schedule begins with."""
CONVERSATIONS: Final = ("new", "continue")


def schedule_order(typed: Mapping[str, str]) -> ScheduleOrder:
    """Return the order of a new schedule. Raises InvalidInputError, by control."""
    return ScheduleOrder(
        **_members(typed),
        workspace=word_of(typed, "workspace"),
        model=word_of(typed, "model"),
        conversation=_one_of(typed, "conversation", CONVERSATIONS),
    )


def schedule_change(typed: Mapping[str, str]) -> ScheduleChange:
    """Return the change of a schedule: everything that the form has. An empty workspace or model clears it."""
    return ScheduleChange(
        **_members(typed), workspace=word_of(typed, "workspace") or "", model=word_of(typed, "model") or ""
    )


def timetable_of(typed: Mapping[str, str]) -> Timetable:
    """Return the timetable that was typed. Raises InvalidInputError, by control."""
    bounds = {
        "starts_at": _instant(typed, "timetable/starts_at"),
        "ends_at": _instant(typed, "timetable/ends_at"),
        "jitter_seconds": _number(typed, "timetable/jitter_seconds", empty=0),
    }
    try:
        if typed.get("kind") == "every":
            seconds = _number(typed, "timetable/every_seconds") * UNITS.get(typed.get("every_unit", ""), 1)
            return Timetable.model_validate({**bounds, "every_seconds": seconds})
        cron, zone = word_of(typed, "timetable/cron"), word_of(typed, "timetable/time_zone") or "UTC"
        if cron is None:
            raise invalid("/timetable/cron", "type five fields, such as 0 8 * * 1-5")
        require_zone(zone)
        return Timetable.model_validate({**bounds, "cron": " ".join(cron.split()), "time_zone": zone})
    except ValidationError as error:
        first = error.errors()[0]
        place = "/".join(["/timetable", *map(str, first["loc"])])
        raise invalid(place, str(first["msg"]).removeprefix("Value error, ")) from None


def seen_mark(timetable: Timetable) -> str:
    """Return what the form sends back once the next fires of this timetable were on the page."""
    return framed_sha256(timetable.model_dump_json())[:16]


def controls_of(schedule: ScheduleDetail) -> dict[str, str]:
    """Return what the form of an existing schedule begins with."""
    times = schedule.timetable
    every, unit = _in_unit(times.every_seconds)
    return {
        "kind": "cron" if times.every_seconds is None else "every",
        "name": schedule.name,
        "agent": schedule.agent,
        "input": schedule.input,
        "timetable/cron": times.cron or "",
        "timetable/time_zone": times.time_zone,
        "timetable/every_seconds": every,
        "every_unit": unit,
        "timetable/starts_at": _local(times.starts_at),
        "timetable/ends_at": _local(times.ends_at),
        "timetable/jitter_seconds": str(times.jitter_seconds or ""),
        "workspace": schedule.workspace or "",
        "model": schedule.model or "",
        "unattended": schedule.unattended,
        "overlap": schedule.overlap,
        "catch_up_seconds": str(schedule.catch_up_seconds),
        "notes": schedule.notes,
        "revision": str(schedule.revision),
        "seen": seen_mark(times),
    }


def complaints(error: TurngateError | None) -> dict[str, str]:
    """Return complaints by the control they are about; those of no control of this form by the empty name."""
    if error is None:
        return {}
    if error.error_code == "name_taken":
        return {"name": error.message}
    problems = error.details.get("errors", []) if isinstance(error, InvalidInputError) else []
    by_control = {each["pointer"].removeprefix("/"): each["message"] for each in problems}
    if "timetable" in by_control:
        by_control[""] = by_control.pop("timetable")
    return by_control or {"": error.message}


def _members(typed: Mapping[str, str]) -> dict[str, Any]:
    catch_up = _number(typed, "catch_up_seconds", empty=DEFAULT_CATCH_UP_SECONDS)
    if not MIN_CATCH_UP_SECONDS <= catch_up <= MAX_CATCH_UP_SECONDS:
        raise invalid("/catch_up_seconds", f"{MIN_CATCH_UP_SECONDS} to {MAX_CATCH_UP_SECONDS:,} seconds")
    return {
        "name": typed.get("name", "").strip(),
        "agent": typed.get("agent", ""),
        "input": text_of(typed, "input"),
        "timetable": timetable_of(typed),
        "unattended": _one_of(typed, "unattended", get_args(UnattendedAsks)),
        "overlap": _one_of(typed, "overlap", get_args(Overlap)),
        "catch_up_seconds": catch_up,
        "notes": text_of(typed, "notes"),
    }


def _one_of(typed: Mapping[str, str], name: str, offered: tuple[Any, ...]) -> Any:
    chosen = typed.get(name, "")
    if chosen not in offered:
        raise invalid(f"/{name}", "choose one of the options of this form")
    return chosen


def _number(typed: Mapping[str, str], name: str, *, empty: int | None = None) -> int:
    text = typed.get(name, "").strip()
    if not text and empty is not None:
        return empty
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise invalid(f"/{name}", "type a whole number")
    return int(text)


def _instant(typed: Mapping[str, str], name: str) -> datetime | None:
    """Return the instant of a control, in UTC."""
    text = typed.get(name, "").strip()
    if not text:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(f"/{name}", "type a time such as 2026-11-01T08:00") from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _local(instant: datetime | None) -> str:
    """Return an instant as a control of times takes it: in UTC, to the second."""
    return "" if instant is None else as_text(instant)[:19]


def _in_unit(seconds: int | None) -> tuple[str, Literal["d", "h", "min", "s"]]:
    if seconds is None:
        return "", "min"
    if seconds % UNITS["d"] == 0:
        return str(seconds // UNITS["d"]), "d"
    if seconds % UNITS["h"] == 0:
        return str(seconds // UNITS["h"]), "h"
    if seconds % UNITS["min"] == 0:
        return str(seconds // UNITS["min"]), "min"
    return str(seconds), "s"
