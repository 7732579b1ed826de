"""``turngate schedule``: runs that the clock starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from pydantic import ValidationError

from turngate.cli import terminal
from turngate.cli.api_link import find_api, only_agent
from turngate.cli.follow.run import Follower, Output
from turngate.cli.options import AsJson, DataDir, Url, instant_of, seconds_of
from turngate.domain.agents.schedules import (
    MAX_CATCH_UP_SECONDS,
    MAX_EVERY_SECONDS,
    MAX_JITTER_SECONDS,
    MIN_CATCH_UP_SECONDS,
    Overlap,
    Timetable,
)
from turngate.domain.errors import ConfigurationError
from turngate.domain.requests import UnattendedAsks
from turngate.text.instants import second
from turngate.text.plain_text import Piece, plain_line
from turngate.wire.orders import ScheduleChange, ScheduleOrder

if TYPE_CHECKING:
    from turngate.wire.schedules import ScheduleDetail

MOST_ROWS: Final = 50
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Runs that start by the clock: create, list, change, pause, run, delete.",
)

Name = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="The schedule's name or id, from `turngate schedule list`.")
]


class OverlapChoice(StrEnum):
    """What happens to a fire while the run before it is live (``turngate.domain.agents.schedules.Overlap``)."""

    SKIP = "skip"
    BUFFER_ONE = "buffer-one"
    ALLOW = "allow"

    @property
    def word(self) -> Overlap:
        """The API's word for it."""
        words: dict[str, Overlap] = {"skip": "skip", "buffer-one": "buffer_one", "allow": "allow"}
        return words[self.value]


@app.command()
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The schedule's name: letters, digits, `.`, `_` and `-`.")
    ],
    task: Annotated[str, typer.Argument(metavar="TASK", help="What each run should do; `-` reads it from stdin.")],
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR", help="When to fire: minute, hour, day of month, month, day of week.", show_default=False
        ),
    ] = None,
    time_zone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of --cron, such as Europe/Berlin.")
    ] = "UTC",
    every: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="When to fire: every 90s, 15m, 6h or 7d, counted from 1970.", show_default=False
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent.", show_default="the only one there is")] = None,
    conversation: Annotated[
        str,
        typer.Option(
            metavar="new|continue|ID",
            help="`new`: each run begins a new one. `continue`: all runs share one. ID: all runs continue this one.",
        ),
    ] = "new",
    overlap: Annotated[
        OverlapChoice,
        typer.Option(
            help="What happens to a fire while the last run is live: `skip` it, let one fire wait for that run's end "
            "(`buffer-one`), or `allow` it."
        ),
    ] = OverlapChoice.SKIP,
    unattended: Annotated[
        UnattendedAsks,
        typer.Option(
            help="No one attends the runs. What happens to their requests: `deny` refuses them, `park` lets them wait without "
            "expiry, `rules` opens those that a policy rule asks for and refuses the others."
        ),
    ] = "park",
    workspace: Annotated[
        str | None, typer.Option(metavar="DIR", help="The directory in which the agent works.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model instead of the agent's own: PROVIDER:NAME, or a profile's name.", show_default=False
        ),
    ] = None,
    starts_at: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Do not fire before, such as 2026-05-01T08:00.", show_default=False),
    ] = None,
    ends_at: Annotated[str | None, typer.Option(metavar="WHEN", help="Do not fire after.", show_default=False)] = None,
    jitter: Annotated[str, typer.Option(metavar="SPAN", help="Delay each fire by a random time up to this.")] = "0s",
    catch_up: Annotated[
        str,
        typer.Option(metavar="SPAN", help="After an outage, make up for fires that are at most this old; 10s to 30d."),
    ] = "10m",
    notes: Annotated[str, typer.Option(help="Notes for people who read the schedule.")] = "",
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Create a schedule: --cron or --every says when the agent starts a run with this task.

    No one attends these runs.

    For example:

    - `turngate schedule create morning "Write the report of yesterday." --cron "0 8 * * 1-5" --time-zone Europe/Berlin`

    - `turngate schedule create tidy "Close what is stale." --every 6h --jitter 10m --unattended deny`

    - `turngate schedule create diary "What is new since last time?" --cron "0 22 * * *" --conversation continue`
    """
    timetable = TimetableOptions(cron, time_zone, every, starts_at, ends_at, jitter).timetable()
    catch_up_seconds = catch_up_of(catch_up)
    link = find_api(data_dir, url)
    directory = None if workspace is None else Path(workspace).expanduser().resolve()
    kind: Literal["new", "continue"] = "new" if conversation == "new" else "continue"
    with link.client() as client:
        schedule = client.create_schedule(
            ScheduleOrder(
                name=name,
                agent=agent or only_agent(client),
                input=sys.stdin.read() if task == "-" else task,
                timetable=timetable,
                conversation=kind,
                conversation_id=None if conversation in {"new", "continue"} else conversation,
                workspace=None if directory is None else str(directory),
                model=model,
                unattended=unattended,
                overlap=overlap.word,
                catch_up_seconds=catch_up_seconds,
                notes=notes,
            )
        )
    _show(schedule, as_json=as_json)
    if not as_json:
        terminal.note(
            f"see it: `turngate schedule show{link.options} {schedule.name}`, or {link.pages}/schedules/{schedule.id}"
        )


@app.command()
def change(
    schedule: Name,
    task: Annotated[
        str | None, typer.Option(help="What each run should do; `-` reads it from stdin.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="The new name.", show_default=False)] = None,
    cron: Annotated[str | None, typer.Option(metavar="EXPR", help="When to fire, instead of the timetable.")] = None,
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="The time zone of --cron.")] = "UTC",
    every: Annotated[str | None, typer.Option(metavar="SPAN", help="When to fire, instead of the timetable.")] = None,
    starts_at: Annotated[str | None, typer.Option(metavar="WHEN", help="Only with --cron or --every.")] = None,
    ends_at: Annotated[str | None, typer.Option(metavar="WHEN", help="Only with --cron or --every.")] = None,
    jitter: Annotated[str, typer.Option(metavar="SPAN", help="Only with --cron or --every.")] = "0s",
    overlap: Annotated[OverlapChoice | None, typer.Option(help="As in `create`.", show_default=False)] = None,
    unattended: Annotated[UnattendedAsks | None, typer.Option(help="As in `create`.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="PROVIDER:NAME, or a profile's name.", show_default=False)] = None,
    catch_up: Annotated[str | None, typer.Option(metavar="SPAN", help="As in `create`.", show_default=False)] = None,
    notes: Annotated[
        str | None, typer.Option(help="Notes for people who read the schedule.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Change a schedule. Options that you leave out stay as they are. The next fire is the first with the change.

    For example:

    - `turngate schedule change morning --cron "30 7 * * 1-5" --time-zone Europe/Berlin`

    - `turngate schedule change tidy --unattended rules`
    """
    timetable = None
    if cron is not None or every is not None:
        timetable = TimetableOptions(cron, time_zone, every, starts_at, ends_at, jitter).timetable()
    elif (time_zone, starts_at, ends_at, jitter) != ("UTC", None, None, "0s"):
        raise ConfigurationError("--time-zone, --starts-at, --ends-at and --jitter need --cron or --every")
    with find_api(data_dir, url).client() as client:
        revision = client.get_schedule(schedule).revision
        wanted = ScheduleChange(
            name=name,
            input=sys.stdin.read() if task == "-" else task,
            timetable=timetable,
            model=model,
            unattended=unattended,
            overlap=None if overlap is None else overlap.word,
            catch_up_seconds=None if catch_up is None else catch_up_of(catch_up),
            notes=notes,
        )
        changed = client.change_schedule(schedule, wanted, revision=revision)
    _show(changed, as_json=as_json)


