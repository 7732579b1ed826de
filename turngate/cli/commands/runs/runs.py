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
from turngate.cli.options import AsJson, DataDir, Url
from turngate.client import SyncTurngateClient
from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.domain.requests import RunStatus, WhileRunning
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
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `turngate runs` shows it.")]


class StatusChoice(StrEnum):
    """Which runs to list."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class UnattendedChoice(StrEnum):
    """What becomes of the questions of a run that nobody attends."""

    DENY = "deny"
    PARK = "park"
    RULES = "rules"


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
    """Start a run and follow it. In a terminal you can answer its gates right here; the page works as well.

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
    """Follow a run from its beginning to its end, and answer its gates in a terminal.

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
    """List runs, newest first. A sub-agent's run shows the agents above it, and the run whose call it answers.

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


def interrupt(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="Why; the run's history keeps it.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Stop a run: tools that run are cancelled, open gates close, and the conversation can go on later."""
    with find_api(data_dir, url).client() as client:
        client.interrupt(run_id, reason=reason)
    terminal.line(f"{run_id} is told to stop")


def pause(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="Why; the run's history keeps it.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Hold a run: calls that run go on to their ends, nothing new starts until it is resumed."""
    link = find_api(data_dir, url)
    with link.client() as client:
        client.pause(run_id, reason=reason)
    terminal.line(f"{run_id} is told to hold")
    terminal.note(f"let it go on:  turngate resume{link.options} {run_id}")


def resume(run_id: RunId, data_dir: DataDir = None, url: Url = None) -> None:
    """Let a held run go on."""
    with find_api(data_dir, url).client() as client:
        client.resume(run_id)
    terminal.line(f"{run_id} is told to go on")


def send(
    run_id: RunId,
    text: Annotated[str, typer.Argument(help="What to say.", show_default=False)],
    while_running: Annotated[
        WhileRunning | None,
        typer.Option(
            help="What a live run does with it: answer it in a run of its own (queue), read it before its next step "
            "(inject), or that, with what waits for a person ended at once (supersede). Default: as its agent declares.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Say something more in a run's conversation, while it is live or after it."""
    link = find_api(data_dir, url)
    with link.client() as client:
        run = client.send_message(run_id, text, while_running=while_running)
    if run.status == "running" and run.id == run_id:
        terminal.line(f"{run.id} takes the message")
    else:
        terminal.line(f"{run.id} answers the message")
    terminal.note(f"follow it:  turngate watch{link.options} {run.id}")


def only_agent(client: SyncTurngateClient) -> str:
    """Return the one agent there is. Raises ConfigurationError naming them when there are several, or none."""
    names = [found.name for found in client.list_agents() if not found.sub_agent_of]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigurationError("no worker has published an agent yet: start one with `turngate up APP`")
    raise ConfigurationError(f"there are several agents: say which with --agent, one of {', '.join(names)}")


def warn_of_shared_directory(link: ApiLink, workspace: Path) -> None:
    """Say it when a run's workspace holds Turngate's own data."""
    if link.data_dir is not None and link.data_dir.is_relative_to(workspace):
        terminal.note(
            ("note: ", "yellow"),
            f"the workspace holds Turngate's own data ({link.data_dir}), with a token that may decide requests. "
            "Tools that read files without asking can read it; to keep it apart, start Turngate with --data-dir "
            "elsewhere.",
        )


def _row(found: RunSummary) -> tuple[Piece, ...]:
    return (
        found.id,
        (plain_line(found.how_it_ended or found.status, 60), STATUS_STYLE.get(found.status, "")),
        found.agents,
        str(found.step),
        found.created_at[:19].replace("T", " "),
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
            (each.waits_for.since or "")[:19].replace("T", " "),
            plain_line(each.waits_for.says, 200),
        )
        for each in found
    ]
    terminal.table(("RUN", "WAITS FOR", "AGENT", "SINCE", "WHY"), rows)
    if found:
        terminal.note(f"what to do about one: turngate explain{link.options} RUN")
    else:
        terminal.note("no run stands still")
