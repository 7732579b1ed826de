"""``turngate schedule``: runs that the clock starts: make, list, look at, change, hold, let go on, fire now, delete."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from pydantic import ValidationError

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.commands.schedules import views
from turngate.cli.follow.run import Shown, tell_started
from turngate.cli.options import AsJson, DataDir, Url, instant_of, seconds_of
from turngate.cli.run_options import UnattendedChoice, only_agent, warn_of_shared_directory
from turngate.domain.agents.schedules import (
    MAX_CATCH_UP_SECONDS,
    MAX_EVERY_SECONDS,
    MAX_JITTER_SECONDS,
    MIN_CATCH_UP_SECONDS,
    Overlap,
    Timetable,
)
from turngate.domain.errors import ConfigurationError
from turngate.wire.orders import ScheduleChange, ScheduleOrder

if TYPE_CHECKING:
    from turngate.wire.schedules import ScheduleDetail

SHOWN: Final = 50
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Runs that start by the clock: create, list, change, pause, run, delete.",
)

Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its name or id, as `turngate schedule list` shows it.")]


class OverlapChoice(StrEnum):
    """What becomes of a fire while the run before it is live (``turngate.domain.agents.schedules.Overlap``)."""

    SKIP = "skip"
    BUFFER_ONE = "buffer-one"
    ALLOW = "allow"

    @property
    def word(self) -> Overlap:
        """As the API has it."""
        words: dict[str, Overlap] = {"skip": "skip", "buffer-one": "buffer_one", "allow": "allow"}
        return words[self.value]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called: letters, digits, `.`, `_` and `-`.")],
    task: Annotated[str, typer.Argument(metavar="TASK", help="What each run should do; `-` reads it from stdin.")],
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="When: minute, hour, day of month, month, day of week.", show_default=False),
    ] = None,
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="Of --cron, such as Europe/Berlin.")] = "UTC",
    every: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="When: every 90s, 15m, 6h or 7d, counted from 1970.", show_default=False),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent.", show_default="the only one there is")] = None,
    conversation: Annotated[
        str,
        typer.Option(
            metavar="new|continue|ID",
            help="Each run begins a `new` one; or they `continue` one of the schedule's own, or the one with this id.",
        ),
    ] = "new",
    overlap: Annotated[
        OverlapChoice,
        typer.Option(
            help="A fire while the run before it is live: `skip` it, let it wait for that run's end (`buffer-one`; further "
            "ones are skipped), or `allow` it."
        ),
    ] = OverlapChoice.SKIP,
    unattended: Annotated[
        UnattendedChoice,
        typer.Option(
            help="Nobody attends the runs. What would be asked: `deny` refuses it, `park` lets it wait without a clock, "
            "`rules` asks where a policy rule says so and refuses the rest."
        ),
    ] = UnattendedChoice.PARK,
    workspace: Annotated[
        str | None, typer.Option(metavar="DIR", help="The directory the agent works in.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="In place of the agent's own: PROVIDER:NAME, or a profile's name.", show_default=False),
    ] = None,
    starts_at: Annotated[
        str | None, typer.Option(metavar="WHEN", help="No fire before, such as 2026-05-01T08:00.", show_default=False)
    ] = None,
    ends_at: Annotated[str | None, typer.Option(metavar="WHEN", help="No fire after.", show_default=False)] = None,
    jitter: Annotated[str, typer.Option(metavar="SPAN", help="Put each fire off by a random time up to this.")] = "0s",
    catch_up: Annotated[
        str,
        typer.Option(metavar="SPAN", help="A fire that nobody could take for longer than this is missed; 10s to 30d."),
    ] = "10m",
    notes: Annotated[str, typer.Option(help="For whoever reads it.")] = "",
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Make a schedule: a run of the agent with this task, whenever --cron or --every says so. Nobody attends it.

    For example:

    - `turngate schedule create morning "Write the report of yesterday." --cron "0 8 * * 1-5" --time-zone Europe/Berlin`

    - `turngate schedule create tidy "Close what is stale." --every 6h --jitter 10m --unattended deny`

    - `turngate schedule create diary "What is new since last time?" --cron "0 22 * * *" --conversation continue`
    """
    timetable = timetable_of(cron, time_zone, every, starts_at, ends_at, jitter)
    catch_up_seconds = catch_up_of(catch_up)
    link = find_api(data_dir, url)
    directory = None if workspace is None else Path(workspace).expanduser().resolve()
    if directory is not None:
        warn_of_shared_directory(link, directory)
    goes_on: Literal["new", "continue"] = "new" if conversation == "new" else "continue"
    with link.client() as client:
        made = client.create_schedule(
            ScheduleOrder(
                name=name,
                agent=agent or only_agent(client),
                input=sys.stdin.read() if task == "-" else task,
                timetable=timetable,
                conversation=goes_on,
                conversation_id=None if conversation in {"new", "continue"} else conversation,
                workspace=None if directory is None else str(directory),
                model=model,
                unattended=unattended.value,
                overlap=overlap.word,
                catch_up_seconds=catch_up_seconds,
                notes=notes,
            )
        )
    _show(made, as_json=as_json)
    if not as_json:
        terminal.note(f"see it: turngate schedule show{link.options} {made.name}, or {link.url}/schedules/{made.id}")