@app.command("list")
def list_schedules(as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """List schedules, newest first: when each fires, and when next."""
    with find_api(data_dir, url).client() as client:
        page = client.list_schedules(limit=MOST_ROWS)
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in page.items]))
        return
    show_list(page.items)
    if page.next_cursor:
        terminal.note(f"the newest {MOST_ROWS}")
    elif not page.items:
        terminal.note("there is no schedule. Create one: turngate schedule create --help")


@app.command()
def show(schedule: Name, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Show a schedule with its next five fires and the results of the last ones."""
    with find_api(data_dir, url).client() as client:
        detail = client.get_schedule(schedule)
    _show(detail, as_json=as_json)


@app.command()
def pause(
    schedule: Name,
    reason: Annotated[str, typer.Option(help="The reason, for people who read the schedule.")] = "",
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Hold a schedule: no fire opens a run until you resume it. Its live run continues."""
    link = find_api(data_dir, url)
    with link.client() as client:
        held = client.pause_schedule(schedule, reason=reason)
    if as_json:
        _show(held, as_json=True)
    else:
        terminal.line(f"{held.name} is held by {held.paused_by}")
        terminal.note(f"resume it:  turngate schedule resume{link.options} {held.name}")


@app.command()
def resume(schedule: Name, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Resume a schedule from its next fire. Fires that came up in the meantime are lost."""
    with find_api(data_dir, url).client() as client:
        resumed = client.resume_schedule(schedule)
    if as_json:
        _show(resumed, as_json=True)
    else:
        terminal.line(f"{resumed.name} continues{next_words(resumed)}")


@app.command()
def run(
    schedule: Name,
    watch: Annotated[bool, typer.Option(help="Follow the run to its end, or return at once.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Start a run of a schedule now, also while the schedule is held. Refused while its last run is live."""
    link = find_api(data_dir, url)
    with link.client() as client:
        started = client.run_schedule(schedule)
        Follower(link, client, Output.of(as_json=as_json)).show_started(started, watch=watch)


@app.command()
def delete(schedule: Name, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Delete a schedule: it no longer fires. Its runs stay, and live ones continue."""
    with find_api(data_dir, url).client() as client:
        gone = client.delete_schedule(schedule)
    if as_json:
        _show(gone, as_json=True)
    else:
        terminal.line(f"{gone.name} ({gone.id}) is deleted; it opened {gone.opened} run(s), which stay")


def _show(schedule: ScheduleDetail, *, as_json: bool) -> None:
    if as_json:
        terminal.raw(json.dumps(schedule.model_dump(mode="json")))
    else:
        show_detail(schedule)


OPTION_OF: Final = {
    "cron": "--cron",
    "time_zone": "--time-zone",
    "every_seconds": "--every",
    "starts_at": "--starts-at",
    "ends_at": "--ends-at",
    "jitter_seconds": "--jitter",
}


@dataclass(frozen=True)
class TimetableOptions:
    """The options that say when a schedule fires, as the user typed them."""

    cron: str | None
    time_zone: str
    every: str | None
    starts_at: str | None
    ends_at: str | None
    jitter: str

    def timetable(self) -> Timetable:
        """Return them as one timetable. Raises ConfigurationError, which names the option."""
        return _timetable(
            cron=self.cron,
            time_zone=self.time_zone,
            every_seconds=None if self.every is None else _span(self.every, "--every", 1, MAX_EVERY_SECONDS),
            starts_at=_instant(self.starts_at, "--starts-at"),
            ends_at=_instant(self.ends_at, "--ends-at"),
            jitter_seconds=_span(self.jitter, "--jitter", 0, MAX_JITTER_SECONDS),
        )


def catch_up_of(text: str) -> int:
    """Return ``--catch-up`` in seconds. Raises ConfigurationError."""
    return _span(text, "--catch-up", MIN_CATCH_UP_SECONDS, MAX_CATCH_UP_SECONDS)


def _timetable(**fields: object) -> Timetable:
    try:
        return Timetable.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        problem = str(first["msg"]).removeprefix("Value error, ")
        option = OPTION_OF.get(str(first["loc"][0])) if first["loc"] else None
        if option is None:
            problem = (
                problem.replace("every_seconds", "--every")
                .replace("time_zone", "--time-zone")
                .replace("cron", "--cron")
            )
            problem = problem.replace("ends_at", "--ends-at").replace("starts_at", "--starts-at")
        raise ConfigurationError(
            problem if option is None else f"{option}: {problem.removeprefix('cron').lstrip(':, ')}"
        ) from None


def _span(text: str, option: str, least: int, most: int) -> int:
    seconds = seconds_of(text, option)
    if not least <= seconds <= most:
        raise ConfigurationError(f"{option} {text}: from {least}s to {most // 86_400}d")
    return seconds


def _instant(text: str | None, option: str) -> datetime | None:
    """Return an instant in the future. A length of time is refused: elsewhere it means so long ago."""
    if text is None:
        return None
    if "-" not in text:
        raise ConfigurationError(f"{option} {text}: write it like 2026-05-01T08:00")
    return instant_of(text, option)


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
    terminal.line(f"  made by     {schedule.created_by} at {second(schedule.created_at)}")
    if schedule.notes:
        terminal.line(f"  notes       {plain_line(schedule.notes, 200)}")
    if schedule.deleted_at is not None:
        terminal.line(("  deleted     ", "red"), f"by {schedule.deleted_by} at {second(schedule.deleted_at)}")
    elif schedule.paused_at is not None:
        why = f": {plain_line(schedule.pause_reason, 200)}" if schedule.pause_reason else ""
        terminal.line(("  held        ", "yellow"), f"by {schedule.paused_by} since {second(schedule.paused_at)}{why}")
    else:
        terminal.line(f"  next        {_next(schedule)}")
        for each in schedule.clock_changes:
            terminal.line(f"  clocks      {each}")
    terminal.line(f"  so far      {schedule.opened} opened, {schedule.skipped} skipped, {schedule.missed} missed")
    if schedule.fires:
        terminal.table(("FIRE", "BECAME", "RUN", ""), [_fire(each) for each in schedule.fires])


def next_words(schedule: ScheduleView) -> str:
    """Return when it fires next, to be added to a sentence; empty when that is unknown."""
    return "" if schedule.next_fire_at is None else f"; next at {second(schedule.next_fire_at)}"


def _state(each: ScheduleView) -> str:
    if each.paused_at is not None:
        return f"held by {plain_line(each.paused_by or '', 40)}"
    if each.next_fire_at is not None:
        return second(each.next_fire_at)
    return {None: "Temporal is away", False: "not in Temporal yet"}.get(each.in_force, "never again")


def _next(schedule: ScheduleDetail) -> str:
    if schedule.next_fires:
        return ", ".join(second(each) for each in schedule.next_fires)
    return _state(schedule)


def _fire(each: FireView) -> tuple[Piece, ...]:
    note = f"by {plain_line(each.fired_by, 60)}" if each.fired_by else plain_line(each.reason, 80)
    became = each.run_status or each.outcome
    return second(each.fire_at), became, each.run_id or "", note
