"""Following one run to its end: events come in on a thread, and the person can be asked in the meantime."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from approvals_api.read_models import EventView, RequestDetail, RunDetail
from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.cli.client import ApiClient
from turngate.cli.run_lines import RunLines

StillOpen = Callable[[], bool]
OnGate = Callable[[RequestDetail, StillOpen], None]
"""What to do about a pending request. The second argument shows what happened meanwhile, and tells whether the request
is still open; call it while waiting."""

GATE_ENDS: Final = frozenset({"request.decided", "request.expired", "request.cancelled"})


class EventPump:
    """A run's events, read on a thread of their own so that a prompt can go on while they come."""

    def __init__(self, link: ApiLink, run_id: str) -> None:
        self._link = link
        self._run_id = run_id
        self._arrived: queue.SimpleQueue[EventView | Exception | None] = queue.SimpleQueue()
        # A daemon: Ctrl-C must not wait for a stream that is silent.
        threading.Thread(target=self._read, name="run-events", daemon=True).start()

    def next(self) -> EventView | None:
        """Return the next event, waiting for it; None after the last one. Raises what reading them failed with."""
        return self._opened(self._arrived.get())

    def waiting(self) -> list[EventView]:
        """Return the events that have come already, without waiting; an end or failure is left for :meth:`next`."""
        events: list[EventView] = []
        while True:
            try:
                arrived = self._arrived.get_nowait()
            except queue.Empty:
                return events
            if not isinstance(arrived, EventView):
                self._arrived.put(arrived)
                return events
            events.append(arrived)

    @staticmethod
    def _opened(arrived: EventView | Exception | None) -> EventView | None:
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def _read(self) -> None:
        try:
            with self._link.client() as client:
                for event in client.follow_events(self._run_id):
                    self._arrived.put(event)
        except Exception as error:  # noqa: BLE001 - it is raised on the thread that waits
            self._arrived.put(error)
        else:
            self._arrived.put(None)


class Watch:
    """One run followed to its end. ``on_gate`` is asked about each pending request; None leaves them to the page."""

    def __init__(
        self, link: ApiLink, client: ApiClient, run_id: str, *, as_json: bool = False, on_gate: OnGate | None = None
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._on_gate = on_gate
        run = client.get_run(run_id)
        self._show: Callable[[EventView], None] = _print_json if as_json else RunLines(client, run).show
        self._as_json = as_json
        self._open: list[str] = []
        self._pump = EventPump(link, run_id)

    def to_the_end(self) -> RunDetail:
        """Show every event until the run has ended; return the run."""
        while (event := self._pump.next()) is not None:
            self._take(event)
            for early in self._pump.waiting():  # Gates of one step come together: show them all before asking.
                self._take(early)
            self._ask()
        run = self._client.get_run(self._run_id)
        if self._as_json:
            terminal.raw(json.dumps({"run": run.model_dump(mode="json")}, ensure_ascii=True))
        return run

    def _take(self, event: EventView) -> None:
        self._show(event)
        request_id = str(event.payload.get("request_id", ""))
        if event.type == "request.opened":
            self._open.append(request_id)
        elif event.type in GATE_ENDS and request_id in self._open:
            self._open.remove(request_id)
        elif event.type == "run.ended":
            self._open.clear()

    def _ask(self) -> None:
        while self._on_gate is not None and self._open:
            request_id = self._open[0]
            request = self._client.get_request(request_id)
            if request.status == "pending":
                self._on_gate(request, partial(self._still_open, request_id))
            if request_id in self._open:  # skipped, or its end has not been told yet
                self._open.remove(request_id)

    def _still_open(self, request_id: str) -> bool:
        for event in self._pump.waiting():
            self._take(event)
        return request_id in self._open


def _print_json(event: EventView) -> None:
    terminal.raw(json.dumps(event.model_dump(mode="json"), ensure_ascii=True))