@app.command()
def change(
    schedule: Name,
    task: Annotated[
        str | None, typer.Option(help="What each run should do; `-` reads it from stdin.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="What it is called.", show_default=False)] = None,
    cron: Annotated[str | None, typer.Option(metavar="EXPR", help="When, in place of the timetable.")] = None,
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="Of --cron.")] = "UTC",
    every: Annotated[str | None, typer.Option(metavar="SPAN", help="When, in place of the timetable.")] = None,
    starts_at: Annotated[str | None, typer.Option(metavar="WHEN", help="With --cron or --every.")] = None,
    ends_at: Annotated[str | None, typer.Option(metavar="WHEN", help="With --cron or --every.")] = None,
    jitter: Annotated[str, typer.Option(metavar="SPAN", help="With --cron or --every.")] = "0s",
    overlap: Annotated[OverlapChoice | None, typer.Option(help="As of `create`.", show_default=False)] = None,
    unattended: Annotated[UnattendedChoice | None, typer.Option(help="As of `create`.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="PROVIDER:NAME, or a profile's name.", show_default=False)] = None,
    catch_up: Annotated[str | None, typer.Option(metavar="SPAN", help="As of `create`.", show_default=False)] = None,
    notes: Annotated[str | None, typer.Option(help="For whoever reads it.", show_default=False)] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Change a schedule; what is left out stays. Its next fire is the first that goes by it.

    For example:

    - `turngate schedule change morning --cron "30 7 * * 1-5" --time-zone Europe/Berlin`

    - `turngate schedule change tidy --unattended rules`
    """
    timetable = None
    if cron is not None or every is not None:
        timetable = timetable_of(cron, time_zone, every, starts_at, ends_at, jitter)
    elif (time_zone, starts_at, ends_at, jitter) != ("UTC", None, None, "0s"):
        raise ConfigurationError("--time-zone, --starts-at, --ends-at and --jitter go with --cron or --every")
    with find_api(data_dir, url).client() as client:
        revision = client.get_schedule(schedule).revision
        wanted = ScheduleChange(
            name=name,
            input=sys.stdin.read() if task == "-" else task,
            timetable=timetable,
            model=model,
            unattended=None if unattended is None else unattended.value,
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
        page = client.list_schedules(limit=SHOWN)
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in page.items]))
        return
    views.show_list(page.items)
    if page.next_cursor:
        terminal.note(f"the newest {SHOWN}")
    elif not page.items:
        terminal.note("there are no schedules; make one: turngate schedule create --help")


@app.command()
def show(schedule: Name, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Show a schedule with its next five fires, and what became of the last ones."""
    with find_api(data_dir, url).client() as client:
        found = client.get_schedule(schedule)
    _show(found, as_json=as_json)


@app.command()
def pause(
    schedule: Name,
    reason: Annotated[str, typer.Option(help="Why; whoever looks at it reads it.")] = "",
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Hold a schedule: no fire opens a run until it is resumed. Its live run goes on."""
    link = find_api(data_dir, url)
    with link.client() as client:
        held = client.pause_schedule(schedule, reason=reason)
    if as_json:
        _show(held, as_json=True)
    else:
        terminal.line(f"{held.name} is held by {held.paused_by}")
        terminal.note(f"let it go on:  turngate schedule resume{link.options} {held.name}")


@app.command()
def resume(schedule: Name, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Let a schedule go on from its next fire; what came up meanwhile is not made up for."""
    with find_api(data_dir, url).client() as client:
        found = client.resume_schedule(schedule)
    if as_json:
        _show(found, as_json=True)
    else:
        terminal.line(f"{found.name} goes on{views.next_words(found)}")


@app.command()
def run(
    schedule: Name,
    watch: Annotated[bool, typer.Option(help="Follow the run to its end, or return at once.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Open a run of a schedule now, out of turn, also while it is held. While its last run is live it is refused."""
    link = find_api(data_dir, url)
    with link.client() as client:
        started = client.run_schedule(schedule)
        tell_started(link, client, started, watch=watch, shown=Shown.of(as_json=as_json))


@app.command()
def delete(schedule: Name, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Delete a schedule: nothing fires any more. Its runs stay, and live ones go on."""
    with find_api(data_dir, url).client() as client:
        gone = client.delete_schedule(schedule)
    if as_json:
        _show(gone, as_json=True)
    else:
        terminal.line(f"{gone.name} ({gone.id}) is deleted; it opened {gone.opened} run(s), which stay")


def _show(found: ScheduleDetail, *, as_json: bool) -> None:
    if as_json:
        terminal.raw(json.dumps(found.model_dump(mode="json")))
    else:
        views.show_detail(found)


# The options that say when a schedule fires, as one timetable.


OPTION_OF: Final = {
    "cron": "--cron",
    "time_zone": "--time-zone",
    "every_seconds": "--every",
    "starts_at": "--starts-at",
    "ends_at": "--ends-at",
    "jitter_seconds": "--jitter",
}


def timetable_of(
    cron: str | None, time_zone: str, every: str | None, starts_at: str | None, ends_at: str | None, jitter: str
) -> Timetable:
    """Return the timetable. Raises ConfigurationError naming the option that does not fit."""
    return _timetable(
        cron=cron,
        time_zone=time_zone,
        every_seconds=None if every is None else _span(every, "--every", 1, MAX_EVERY_SECONDS),
        starts_at=_instant(starts_at, "--starts-at"),
        ends_at=_instant(ends_at, "--ends-at"),
        jitter_seconds=_span(jitter, "--jitter", 0, MAX_JITTER_SECONDS),
    )


def catch_up_of(text: str) -> int:
    """Return ``--catch-up`` in seconds. Raises ConfigurationError."""
    return _span(text, "--catch-up", MIN_CATCH_UP_SECONDS, MAX_CATCH_UP_SECONDS)


def _timetable(**given: object) -> Timetable:
    try:
        return Timetable.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        said = str(first["msg"]).removeprefix("Value error, ")
        option = OPTION_OF.get(str(first["loc"][0])) if first["loc"] else None
        if option is None:
            said = (
                said.replace("every_seconds", "--every").replace("time_zone", "--time-zone").replace("cron", "--cron")
            )
            said = said.replace("ends_at", "--ends-at").replace("starts_at", "--starts-at")
        raise ConfigurationError(
            said if option is None else f"{option}: {said.removeprefix('cron').lstrip(':, ')}"
        ) from None


def _span(text: str, option: str, least: int, most: int) -> int:
    seconds = seconds_of(text, option)
    if not least <= seconds <= most:
        raise ConfigurationError(f"{option} {text}: from {least}s to {most // 86_400}d")
    return seconds


def _instant(text: str | None, option: str) -> datetime | None:
    """Return an instant to come. A span is none: elsewhere it means so long ago."""
    if text is None:
        return None
    if "-" not in text:
        raise ConfigurationError(f"{option} {text}: write it like 2026-05-01T08:00")
    return instant_of(text, option)
