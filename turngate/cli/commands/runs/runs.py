"""``turngate run``, ``watch``, ``runs`` and ``interrupt``."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink, find_api
from turngate.cli.follow.lines import STATUS_STYLE
from turngate.cli.follow.run import Shown, follow, tell_started
from turngate.cli.options import AsJson, DataDir, RunId, Url
from turngate.cli.run_options import UnattendedChoice, only_agent, warn_of_shared_directory
from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.domain.requests import RunStatus
from turngate.text.instants import second
from turngate.text.plain_text import Piece, plain_line
from turngate.wire.runs import RunSummary

RUNS_SHOWN: Final = 50

Stream = Annotated[
    bool,
    typer.Option(
        help="On a terminal, and with --json, show what the model says as it comes; else complete messages only.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print the agent's answer and nothing else; what waits for an operator goes to stderr."
    ),
]


class StatusChoice(StrEnum):
    """Which runs to list."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


def run(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="What the agent should do; `-`, or nothing where stdin is no terminal, reads it from stdin.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent.", show_default="the only one there is")] = None,
    workspace: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The directory the agent works in.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="In place of the agent's own: PROVIDER:NAME, or a profile's name.", show_default=False),
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with this conversation.", show_default=False)
    ] = None,
    unattended: Annotated[
        UnattendedChoice | None,
        typer.Option(
            help="Nobody attends the run. What would be asked: `deny` refuses it, `park` lets it wait without a clock, "
            "`rules` asks where a policy rule says so and refuses the rest.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option(help="Follow the run to its end, or return at once.")] = True,
    stream: Stream = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Start a run and follow it. In a terminal you can answer its requests right here.

    With --json each line on stdout is one JSON object with `type` and `seq`, the last one `run.outcome`; notes and errors
    go to stderr, and so does what waits for an operator where stdout is a file. Ctrl-C leaves the run running.

    Exit code: 0 completed (with --no-watch: started) · 1 it failed, for whatever reason · 2 the command or its configuration
    is wrong · 3 interrupted · 130 left by Ctrl-C · 141 left because nobody reads the output any more.
    """
    shown = Shown.of(quiet=quiet, as_json=as_json)
    text = task_text(task)
    link = find_api(data_dir, url)
    directory = None if workspace is None else Path(workspace).expanduser().resolve()
    if directory is not None:
        warn_of_shared_directory(link, directory)
    with link.client() as client:
        started = client.start_run(
            agent=agent or only_agent(client),
            text=text,
            workspace=None if directory is None else str(directory),
            model=model,
            conversation_id=conversation,
            unattended=None if unattended is None else unattended.value,
        )
        tell_started(link, client, started, watch=watch, shown=shown, stream=stream)


def watch(
    run_id: RunId,
    stream: Stream = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Follow a run to its end. In a terminal you can answer its requests right here.

    With --json each line on stdout is one JSON object with `type` and `seq`, the last one `run.outcome`. Ctrl-C leaves the
    run running.

    Exit code: 0 completed · 1 it failed, for whatever reason · 2 the command or its configuration is wrong ·
    3 interrupted · 130 left by Ctrl-C · 141 left because nobody reads the output any more.
    """
    shown = Shown.of(quiet=quiet, as_json=as_json)
    link = find_api(data_dir, url)
    with link.client() as client:
        follow(link, client, run_id, shown=shown, stream=stream)


def runs(
    status: Annotated[StatusChoice | None, typer.Option(help="Only runs of this status.", show_default=False)] = None,
    stuck: Annotated[
        bool, typer.Option("--stuck", help="Only live runs that stand still, each with its reason.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """List runs, newest first.

    What waits in it waits in the same inbox: `turngate requests`.
    """
    link = find_api(data_dir, url)
    if stuck:
        show_stuck(link, as_json=as_json)
        return
    wanted: RunStatus | None = None if status is None else status.value
    with link.client() as client:
        page = client.list_runs(status=wanted, limit=RUNS_SHOWN)
    if as_json:
        terminal.raw(json.dumps([found.model_dump(mode="json") for found in page.items]))
        return
    terminal.table(("RUN", "STATUS", "AGENT", "STEP", "STARTED", "TASK"), [_row(found) for found in page.items])
    if page.next_cursor:
        terminal.note(f"the newest {RUNS_SHOWN}; all of them: {link.url}/runs")
    elif not page.items:
        terminal.note('there is no run yet: turngate run "what to do"' if wanted is None else f"no run is {wanted}")


def _row(found: RunSummary) -> tuple[Piece, ...]:
    return (
        found.id,
        (plain_line(found.how_it_ended or found.status, 60), STATUS_STYLE.get(found.status, "")),
        found.agents,
        str(found.step),
        second(found.created_at),
        f"{_of_run(found)}{plain_line(found.task, 80)}",
    )


def _of_run(found: RunSummary) -> str:
    if found.parent_run_id:
        return f"↳ of run {found.parent_run_id}: "
    if found.schedule_id:
        return f"by schedule {found.schedule_id}: "
    if found.replay_of_run_id:
        return f"dry replay of run {found.replay_of_run_id}: "
    return f"fork of run {found.forked_from_run_id}: " if found.forked_from_run_id else ""


# What a run should do: an argument of the command, or what comes on stdin.


def task_text(task: str | None) -> str:
    """Return the task. ``task``: ``-`` and None stand for stdin, which for None must not be a terminal.

    Raises ConfigurationError without a task; InvalidInputError when nothing, or no UTF-8, comes on stdin.
    """
    if task not in {None, "-"}:
        return str(task)
    if task is None and sys.stdin.isatty():
        raise ConfigurationError(
            'say what the agent should do: `turngate run "…"`, or send it on stdin: `git diff | turngate run`'
        )
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"what came on stdin is not UTF-8 text, at byte {error.start:,}") from None
    if not text.strip():
        raise InvalidInputError("nothing came on stdin, which was to say what the agent should do")
    return text


# ``turngate runs --stuck``: the live runs that stand still, each with its reason.


def show_stuck(link: ApiLink, *, as_json: bool) -> None:
    """Print every live run that stands still, newest first; of all of them, however many there are."""
    with link.client() as client:
        found = list(client.iter_stuck_runs())
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in found]))
        return
    rows = [
        (
            each.run.id,
            (each.waits_for.kind.replace("_", " "), "yellow"),
            each.run.agents,
            second(each.waits_for.since or ""),
            plain_line(each.waits_for.says, 200),
        )
        for each in found
    ]
    terminal.table(("RUN", "WAITS FOR", "AGENT", "SINCE", "WHY"), rows)
    if found:
        terminal.note(f"what to do about one: turngate explain{link.options} RUN")
    else:
        terminal.note("no run stands still")
