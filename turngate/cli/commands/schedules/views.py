"""Schedules as lines of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from turngate.cli import terminal
from turngate.text.instants import second
from turngate.text.plain_text import Piece, plain_line

if TYPE_CHECKING:
    from turngate.wire.schedules import FireView, ScheduleDetail, ScheduleView

UNATTENDED: Final = {
    "deny": "refused",
    "park": "parked in the inbox",
    "rules": "opened if a policy rule asks for them, else refused",
}
OVERLAP: Final = {
    "skip": "skipped while the run before it is live",
    "buffer_one": "one waits for the end of the run before it, others are skipped",
    "allow": "opens a run, also while another is live",
}


def show_list(schedules: Sequence[ScheduleView]) -> None:
    """Print a table of schedules."""
    rows = [
        (
            each.name,
            each.agent,
            plain_line(each.says, 60),
            _state(each),
            plain_line(each.input, 60),
        )
        for each in schedules
    ]
    terminal.table(("SCHEDULE", "AGENT", "FIRES", "NEXT", "TASK"), rows)


def show_detail(schedule: ScheduleDetail) -> None:
    """Print one schedule: what it does, its next fires, and the results of the last ones."""
    terminal.line((schedule.name, "bold"), f"  {schedule.id}")
    terminal.line(f"  fires       {schedule.says}")
    terminal.line(f"  agent       {schedule.agent}" + (f", with {schedule.model}" if schedule.model else ""))
    terminal.line(f"  task        {plain_line(schedule.input, 200)}")
    if schedule.workspace:
        terminal.line(f"  workspace   {schedule.workspace}")
    place = "in a new conversation each time"
    if schedule.conversation_id is not None:
        place = f"always in {schedule.conversation_id}"
    terminal.line(f"  talks       {place}")
    terminal.line(f"  questions   {UNATTENDED[schedule.unattended]}")
    terminal.line(f"  a fire      {OVERLAP[schedule.overlap]}")
    terminal.line(f"  catches up  fires of the last {schedule.catch_up_seconds} s")
    terminal.line(f"  made by     {schedule.created_by} at {_short(schedule.created_at)}")
    if schedule.notes:
        terminal.line(f"  notes       {plain_line(schedule.notes, 200)}")
    if schedule.deleted_at is not None:
        terminal.line(("  deleted     ", "red"), f"by {schedule.deleted_by} at {_short(schedule.deleted_at)}")
    elif schedule.paused_at is not None:
        why = f": {plain_line(schedule.pause_reason, 200)}" if schedule.pause_reason else ""
        terminal.line(("  held        ", "yellow"), f"by {schedule.paused_by} since {_short(schedule.paused_at)}{why}")
    else:
        terminal.line(f"  next        {_next(schedule)}")
    terminal.line(f"  so far      {schedule.opened} opened, {schedule.skipped} skipped, {schedule.missed} missed")
    if schedule.fires:
        terminal.table(("FIRE", "BECAME", "RUN", ""), [_fire(each) for each in schedule.fires])


def next_words(schedule: ScheduleView) -> str:
    """Return when it fires next, to be added to a sentence; empty when that is unknown."""
    return "" if schedule.next_fire_at is None else f"; next at {_short(schedule.next_fire_at)}"


def _state(each: ScheduleView) -> str:
    if each.paused_at is not None:
        return f"held by {plain_line(each.paused_by or '', 40)}"
    if each.next_fire_at is not None:
        return _short(each.next_fire_at)
    return {None: "Temporal is away", False: "not in Temporal yet"}.get(each.in_force, "never again")


def _next(schedule: ScheduleDetail) -> str:
    if schedule.next_fires:
        return ", ".join(_short(each) for each in schedule.next_fires)
    return _state(schedule)


def _fire(each: FireView) -> tuple[Piece, ...]:
    note = f"by {plain_line(each.fired_by, 60)}" if each.fired_by else plain_line(each.reason, 80)
    became = each.run_status or each.outcome
    return _short(each.fire_at), became, each.run_id or "", note


def _short(instant: str) -> str:
    return second(instant) + "Z"
