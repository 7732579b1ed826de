"""``turngate status``: what is wrong with the installation, and how to fix it."""

from __future__ import annotations

from typing import Any, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink, find_api
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.led_commands import led, led_text
from turngate.cli.options import AsJson, DataDir, Url
from turngate.domain.errors import UnavailableError
from turngate.store.clock import as_text, now
from turngate.text.instants import second
from turngate.text.plain_text import Piece, plain_line
from turngate.wire.health import HealthCheck, HealthState, HealthView

MARKS: Final[dict[HealthState, Piece]] = {"ok": ("✓ ", "green"), "warning": ("! ", "yellow"), "wrong": ("✗ ", "red")}
MARGIN: Final = "    "
MOST_CHARS: Final = 1_000


def status(context: typer.Context, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Say what is wrong: workers, builds, runs that wait, Temporal, the store, notifications, disk and clocks.

    Prints each check, what is wrong first, with how to fix it. A ✗ is an error, a ! is worth a look.

    Exit code: 0 when nothing is wrong, 1 when something is.
    """
    link = find_api(data_dir, url)
    with link.client() as client:
        try:
            health = client.get_health()
        except UnavailableError as error:
            health = _without_api(error)
    if as_json:
        terminal.document(health.model_dump_json())
    else:
        _show(health, link, context.find_root().command)
    if health.state == "wrong":
        raise typer.Exit(EXIT_WENT_WRONG)


def _without_api(error: UnavailableError) -> HealthView:
    check = HealthCheck(
        name="api",
        state="wrong",
        says=f"The API can't say how things are: {error.message}",
        fix="Start what is missing; the doctor looks without the API.",
        command="turngate doctor",
    )
    return HealthView(state="wrong", checked_at=as_text(now()), checks=[check])


def _show(health: HealthView, link: ApiLink, root: Any) -> None:  # typer's groups have no public class
    for check in health.checks:
        show_check(
            check.model_copy(
                update={
                    "fix": led_text(check.fix, link, root),
                    "command": None if check.command is None else led(check.command, link, root),
                }
            )
        )
    if health.workers:
        terminal.line("")
        rows = [
            (each.task_queue, each.build or "-", str(each.workers), second(each.polled_at),
             "yes" if each.gets_new_runs else "no")
            for each in health.workers
        ]  # fmt: skip
        terminal.table(("TASK QUEUE", "BUILD", "WORKERS", "LAST POLL", "NEW RUNS"), rows)
    if health.waits:
        terminal.line("")
        terminal.table(
            ("WAITS FOR", "RUNS", "THE NEWEST"), [(each.says, str(each.runs), each.run_id) for each in health.waits]
        )


def show_check(check: HealthCheck) -> None:
    """Print one check, and below it how to fix it."""
    name = check.name.replace("_", " ")
    terminal.line(MARKS[check.state], (name, "bold"), f": {plain_line(check.says, MOST_CHARS)}")
    if check.fix:
        terminal.line(MARGIN, plain_line(check.fix, MOST_CHARS))
    if check.command is not None:
        terminal.line(MARGIN, (plain_line(check.command, MOST_CHARS), "cyan"))
