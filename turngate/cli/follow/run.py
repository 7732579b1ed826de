"""A run followed from the command line: as a story, as JSON lines, or for its answer alone."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Final, Self

import typer

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.cli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED_RUN, EXIT_WENT_WRONG
from turngate.cli.follow.gate_prompt import GatePrompt, OnGate, StillOpen
from turngate.cli.follow.watch import Watch
from turngate.client import StreamItem, SyncTurngateClient
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.domain.requests import RunStatus
from turngate.text.plain_text import plain, plain_line
from turngate.wire.events import EventView
from turngate.wire.requests import RequestDetail
from turngate.wire.runs import RunDetail, RunSummary

EXIT_OF: Final[dict[RunStatus, int]] = {
    "completed": 0,
    "failed": EXIT_WENT_WRONG,
    "interrupted": EXIT_INTERRUPTED_RUN,
    "running": EXIT_WENT_WRONG,
}


class Output(StrEnum):
    """What goes to stdout: a story for people, lines for programs, or the agent's answer alone."""

    STORY = "story"
    JSON = "json"
    ANSWER = "answer"

    @classmethod
    def of(cls, *, as_json: bool, quiet: bool = False) -> Self:
        """Return what the options ask for. Raises ConfigurationError when they contradict each other."""
        if quiet and as_json:
            raise ConfigurationError("--quiet and --json are two ways to print a run: choose one")
        if quiet:
            return cls("answer")
        return cls("json" if as_json else "story")


def show_started(
    link: ApiLink,
    client: SyncTurngateClient,
    started: RunSummary,
    *,
    watch: bool,
    output: Output,
    stream: bool = True,
) -> None:
    """Print which run was started, or follow it to its end as :func:`follow` does."""
    if watch:
        follow(link, client, started.id, output=output, stream=stream)
    if output == Output.JSON:
        terminal.raw(json.dumps(started.model_dump(mode="json")))
        return
    terminal.line(started.id)
    if output == Output.STORY:
        terminal.note(f"follow it: turngate watch{link.options} {started.id}, or {link.url}/runs/{started.id}")


def follow(link: ApiLink, client: SyncTurngateClient, run_id: str, *, output: Output, stream: bool = True) -> None:
    """Follow the run and exit as it ended. Ctrl-C leaves the run running. Always raises typer.Exit.

    ``stream``: on a terminal, and in JSON, print what the model says while it says it.
    """
    lines = RunAsJson()
    on_item = {Output.STORY: None, Output.JSON: lines.show, Output.ANSWER: _ignore}[output]
    live = stream and (output == Output.JSON or (output == Output.STORY and terminal.out().is_terminal))
    try:
        watched = Watch(link, client, run_id, on_item=on_item, on_gate=_on_gate(client, output), live=live)
        ended = _followed_to_its_end(watched, link, run_id)
    except KeyboardInterrupt:
        terminal.note("")
        _left(link, run_id, "You left; the run continues.")
        raise typer.Exit(EXIT_CTRL_C) from None
    match output:
        case Output.JSON:
            lines.end(ended, exit_code=EXIT_OF[ended.status])
        case Output.ANSWER:
            _answer(ended)
        case Output.STORY if ended.status == "completed":
            more = f'turngate run{link.options} --agent {ended.agent} --conversation {ended.conversation_id} "…"'
            terminal.note((f"continue it:  {more}", "dim"))
    raise typer.Exit(EXIT_OF[ended.status])


def _followed_to_its_end(watched: Watch, link: ApiLink, run_id: str) -> RunDetail:
    try:
        return watched.to_the_end()
    except UnavailableError:
        _left(link, run_id, "The connection is lost; the run continues on its server.")
        raise


def _left(link: ApiLink, run_id: str, why: str) -> None:
    terminal.note(why)
    terminal.note(f"  follow it again:  turngate watch{link.options} {run_id}")
    terminal.note(f"  stop it:          turngate interrupt{link.options} {run_id}")


def _on_gate(client: SyncTurngateClient, output: Output) -> OnGate | None:
    """Return what to do about an open request: ask the user at the terminal, or print a note on stderr.

    The story itself names each request, but in a file no one sees it.
    """
    if output == Output.STORY and terminal.is_interactive():
        return GatePrompt(client)
    is_in_story = output != Output.ANSWER and (terminal.out().is_terminal or not terminal.err().is_terminal)
    return None if is_in_story else _WaitingNote(client)


class _WaitingNote:
    """Prints on stderr that a run waits for a decision, and where to make it. Else its silence has no reason."""

    def __init__(self, client: SyncTurngateClient) -> None:
        self._client = client

    def __call__(self, request: RequestDetail, still_open: StillOpen) -> None:
        """Print the note. The request is decided elsewhere."""
        del still_open
        tool = plain_line(request.tool_name, 64)
        terminal.note(("⏸ ", "yellow"), f"waits for an operator: {tool}  {self._client.url}/requests/{request.id}")


def _answer(run: RunDetail) -> None:
    """Print the answer: to a pipe byte for byte, to a terminal with hidden characters made visible."""
    if run.status != "completed":
        how = plain_line(run.how_it_ended or run.status, 120)
        reason = f": {plain_line(run.reason, 1_000)}" if run.reason else ""
        terminal.error(f"run {run.id} has no answer ({how}){reason}")
    elif run.final_text:
        terminal.raw(plain(run.final_text) if terminal.out().is_terminal else run.final_text)


def _ignore(_item: StreamItem) -> None:
    """Print nothing."""


class RunAsJson:
    """A followed run as lines for programs: one JSON object each, with ``type`` and ``seq``, flushed as it is printed.

    The objects are those of the API's event stream. ``seq`` is None for messages that are sent live and stored nowhere: a
    tool's progress (``call.progress``) and a model's words (``response.delta``). The last line is ``run.outcome``.
    """

    def __init__(self) -> None:
        self._last_seq: int | None = None

    def show(self, item: StreamItem) -> None:
        """Print an event, or a live item."""
        if isinstance(item, EventView):
            self._last_seq = item.seq
        _print(
            {
                "type": item.type,
                "seq": item.seq if isinstance(item, EventView) else None,
                **item.model_dump(mode="json"),
            }
        )

    def end(self, run: RunDetail, *, exit_code: int) -> None:
        """Print the last line: how the run ended, the command's exit code, and the run. ``seq``: of the last event."""
        _print(
            {
                "type": "run.outcome",
                "seq": self._last_seq,
                "run_id": run.id,
                "status": run.status,
                "outcome": run.outcome,
                "error_class": run.error_class,
                "reason": run.reason,
                "exit_code": exit_code,
                "run": run.model_dump(mode="json"),
            }
        )


def _print(line: dict[str, object]) -> None:
    terminal.raw(json.dumps(line, ensure_ascii=True))
