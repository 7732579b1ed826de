"""A run followed to its end from the command line: as a story, as JSON lines, or for its answer alone.

Events come in on a thread of their own, so that a prompt can wait meanwhile.
"""

from __future__ import annotations

import errno
import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, NoReturn, Self

import typer

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.cli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED_RUN, EXIT_WENT_WRONG
from turngate.cli.follow.lines import RunLines
from turngate.cli.follow.request import GatePrompt, OnGate, StillOpen
from turngate.cli.terminal import when_unread
from turngate.client import StreamItem, SyncTurngateClient
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.domain.requests import RunStatus
from turngate.text.link_words import LinkState
from turngate.text.plain_text import plain_line
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.requests import RequestDetail
from turngate.wire.runs import RunDetail, RunSummary

GATE_ENDS: Final = frozenset({"request.decided", "request.expired", "request.cancelled", "request.superseded"})
LONGEST_PATH: Final = 60


@dataclass(frozen=True)
class LinkChange:
    """The stream broke, or is taken up again."""

    words: str


Arrived = StreamItem | LinkChange


class EventPump:
    """A run's events and progress, read on a thread of their own.

    ``with_deltas``: also what its model says, while it says it.
    """

    def __init__(self, link: ApiLink, run_id: str, *, with_deltas: bool = False) -> None:
        self._link = link
        self._run_id = run_id
        self._with_deltas = with_deltas
        self._link_state = LinkState()
        self._arrived: queue.SimpleQueue[Arrived | Exception | None] = queue.SimpleQueue()
        # A daemon thread: Ctrl-C must not wait for a silent stream.
        threading.Thread(target=self._read, name="run-events", daemon=True).start()
        when_unread(lambda: self._arrived.put(BrokenPipeError(errno.EPIPE, "no one reads the output any more")))

    def next(self) -> Arrived | None:
        """Wait for the next event and return it; None after the last one. Raises the error of reading them."""
        return self._opened(self._arrived.get())

    def waiting(self) -> list[Arrived]:
        """Return the events that are here, without waiting. An end or an error is left for :meth:`next`."""
        events: list[Arrived] = []
        while True:
            try:
                arrived = self._arrived.get_nowait()
            except queue.Empty:
                return events
            if not isinstance(arrived, EventView | ProgressView | DeltaView | LinkChange):
                self._arrived.put(arrived)
                return events
            events.append(arrived)

    @staticmethod
    def _opened(arrived: Arrived | Exception | None) -> Arrived | None:
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def _read(self) -> None:
        try:
            with self._link.client() as client:
                for event in client.follow_events(self._run_id, with_deltas=self._with_deltas, on_link=self._on_link):
                    self._arrived.put(event)
        except Exception as error:  # noqa: BLE001 - raised on the thread that waits
            self._arrived.put(error)
        else:
            self._arrived.put(None)

    def _on_link(self, is_open: bool) -> None:
        words = self._link_state.change(is_open=is_open)
        if words is not None:
            self._arrived.put(LinkChange(words))


class RunStory:
    """Prints what happens in a run and in its sub-agents' runs. Theirs comes after the path of agents that leads there."""

    def __init__(self, client: SyncTurngateClient, run: RunDetail, pages: str) -> None:
        self._client = client
        self._pages = pages
        self._run_id = run.id
        self._lines = {run.id: ("", RunLines(client, run, pages))}

    def show(self, item: StreamItem) -> None:
        """Print one event, or what a tool or the run's own model says. Two models at once would be unreadable."""
        own = self._lines[self._run_id][1]
        if isinstance(item, DeltaView):
            if item.run_id == self._run_id:
                own.live.show(item)
            return
        if item.run_id != self._run_id:
            own.live.break_line()
        margin, lines = self._lines_of(item.run_id)
        with terminal.margin(margin):
            if isinstance(item, ProgressView):
                lines.show_progress(item)
            else:
                lines.show(item)

    def _lines_of(self, run_id: str) -> tuple[str, RunLines]:
        if run_id not in self._lines:
            run = self._client.get_run(run_id)
            lines = RunLines(self._client, run, self._pages)
            self._lines[run_id] = (f"{plain_line(run.agents, LONGEST_PATH)} │ ", lines)
        return self._lines[run_id]


