"""Following one run to its end: events come in on a thread, and the person can be asked in the meantime."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.cli.follow.lines import RunLines
from turngate.cli.terminal import when_unread
from turngate.client import StreamItem, SyncTurngateClient
from turngate.text.plain_text import plain_line
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.requests import RequestDetail
from turngate.wire.runs import RunDetail

StillOpen = Callable[[], bool]
OnGate = Callable[[RequestDetail, StillOpen], None]
"""What to do about a pending request. The second argument shows what happened meanwhile, and tells whether the request
is still open; call it while waiting."""

GATE_ENDS: Final = frozenset({"request.decided", "request.expired", "request.cancelled", "request.superseded"})
LONGEST_PATH: Final = 60


class EventPump:
    """A run's events and progress, read on a thread of their own so that a prompt can go on while they come.

    ``with_deltas``: what its model says, too.
    """

    def __init__(self, link: ApiLink, run_id: str, *, with_deltas: bool = False) -> None:
        self._link = link
        self._run_id = run_id
        self._with_deltas = with_deltas
        self._arrived: queue.SimpleQueue[StreamItem | Exception | None] = queue.SimpleQueue()
        # A daemon: Ctrl-C must not wait for a stream that is silent.
        threading.Thread(target=self._read, name="run-events", daemon=True).start()
        when_unread(lambda: self._arrived.put(BrokenPipeError(errno.EPIPE, "nobody reads the output any more")))

    def next(self) -> StreamItem | None:
        """Return the next event, waiting for it; None after the last one. Raises what reading them failed with."""
        return self._opened(self._arrived.get())

    def waiting(self) -> list[StreamItem]:
        """Return the events that have come already, without waiting; an end or failure is left for :meth:`next`."""
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
        except Exception as error:  # noqa: BLE001 - it is raised on the thread that waits
            self._arrived.put(error)
        else:
            self._arrived.put(None)


class RunStory:
    """Prints what happens in a run, and in its sub-agents' runs behind the path of agents that leads there."""

    def __init__(self, client: SyncTurngateClient, run: RunDetail) -> None:
        self._client = client
        self._run_id = run.id
        self._lines = {run.id: ("", RunLines(client, run))}

    def show(self, told: StreamItem) -> None:
        """Print one event, what a tool says, or what the run's own model does: two that talk at once cannot be read."""
        own = self._lines[self._run_id][1]
        if isinstance(told, DeltaView):
            if told.run_id == self._run_id:
                own.live.show(told)
            return
        if told.run_id != self._run_id:
            own.live.break_line()
        margin, lines = self._lines_of(told.run_id)
        with terminal.margin(margin):
            if isinstance(told, ProgressView):
                lines.show_progress(told)
            else:
                lines.show(told)

    def _lines_of(self, run_id: str) -> tuple[str, RunLines]:
        if run_id not in self._lines:
            run = self._client.get_run(run_id)
            self._lines[run_id] = (f"{plain_line(run.agents, LONGEST_PATH)} │ ", RunLines(self._client, run))
        return self._lines[run_id]


class Watch:
    """One run followed to its end. ``on_gate`` is asked about each pending request; None leaves them to the page.

    ``on_told``: takes what is told; None prints it for a person. ``live``: tell what the model says as it comes.
    """

    def __init__(
        self,
        link: ApiLink,
        client: SyncTurngateClient,
        run_id: str,
        *,
        on_told: Callable[[StreamItem], None] | None = None,
        on_gate: OnGate | None = None,
        live: bool = False,
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._on_gate = on_gate
        run = client.get_run(run_id)
        self._show: Callable[[StreamItem], None] = RunStory(client, run).show if on_told is None else on_told
        self._open: dict[str, str] = {}  # request → its run, which may be a sub-agent's; in order
        self._pump = EventPump(link, run_id, with_deltas=live)

    def to_the_end(self) -> RunDetail:
        """Show every event until the run has ended; return the run."""
        while (event := self._pump.next()) is not None:
            self._take(event)
            for early in self._pump.waiting():  # Gates of one step come together: show them all before asking.
                self._take(early)
            self._ask()
        return self._client.get_run(self._run_id)

    def _take(self, told: StreamItem) -> None:
        self._show(told)
        if not isinstance(told, EventView):
            return
        request_id = str(told.payload.get("request_id", ""))
        if told.type == "request.opened":
            self._open[request_id] = told.run_id
        elif told.type in GATE_ENDS:
            self._open.pop(request_id, None)
        elif told.type == "run.ended":
            self._open = {each: run_id for each, run_id in self._open.items() if run_id != told.run_id}

    def _ask(self) -> None:
        while self._on_gate is not None and self._open:
            request_id = next(iter(self._open))
            request = self._client.get_request(request_id)
            if request.status == "pending":
                self._on_gate(request, partial(self._still_open, request_id))
            self._open.pop(request_id, None)  # skipped, or its end has not been told yet

    def _still_open(self, request_id: str) -> bool:
        for event in self._pump.waiting():
            if isinstance(event, EventView):  # ten lines a second would tear the prompt apart
                self._take(event)
        return request_id in self._open
