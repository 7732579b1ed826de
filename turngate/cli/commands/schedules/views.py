"""Schedules as a terminal shows them."""

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
    "rules": "asked where a policy rule says so, else refused",
}
OVERLAP: Final = {
    "skip": "skipped while the run before is live",
    "buffer_one": "one waits for the end of the run before, further ones are skipped",
    "allow": "opens a run beside one that is live",
}


def show_list(found: Sequence[ScheduleView]) -> None:
    """Print a table of schedules."""
    rows = [
        (
            each.name,
            each.agent,
            plain_line(each.says, 60),
            _state(each),
            plain_line(each.input, 60),
        )
        for each in found
    ]
    terminal.table(("SCHEDULE", "AGENT", "FIRES", "NEXT", "TASK"), rows)


def show_detail(found: ScheduleDetail) -> None:
    """Print one schedule: what it does, its next fires, and what became of the last ones."""
    terminal.line((found.name, "bold"), f"  {found.id}")
    terminal.line(f"  fires       {found.says}")
    terminal.line(f"  agent       {found.agent}" + (f", with {found.model}" if found.model else ""))
    terminal.line(f"  task        {plain_line(found.input, 200)}")
    if found.workspace:
        terminal.line(f"  workspace   {found.workspace}")
    talks = "in a new conversation each time" if found.conversation_id is None else f"on in {found.conversation_id}"
    terminal.line(f"  talks       {talks}")
    terminal.line(f"  questions   {UNATTENDED[found.unattended]}")
    terminal.line(f"  a fire      {OVERLAP[found.overlap]}")
    terminal.line(f"  catches up  fires of the last {found.catch_up_seconds} s")
    terminal.line(f"  made by     {found.created_by} at {_short(found.created_at)}")
    if found.notes:
        terminal.line(f"  notes       {plain_line(found.notes, 200)}")
    if found.deleted_at is not None:
        terminal.line(("  deleted     ", "red"), f"by {found.deleted_by} at {_short(found.deleted_at)}")
    elif found.paused_at is not None:
        why = f": {plain_line(found.pause_reason, 200)}" if found.pause_reason else ""
        terminal.line(("  held        ", "yellow"), f"by {found.paused_by} since {_short(found.paused_at)}{why}")
    else:
        terminal.line(f"  next        {_next(found)}")
    terminal.line(f"  so far      {found.opened} opened, {found.skipped} skipped, {found.missed} missed")
    if found.fires:
        terminal.table(("FIRE", "BECAME", "RUN", ""), [_fire(each) for each in found.fires])


def next_words(found: ScheduleView) -> str:
    """Return when it fires next, to be put behind a sentence; empty when nobody knows."""
    return "" if found.next_fire_at is None else f"; next at {_short(found.next_fire_at)}"


def _state(each: ScheduleView) -> str:
    if each.paused_at is not None:
        return f"held by {plain_line(each.paused_by or '', 40)}"
    if each.next_fire_at is not None:
        return _short(each.next_fire_at)
    return {None: "Temporal is away", False: "not kept by Temporal yet"}.get(each.in_force, "never again")


def _next(found: ScheduleDetail) -> str:
    if found.next_fires:
        return ", ".join(_short(each) for each in found.next_fires)
    return _state(found)


def _fire(each: FireView) -> tuple[Piece, ...]:
    said = f"by {plain_line(each.fired_by, 60)}" if each.fired_by else plain_line(each.reason, 80)
    became = each.run_status or each.outcome
    return _short(each.fire_at), became, each.run_id or "", said


def _short(instant: str) -> str:
    return second(instant) + "Z"
