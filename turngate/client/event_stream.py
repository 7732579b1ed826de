"""A stream of events as a value: its position, what was seen, when it is opened again. Opens nothing itself.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import time
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

import httpx
from httpx_sse import ServerSentEvent

from turngate.client.calls import segment
from turngate.client.responses import check, no_answer
from turngate.domain.errors import UnavailableError
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.streamed import HAS_GAPS, Streamed

StreamItem = EventView | ProgressView | DeltaView

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 2.0
GIVE_UP_SECONDS: Final = 120.0
"""How long a broken stream is tried again: long enough for a restart of the server."""
RUN_ENDED: Final = "run.ended"
RESPONDED: Final = "step.responded"
PROGRESS: Final = "progress"
DELTA: Final = "delta"
BROKEN: Final = (httpx.TransportError, UnavailableError)
"""What a stream is taken up again after."""


class EventStream:
    """One stream, over as many connections as it takes. ``ended``: nothing will come any more."""

    def __init__(
        self, url: str, *, run_id: str | None, after: int | None, with_progress: bool, with_deltas: bool
    ) -> None:
        self.ended = False
        self.path = "/events" if run_id is None else f"/runs/{segment(run_id)}/events"
        self._url = url
        self._run_id = run_id
        self._after = 0 if after is None and run_id is not None else after
        self._with_progress = with_progress
        self._with_deltas = with_deltas
        self._was_open = False
        self._progress_seen: dict[tuple[str, str], int] = {}  # progress is sent again on every connection
        self._streamed: dict[str, Streamed] = {}  # and deltas; by run
        self._pause, self._broken_since = FIRST_PAUSE_SECONDS, 0.0

    @property
    def options(self) -> dict[str, Any]:
        """Parameters and headers of the next connection."""
        params = {} if self._with_progress or self._run_id is not None else {"progress": "none"}
        if self._run_id is not None:
            params["deltas"] = "true" if self._with_deltas else "false"
        elif self._with_deltas:
            params["deltas"] = "all"
        return {
            "params": params,
            "headers": {} if self._after is None else {"Last-Event-ID": str(self._after)},
        }

    def opened(self, response: httpx.Response) -> None:
        """Take note of a connection. Raises the error that the response stands for; its body must have been read."""
        if response.status_code == HTTPStatus.NO_CONTENT:
            self.ended = True
            return
        check(response, self._url)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise UnavailableError(f"{self._url} does not speak Turngate's API: is the address right?")
        self._was_open = True

    def take(self, sent: ServerSentEvent) -> StreamItem | None:
        """Return what is new; None for a heartbeat, a bare position, and what was sent before."""
        self._pause, self._broken_since = FIRST_PAUSE_SECONDS, 0.0
        if sent.retry is not None:  # the server stops, and says when to connect again
            self._pause = min(sent.retry / 1000, LONGEST_PAUSE_SECONDS)
        if not sent.data:  # httpx-sse makes an empty event of a heartbeat comment
            if self._after is None and sent.id.isdecimal():
                self._after = int(sent.id)
            return None
        if sent.event == PROGRESS:
            return self._news(ProgressView.model_validate_json(sent.data))
        if sent.event == DELTA:
            return self._words(DeltaView.model_validate_json(sent.data))
        event = EventView.model_validate_json(sent.data)
        self._after = event.seq
        if event.type == RESPONDED and event.run_id in self._streamed:
            self._streamed[event.run_id].forget()
        self.ended = event.type == RUN_ENDED and event.run_id == self._run_id
        return event

    def broken(self, error: httpx.TransportError | UnavailableError) -> None:
        """Take note of a connection that broke; raises UnavailableError when it is time to give up."""
        self._broken_since = self._broken_since or time.monotonic()
        if not self._was_open or time.monotonic() - self._broken_since > GIVE_UP_SECONDS:
            raise (error if isinstance(error, UnavailableError) else no_answer(error, self._url)) from None

    def next_pause(self) -> float:
        """Return the seconds to wait before the stream is opened again."""
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        return pause

    def _news(self, progress: ProgressView) -> ProgressView | None:
        call = (progress.run_id, progress.tool_call_id)
        if progress.n <= self._progress_seen.get(call, 0) or not self._with_progress:
            return None
        self._progress_seen[call] = progress.n
        return progress

    def _words(self, deltas: DeltaView) -> DeltaView | None:
        if not self._with_deltas:
            return None
        streamed = self._streamed.setdefault(deltas.run_id, Streamed())
        before = replace(streamed)
        if not streamed.take(deltas):
            return None
        if not deltas.is_last or deltas.reset is not None or before.step != deltas.step or not before.parts:
            return deltas
        if before.attempt == deltas.attempt:
            return deltas
        # The connection broke before the end, and the next one has all of it.
        rest = before.missing(deltas.deltas)
        if rest is None:
            return deltas.model_copy(update={"reset": HAS_GAPS})
        return (
            deltas.model_copy(update={"attempt": before.attempt, "n": before.n + 1, "deltas": rest}) if rest else None
        )
