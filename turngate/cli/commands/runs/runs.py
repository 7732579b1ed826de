"""``turngate run``, ``watch`` and ``runs``: start a run, follow one, list them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, cast, get_args

import typer

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink, find_api, only_agent
from turngate.cli.commands.serve.status import show_check
from turngate.cli.follow.lines import STATUS_STYLE
from turngate.cli.follow.run import Follower, Output
from turngate.cli.options import AsJson, DataDir, RunId, Url
from turngate.client.runs import RunsWhere
from turngate.client.synchronous import SyncTurngateClient
from turngate.domain.errors import ConfigurationError, ForbiddenError, InvalidInputError
from turngate.domain.requests import RunStatus, UnattendedAsks
from turngate.domain.runs.failure_classes import FailureClass
from turngate.text.instants import second
from turngate.text.plain_text import Piece, plain_line
from turngate.text.run_words import WAITS_FOR, by_cause
from turngate.wire.explanation import StuckRun, WaitKind
from turngate.wire.health import HealthCheck
from turngate.wire.runs import RunSummary

MOST_ROWS: Final = 50
STALLED_COLUMNS: Final = ("RUN", "WAITS FOR", "AGENT", "SINCE", "WHY")

Stream = Annotated[
    bool,
    typer.Option(
        help="On a terminal, and with --json, print the model's words while it writes them. Else print complete messages only.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print only the agent's answer. Requests that wait for an operator go to stderr."
    ),
]


def run(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="What the agent should do. Read from stdin with `-`, and without TASK if stdin is no terminal.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent.", show_default="the only one there is")] = None,
    workspace: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The directory in which the agent works.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model instead of the agent's own: PROVIDER:NAME, or a profile's name.", show_default=False
        ),
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue this conversation.", show_default=False)
    ] = None,
    unattended: Annotated[
        UnattendedAsks | None,
        typer.Option(
            help="No one attends the run. What happens to its requests: `deny` refuses them, `park` lets them wait without "
            "expiry, `rules` opens those that a policy rule asks for and refuses the others.",
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

    With --json each line on stdout is one JSON object with `type` and `seq`; the last one is `run.outcome`. Notes and errors
    go to stderr. If stdout is a file, notes about requests that wait go there too. Ctrl-C leaves the run running.

    Exit code: 0 completed (with --no-watch: started) · 1 failed · 2 the command or its configuration is wrong ·
    3 interrupted · 130 left by Ctrl-C · 141 left because no one reads the output any more.
    """
    output = Output.of(quiet=quiet, as_json=as_json)
    text = task_text(task)
    link = find_api(data_dir, url)
    directory = None if workspace is None else Path(workspace).expanduser().resolve()
    with link.client() as client:
        started = client.start_run(
            agent=agent or only_agent(client),
            text=text,
            workspace=None if directory is None else str(directory),
            model=model,
            conversation_id=conversation,
            unattended=unattended,
        )
        Follower(link, client, output, stream=stream).show_started(started, watch=watch)