class Watch:
    """One run followed to its end.

    Args:
        link: the way to the API, for the thread that reads.
        client: for everything else.
        run_id: the run.
        on_item: called with each event; None prints it for a person.
        on_gate: called for each pending request; None leaves them to the page.
        live: include what the model says, while it says it.
    """

    def __init__(
        self,
        link: ApiLink,
        client: SyncTurngateClient,
        run_id: str,
        *,
        on_item: Callable[[StreamItem], None] | None = None,
        on_gate: OnGate | None = None,
        live: bool = False,
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._on_gate = on_gate
        run = client.get_run(run_id)
        self._show: Callable[[StreamItem], None] = (
            RunStory(client, run, link.pages).show if on_item is None else on_item
        )
        self._open: dict[str, str] = {}  # request → its run, which may be a sub-agent's, in order
        self._pump = EventPump(link, run_id, with_deltas=live)

    def to_the_end(self) -> RunDetail:
        """Show every event until the run has ended; return the run."""
        while (event := self._pump.next()) is not None:
            self._take(event)
            for early in (
                self._pump.waiting()
            ):  # Requests of one step come together: print all of them before the first question.
                self._take(early)
            self._ask()
        return self._client.get_run(self._run_id)

    def _take(self, item: Arrived) -> None:
        if isinstance(item, LinkChange):
            terminal.note((item.words, "yellow"))
            return
        self._show(item)
        if not isinstance(item, EventView):
            return
        request_id = str(item.payload.get("request_id", ""))
        if item.type == "request.opened":
            self._open[request_id] = item.run_id
        elif item.type in GATE_ENDS:
            self._open.pop(request_id, None)
        elif item.type == "run.ended":
            self._open = {each: run_id for each, run_id in self._open.items() if run_id != item.run_id}

    def _ask(self) -> None:
        while self._on_gate is not None and self._open:
            request_id = next(iter(self._open))
            request = self._client.get_request(request_id)
            if request.status == "pending":
                self._on_gate(request, partial(self._still_open, request_id))
            self._open.pop(request_id, None)  # skipped, or the event of its end has not come yet

    def _still_open(self, request_id: str) -> bool:
        for event in self._pump.waiting():
            if isinstance(event, EventView | LinkChange):  # ten lines of progress a second would tear the prompt apart
                self._take(event)
        return request_id in self._open


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


@dataclass(frozen=True)
class Follower:
    """Follows runs for one command, and prints them as its options say.

    ``stream``: on a terminal, and in JSON, print what the model says while it says it.
    """

    link: ApiLink
    client: SyncTurngateClient
    output: Output
    stream: bool = True

    def show_started(self, started: RunSummary, *, watch: bool) -> None:
        """Print which run was started, or follow it to its end as :meth:`follow` does."""
        if watch:
            self.follow(started.id)
        if self.output == Output.JSON:
            terminal.raw(json.dumps(started.model_dump(mode="json")))
            return
        terminal.line(started.id)
        if self.output == Output.STORY:
            link = self.link
            terminal.note(f"follow it: `turngate watch{link.options} {started.id}`, or {link.pages}/runs/{started.id}")

    def follow(self, run_id: str) -> NoReturn:
        """Follow the run and exit as it ended. Ctrl-C leaves the run running. Always raises typer.Exit."""
        lines = RunAsJson()
        on_item = {Output.STORY: None, Output.JSON: lines.show, Output.ANSWER: _ignore}[self.output]
        try:
            ended = self._to_its_end(run_id, on_item)
        except KeyboardInterrupt:
            terminal.note("")
            _left(self.link, run_id, "You left; the run continues.")
            raise typer.Exit(EXIT_CTRL_C) from None
        match self.output:
            case Output.JSON:
                lines.end(ended, exit_code=EXIT_OF[ended.status])
            case Output.ANSWER:
                _answer(ended)
            case Output.STORY if ended.status == "completed":
                more = (
                    f'turngate run{self.link.options} --agent {ended.agent} --conversation {ended.conversation_id} "…"'
                )
                terminal.note((f"continue it:  {more}", "dim"))
        raise typer.Exit(EXIT_OF[ended.status])

    def _to_its_end(self, run_id: str, on_item: Callable[[StreamItem], None] | None) -> RunDetail:
        on_terminal = self.output == Output.STORY and terminal.out().is_terminal
        live = self.stream and (self.output == Output.JSON or on_terminal)
        on_gate = _on_gate(self.link, self.client, self.output)
        watch = Watch(self.link, self.client, run_id, on_item=on_item, on_gate=on_gate, live=live)
        try:
            return watch.to_the_end()
        except UnavailableError:
            _left(self.link, run_id, "The connection is lost; the run continues on its server.")
            raise


def _left(link: ApiLink, run_id: str, why: str) -> None:
    terminal.note(why)
    terminal.note(f"  follow it again:  turngate watch{link.options} {run_id}")
    terminal.note(f"  stop it:          turngate interrupt{link.options} {run_id}")


def _on_gate(link: ApiLink, client: SyncTurngateClient, output: Output) -> OnGate | None:
    """Return what to do about an open request: ask the user at the terminal, or print a note on stderr.

    The story itself names each request, but in a file no one sees it.
    """
    if output == Output.STORY and terminal.is_interactive():
        return GatePrompt(client)
    is_in_story = output != Output.ANSWER and (terminal.out().is_terminal or not terminal.err().is_terminal)
    return None if is_in_story else _WaitingNote(link.pages)


class _WaitingNote:
    """Prints on stderr that a run waits for a decision, and where to make it. Else its silence has no reason."""

    def __init__(self, pages: str) -> None:
        self._pages = pages

    def __call__(self, request: RequestDetail, still_open: StillOpen) -> None:
        """Print the note. The request is decided elsewhere."""
        del still_open
        tool = plain_line(request.tool_name, 64)
        terminal.note(("⏸ ", "yellow"), f"waits for an operator: {tool}  {self._pages}/requests/{request.id}")


def _answer(run: RunDetail) -> None:
    """Print the answer: to a pipe byte for byte, to a terminal with hidden characters made visible."""
    if run.status != "completed":
        how = plain_line(run.how_it_ended or run.status, 120)
        reason = f": {plain_line(run.reason, 1_000)}" if run.reason else ""
        terminal.error(f"run {run.id} has no answer ({how}){reason}")
    elif run.final_text:
        terminal.raw(run.final_text)


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
