"""Follow one run to its end. Events come in on a thread of their own, so that a prompt can wait meanwhile."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.cli.follow.gate_prompt import OnGate
from turngate.cli.follow.lines import RunLines
from turngate.cli.terminal import when_unread
from turngate.client import StreamItem, SyncTurngateClient
from turngate.text.plain_text import plain_line
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.runs import RunDetail

GATE_ENDS: Final = frozenset({"request.decided", "request.expired", "request.cancelled", "request.superseded"})
LONGEST_PATH: Final = 60


class EventPump:
    """A run's events and progress, read on a thread of their own.

    ``with_deltas``: also what its model says, while it says it.
    """

    def __init__(self, link: ApiLink, run_id: str, *, with_deltas: bool = False) -> None:
        self._link = link
        self._run_id = run_id
        self._with_deltas = with_deltas
        self._arrived: queue.SimpleQueue[StreamItem | Exception | None] = queue.SimpleQueue()
        # A daemon thread: Ctrl-C must not wait for a silent stream.
        threading.Thread(target=self._read, name="run-events", daemon=True).start()
        when_unread(lambda: self._arrived.put(BrokenPipeError(errno.EPIPE, "no one reads the output any more")))

    def next(self) -> StreamItem | None:
        """Wait for the next event and return it; None after the last one. Raises the error of reading them."""
        return self._opened(self._arrived.get())

    def waiting(self) -> list[StreamItem]:
        """Return the events that are here, without waiting. An end or an error is left for :meth:`next`."""
        events: list[StreamItem] = []
        while True:
            try:
                arrived = self._arrived.get_nowait()
            except queue.Empty:
                return events
            if not isinstance(arrived, EventView | ProgressView | DeltaView):
                self._arrived.put(arrived)
                return events
            events.append(arrived)

    @staticmethod
    def _opened(arrived: StreamItem | Exception | None) -> StreamItem | None:
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def _read(self) -> None:
        try:
            with self._link.client() as client:
                for event in client.follow_events(self._run_id, with_deltas=self._with_deltas):
                    self._arrived.put(event)
        except Exception as error:  # noqa: BLE001 - raised on the thread that waits
            self._arrived.put(error)
        else:
            self._arrived.put(None)


class RunStory:
    """Prints what happens in a run and in its sub-agents' runs. Theirs comes after the path of agents that leads there."""

    def __init__(self, client: SyncTurngateClient, run: RunDetail) -> None:
        self._client = client
        self._run_id = run.id
        self._lines = {run.id: ("", RunLines(client, run))}

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
            self._lines[run_id] = (f"{plain_line(run.agents, LONGEST_PATH)} │ ", RunLines(self._client, run))
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
        self._show: Callable[[StreamItem], None] = RunStory(client, run).show if on_item is None else on_item
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

    def _take(self, item: StreamItem) -> None:
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
            if isinstance(event, EventView):  # ten lines of progress a second would tear the prompt apart
                self._take(event)
        return request_id in self._open