def watch(
    run_id: RunId,
    stream: Stream = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Follow a run to its end. In a terminal you can answer its requests right here.

    With --json each line on stdout is one JSON object with `type` and `seq`; the last one is `run.outcome`. Ctrl-C leaves the
    run running.

    Exit code: 0 completed · 1 failed · 2 the command or its configuration is wrong · 3 interrupted · 130 left by Ctrl-C ·
    141 left because no one reads the output any more.
    """
    output = Output.of(quiet=quiet, as_json=as_json)
    link = find_api(data_dir, url)
    with link.client() as client:
        Follower(link, client, output, stream=stream).follow(run_id)


def runs(
    status: Annotated[RunStatus | None, typer.Option(help="List only runs of this status.", show_default=False)] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="List only runs that contain all these words: in the task, an agent, an id, a person, or why they ended.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="List only this agent's runs.", show_default=False)
    ] = None,
    cause: Annotated[
        str | None,
        typer.Option(
            help="List only runs that failed like this, as `turngate explain` says; with --stuck, that wait for this.",
            show_default=False,
            metavar="CAUSE",
        ),
    ] = None,
    stuck: Annotated[
        bool, typer.Option("--stuck", help="List only live runs that are stalled, by what they wait for.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """List runs, newest first.

    A sub-agent's run shows the agents above it, and the run whose call it answers. Its requests are in the same inbox:
    `turngate requests`.

    --stuck lists runs that wait for a person last: they need a decision, not an engineer.
    """
    _check_cause(cause, stuck=stuck)
    if stuck and (status or search or agent):
        raise ConfigurationError("--stuck lists live runs: of the other options it takes only --cause")
    link = find_api(data_dir, url)
    if stuck:
        show_stuck(link, cast("WaitKind | None", cause), as_json=as_json)
        return
    wanted = RunsWhere(
        status=status,
        search=search or None,
        agent=agent or None,
        cause=cast("FailureClass | None", cause),
    )
    with link.client() as client:
        page = client.list_runs(limit=MOST_ROWS, **wanted)
    if as_json:
        terminal.raw(json.dumps([run.model_dump(mode="json") for run in page.items]))
        return
    terminal.table(("RUN", "STATUS", "AGENT", "STEP", "STARTED", "TASK"), [_row(run) for run in page.items])
    if page.next_cursor:
        terminal.note(f"the newest {MOST_ROWS}; all of them: {link.pages}/runs")
    elif not page.items:
        terminal.note(
            "no run matches" if any(wanted.values()) else 'there is no run yet. Start one: turngate run "what to do"'
        )


def _check_cause(cause: str | None, *, stuck: bool) -> None:
    """Raise ConfigurationError, which names the causes, unless it is a cause of what is listed."""
    causes = get_args(WaitKind) if stuck else get_args(FailureClass)
    if cause is not None and cause not in causes:
        where = "with --stuck" if stuck else "without --stuck"
        raise ConfigurationError(f"--cause {cause}: {where} it is one of {', '.join(causes)}")


def _row(run: RunSummary) -> tuple[Piece, ...]:
    return (
        run.id,
        (plain_line(run.how_it_ended or run.status, 60), STATUS_STYLE.get(run.status, "")),
        run.agents,
        str(run.step),
        second(run.created_at),
        f"{_of_run(run)}{plain_line(run.task, 80)}",
    )


def _of_run(run: RunSummary) -> str:
    if run.parent_run_id:
        return f"↳ of run {run.parent_run_id}: "
    if run.schedule_id:
        return f"by schedule {run.schedule_id}: "
    if run.replay_of_run_id:
        return f"dry run of run {run.replay_of_run_id}: "
    if run.forked_from_run_id is None:
        return ""
    return f"{'retry' if run.is_retry else 'fork'} of run {run.forked_from_run_id}: "


def task_text(task: str | None) -> str:
    """Return the task, from stdin if ``task`` is ``-``, or None while stdin is no terminal.

    Raises ConfigurationError without a task, and InvalidInputError when stdin is empty or no UTF-8.
    """
    if task is not None and task != "-":
        if not task.strip():
            raise InvalidInputError("the task is empty: write what the agent should do")
        return task
    if task is None and sys.stdin.isatty():
        raise ConfigurationError(
            'there is no task: write `turngate run "…"`, or send the task on stdin: `git diff | turngate run`'
        )
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"stdin is not UTF-8 text, at byte {error.start:,}") from None
    if not text.strip():
        raise InvalidInputError("stdin is empty, and there is no task")
    return text


def show_stuck(link: ApiLink, cause: WaitKind | None = None, *, as_json: bool) -> None:
    """Print every live run that is stalled, by what it waits for; those that wait for a person apart, after the others."""
    with link.client() as client:
        stalled = list(client.iter_stuck_runs(cause=cause))
        fires = _failing_fires(client) if cause in {None, "workflow_fails"} and not as_json else []
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in stalled]))
        return
    _show_by_cause(stalled, link)
    for check in fires:
        show_check(check)
    if not stalled and not fires:
        terminal.note("no run is stalled")


def _show_by_cause(stalled: Sequence[StuckRun], link: ApiLink) -> None:
    groups = dict(by_cause(stalled))
    of_people = groups.pop("person", [])
    others = [each for members in groups.values() for each in members]
    if others:
        terminal.table(STALLED_COLUMNS, [_stalled_row(each) for each in others])
        for kind, members in groups.items():
            terminal.note(f"{len(members):,} {'waits' if len(members) == 1 else 'wait'} for: {WAITS_FOR[kind]}")
        terminal.note(f"what to do about a run: turngate explain{link.options} RUN")
    if of_people:
        terminal.table(STALLED_COLUMNS, [_stalled_row(each) for each in of_people])
        terminal.note(f"{len(of_people):,} for a person's decision: turngate requests{link.options}")


def _failing_fires(client: SyncTurngateClient) -> list[HealthCheck]:
    """Return what health says of schedules that can't start their runs: no list of runs has those."""
    try:
        checks = client.get_health().checks
    except ForbiddenError:  # a token that may read its own runs alone
        return []
    return [each for each in checks if each.name == "schedules" and each.state != "ok"]


def _stalled_row(stalled: StuckRun) -> tuple[Piece, ...]:
    return (
        stalled.run.id,
        (WAITS_FOR[stalled.waits_for.kind], "yellow"),
        stalled.run.agents,
        second(stalled.waits_for.since or ""),
        plain_line(stalled.waits_for.says, 200),
    )
