"""A run followed from the command line: as a story, as JSON lines or quietly; with its gates asked about, or told of."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Final, Self

import typer

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.cli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED_RUN, EXIT_WENT_WRONG
from turngate.cli.follow.gate_prompt import GatePrompt
from turngate.cli.follow.watch import OnGate, StillOpen, Watch
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


class Shown(StrEnum):
    """What stdout gets: a story for people, lines for programs, or the agent's answer alone."""

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


def tell_started(
    link: ApiLink,
    client: SyncTurngateClient,
    started: RunSummary,
    *,
    watch: bool,
    shown: Shown,
    stream: bool = True,
) -> None:
    """Say which run was started, or follow it to its end, as :func:`follow` does."""
    if watch:
        follow(link, client, started.id, shown=shown, stream=stream)
    if shown == Shown.JSON:
        terminal.raw(json.dumps(started.model_dump(mode="json")))
        return
    terminal.line(started.id)
    if shown == Shown.STORY:
        terminal.note(f"follow it: turngate watch{link.options} {started.id}, or {link.url}/runs/{started.id}")


def follow(link: ApiLink, client: SyncTurngateClient, run_id: str, *, shown: Shown, stream: bool = True) -> None:
    """Follow the run and exit as it ended; Ctrl-C detaches. Raises typer.Exit always.

    ``stream``: on a terminal, and in JSON, tell what the model says as it comes.
    """
    lines = RunAsJson()
    on_told = {Shown.STORY: None, Shown.JSON: lines.show, Shown.ANSWER: _nothing}[shown]
    live = stream and (shown == Shown.JSON or (shown == Shown.STORY and terminal.out().is_terminal))
    try:
        watched = Watch(link, client, run_id, on_told=on_told, on_gate=_on_gate(client, shown), live=live)
        ended = _seen_to_its_end(watched, link, run_id)
    except KeyboardInterrupt:
        terminal.note("")
        _left(link, run_id, "left; the run goes on.")
        raise typer.Exit(EXIT_CTRL_C) from None
    match shown:
        case Shown.JSON:
            lines.end(ended, exit_code=EXIT_OF[ended.status])
        case Shown.ANSWER:
            _answer(ended)
        case Shown.STORY if ended.status == "completed":
            more = f'turngate run{link.options} --agent {ended.agent} --conversation {ended.conversation_id} "…"'
            terminal.note((f"go on with it:  {more}", "dim"))
    raise typer.Exit(EXIT_OF[ended.status])


def _seen_to_its_end(watched: Watch, link: ApiLink, run_id: str) -> RunDetail:
    try:
        return watched.to_the_end()
    except UnavailableError:
        _left(link, run_id, "lost sight of the run, which goes on with its server.")
        raise


def _left(link: ApiLink, run_id: str, why: str) -> None:
    terminal.note(why)
    terminal.note(f"  follow it again:  turngate watch{link.options} {run_id}")
    terminal.note(f"  stop it:          turngate interrupt{link.options} {run_id}")


def _on_gate(client: SyncTurngateClient, shown: Shown) -> OnGate | None:
    """Return what to do about an open request: ask the person at the terminal, or tell whoever reads stderr of it.

    The story names each request by itself, but in a file nobody sees it.
    """
    if shown == Shown.STORY and terminal.is_interactive():
        return GatePrompt(client)
    unseen = shown != Shown.ANSWER and (terminal.out().is_terminal or not terminal.err().is_terminal)
    return None if unseen else _WaitingNote(client)


class _WaitingNote:
    """Says on stderr that a run waits, and where it can be decided: somebody wonders why nothing comes."""

    def __init__(self, client: SyncTurngateClient) -> None:
        self._client = client

    def __call__(self, request: RequestDetail, still_open: StillOpen) -> None:
        """Tell of a request. It is decided elsewhere."""
        del still_open
        tool = plain_line(request.tool_name, 64)
        terminal.note(("⏸ ", "yellow"), f"waits for an operator: {tool}  {self._client.url}/requests/{request.id}")


def _answer(run: RunDetail) -> None:
    """Print the answer: to a program byte for byte, to a person with what nobody can see made visible."""
    if run.status != "completed":
        told = plain_line(run.how_it_ended or run.status, 120)
        reason = f": {plain_line(run.reason, 1_000)}" if run.reason else ""
        terminal.error(f"run {run.id} has no answer ({told}){reason}")
    elif run.final_text:
        terminal.raw(plain(run.final_text) if terminal.out().is_terminal else run.final_text)


def _nothing(_told: StreamItem) -> None:
    """Print nothing."""


# A followed run as lines for programs: one JSON object each, with ``type`` and ``seq``, flushed as it is printed.
#
# The objects are those of the API's event stream. ``seq`` is None for what is told live and kept nowhere: what a running tool
# says (``call.progress``) and what a model says (``response.delta``). The last line is ``run.outcome``.


class RunAsJson:
    """The lines of one run."""

    def __init__(self) -> None:
        self._last_seq: int | None = None

    def show(self, told: StreamItem) -> None:
        """Print an event, or what is said live."""
        if isinstance(told, EventView):
            self._last_seq = told.seq
        _print(
            {
                "type": told.type,
                "seq": told.seq if isinstance(told, EventView) else None,
                **told.model_dump(mode="json"),
            }
        )

    def end(self, run: RunDetail, *, exit_code: int) -> None:
        """Print the last line: how the run ended, the exit code that says it, and the run. ``seq``: of the last event."""
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
