"""Live events: server-sent events with a durable sequence, resumed by ``Last-Event-ID``; progress and deltas between them.

Progress is no part of the sequence: it is sent as ``event: progress`` without an ``id:``. It is stored while its call runs,
so a client that connects late or again gets the stored progress of the calls that still run; clients recognize repeats by
``(run_id, tool_call_id, n)``, ``n`` growing within a call.

The words of a model are sent in the same way while its response streams, as ``event: delta``: a client that connects late
gets the words so far. Clients recognize repeats by ``(run_id, step, attempt, n)``. Right before ``step.responded`` comes what
was missing (:mod:`turngate.approvals_api.v1.last_words`), so that the deltas of a step add up to its stored response.

A heartbeat is a comment, which the page of a browser can't see. To a client that asks for it, it is sent as
``event: heartbeat``, at once and then in each pause: such a client notices a connection that is dead and was never closed.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import anyio
from fastapi import Header, Query, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from turngate.approvals_api.http.dependencies import ReaderDep, RunReaderDep, ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.runs.views import delta_view, event_view, progress_view
from turngate.approvals_api.services import Services
from turngate.approvals_api.v1.last_words import LastWords
from turngate.approvals_api.v1.parameters import RunId
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import UnavailableError
from turngate.store.access import people
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.live.deltas import Deltas
from turngate.store.live.watch import EVERY_RUN, Follower, StreamItem
from turngate.store.sequences import MAX_NUMBER
from turngate.wire.events import DeltaView
from turngate.wire.people import is_unknown_in

router = api_router("events")

RUN_ENDED = "run.ended"
PROGRESS = "progress"
DELTA = "delta"
HEARTBEAT: Final = "heartbeat"
FRAMES_KEPT: Final = 100
RETRY_MS: Final = 250
"""Clients of a server that stops connect again after this time, or up to twice as long."""
GRACE_SECONDS = 1.0
"""From the order to stop until open streams are cut off."""

After = Annotated[
    int | None, Query(ge=0, le=MAX_NUMBER, description="Continue after this `seq`; `Last-Event-ID` wins over it.")
]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        pattern=r"^[0-9]{0,10}$",
        description="The last `id:` that you have seen: the stream continues after it. Empty: as if omitted.",
    ),
]
WhoseProgress = Annotated[
    str,
    Query(
        alias="progress",
        description="Progress of running tools: `all`, `none`, or a run's id for it and its sub-agents' runs only.",
        max_length=255,
        pattern=STORABLE,
    ),
]
WhoseDeltas = Annotated[
    str,
    Query(
        alias="deltas",
        description="Words of models while they answer: `all`, `none`, or a run's id for it and its sub-agents' runs only.",
        max_length=255,
        pattern=STORABLE,
    ),
]
WithHeartbeats = Annotated[
    bool,
    Query(
        alias="heartbeats",
        description="Send heartbeats as `event: heartbeat`, with the seconds to the next one as `data`, not as comments.",
    ),
]
WithDeltas = Annotated[
    bool, Query(alias="deltas", description="Whether to send the words of models while they answer.")
]
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; the schema is one event's. `progress`, `delta` and `heartbeat` have no `id:`",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "description": "The event's `seq`."},
                        "event": {
                            "type": "string",
                            "description": "The event's `type`, or `progress`, `delta` or `heartbeat`.",
                        },
                        "data": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "contentSchema": {
                                "anyOf": [
                                    {"$ref": "#/components/schemas/EventView"},
                                    {"$ref": "#/components/schemas/ProgressView"},
                                    {"$ref": "#/components/schemas/DeltaView"},
                                    {"type": "number", "description": "Of a heartbeat: the seconds to the next one."},
                                ]
                            },
                        },
                    },
                }
            }
        },
    }
}


@router.get("/events", response_class=EventSourceResponse, responses=STREAM)
async def follow_all_events(
    services: ServicesDep,
    principal: ReaderDep,
    after: After = None,
    last_event_id: LastEventId = None,
    whose_progress: WhoseProgress = "all",
    whose_deltas: WhoseDeltas = "none",
    with_heartbeats: WithHeartbeats = False,
) -> Response:
    """Follow all runs, and events of no run: grants and policy; for admins also log-ins and people.

    From ``Last-Event-ID`` or ``after`` (exclusive), or, with neither, from now on: then a bare ``id:`` is sent first, so that
    a client that connects again misses nothing.

    Progress of running tools is sent between events as ``event: progress``, without an id. Each connection starts with the
    stored progress of the calls that run now; recognize repeats by ``(run_id, tool_call_id, n)``. ``progress``: ``all``,
    ``none``, or a run's id for that run and its sub-agents' runs only.

    ``deltas`` selects in the same way the words of models while they answer, as ``event: delta``. Each connection starts with
    the words so far of responses that are streaming; recognize repeats by ``(run_id, step, attempt, n)``. Right before
    ``step.responded`` comes what was missing of the stored response.
    """
    position = _position(last_event_id, after)
    since = await services.feed.last_seq() if position is None else position
    deltas_of = {"all": EVERY_RUN, "none": None}.get(whose_deltas, whose_deltas)
    follower = Follower(
        since,
        with_progress=whose_progress != "none",
        progress_of=None if whose_progress in {"all", "none"} else whose_progress,
        deltas_of=deltas_of,
    )
    sent = _Sent(
        people=principal.may("admin"),
        starts_after=since if position is None else None,
        heartbeats=partial(_heartbeat, services) if with_heartbeats else None,
        last_words=None if deltas_of is None else LastWords(deltas_of, after=since),
    )
    return _stream(services, follower, sent)


@router.get(
    "/runs/{run_id}/events",
    response_class=EventSourceResponse,
    responses={**STREAM, 204: {"description": "The run has ended and nothing is left: do not connect again"}},
)
async def follow_run_events(
    run_id: RunId,
    services: ServicesDep,
    _principal: RunReaderDep,
    after: After = None,
    last_event_id: LastEventId = None,
    with_deltas: WithDeltas = True,
) -> Response:
    """Follow one run.

    From its beginning, or from a position on; the stream ends after its ``run.ended``.

    The runs of its sub-agents are included, however deep; each event names its own ``run_id``. Progress of running tools is
    sent between events as ``event: progress``, without an id. A connection starts with the stored progress of the calls that
    run then, so recognize repeats by ``(run_id, tool_call_id, n)``.

    The words of the model while it answers are sent as ``event: delta``, in the same way: recognize repeats by
    ``(run_id, step, attempt, n)``. A greater ``attempt``, or a ``reset`` with its reason, voids the words of the step so far.
    Right before ``step.responded`` comes what was missing: the words of a step add up to the stored response, with its secrets
    masked.

    204: the run has ended and nothing is left to send; a browser does not connect again then.
    """
    position = _position(last_event_id, after) or 0
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
        waiting = await events.after(conn, position, run_id=run_id, limit=1)
    if run.status != "running" and not waiting:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    follower = Follower(position, run_id=run_id, deltas_of=EVERY_RUN if with_deltas else None)
    last_words = LastWords(EVERY_RUN, after=position or await services.feed.last_seq()) if with_deltas else None
    return _stream(services, follower, _Sent(run_id=run_id, last_words=last_words))


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """What a stream sends of what is followed.

    ``people``: also who logged in and how, which is for admins. ``run_id``: of the run whose end is the stream's; None: it
    has no end. ``starts_after``: a position that the client did not name. It is sent in an event without data, which no
    browser shows to a page: without it, a client that connects again before the first event would miss the events in between.
    ``heartbeats``: makes what is sent first and then in each pause; None: a comment in each pause.
    ``last_words``: None: it sends no deltas.
    """

    people: bool = True
    run_id: str | None = None
    starts_after: int | None = None
    heartbeats: Callable[[], ServerSentEvent] | None = None
    last_words: LastWords | None = None

    async def frames(
        self, database: Database, batches: AsyncGenerator[Sequence[StreamItem], None]
    ) -> AsyncIterator[bytes]:
        """Yield what goes over the wire, until the events end: one chunk for what came together."""
        async with aclosing(batches):
            try:
                if self.starts_after is not None:
                    yield f"id: {self.starts_after}\r\n\r\n".encode()
                if self.heartbeats is not None:
                    yield self.heartbeats().encode()
                async for batch in batches:
                    if any(isinstance(entry, Event) and is_unknown_in(entry.payload) for entry in batch):
                        await people.look_again(database)
                    upto = next((place for place, entry in enumerate(batch, start=1) if self._is_end(entry)), None)
                    passed_on = [entry for entry in batch[:upto] if self._is_shown(entry)]
                    frames = passed_on if self.last_words is None else await self.last_words.added(database, passed_on)
                    if chunk := b"".join(map(_frame, frames)):
                        yield chunk
                    if upto is not None:
                        return
                yield _goodbye()  # the server stops
            except UnavailableError:
                return  # the client connects again from the last id it saw, and gets 503 until the store is back

    def _is_end(self, entry: StreamItem) -> bool:
        return isinstance(entry, Event) and entry.type == RUN_ENDED and entry.run_id == self.run_id

    def _is_shown(self, entry: StreamItem) -> bool:
        if self.people or not isinstance(entry, Event) or entry.run_id != events.SYSTEM:
            return True
        return entry.type.startswith(events.FOR_ALL_READERS)


def _stream(services: Services, follower: Follower, sent: _Sent) -> EventSourceResponse:
    # Set when the server must stop. The body then ends as HTTP requires; being cancelled a moment later would cut it off,
    # which clients report as a broken connection.
    closing = anyio.Event()
    return EventSourceResponse(
        sent.frames(services.database, services.feed.batches(follower, until=closing)),
        ping=services.settings.sse_ping.total_seconds(),
        ping_message_factory=sent.heartbeats,
        shutdown_event=closing,
        shutdown_grace_period=GRACE_SECONDS,
    )


def _heartbeat(services: Services) -> ServerSentEvent:
    return ServerSentEvent(event=HEARTBEAT, data=services.settings.sse_ping.total_seconds())


def _goodbye() -> bytes:
    """Ask the client to connect again after a moment; each after another one, so that they don't come all at once."""
    return f": this server stops, connect again\r\nretry: {RETRY_MS + secrets.randbelow(RETRY_MS)}\r\n\r\n".encode()


def _frame(entry: StreamItem | DeltaView) -> bytes:
    if isinstance(entry, Event):
        return _event_frame(entry)
    if isinstance(entry, Deltas | DeltaView):
        return f"event: {DELTA}\r\ndata: {delta_view(entry).model_dump_json()}\r\n\r\n".encode()
    return f"event: {PROGRESS}\r\ndata: {progress_view(entry).model_dump_json()}\r\n\r\n".encode()


def _event_frame(event: Event) -> bytes:
    """Return what goes over the wire. Watchers at the live edge get the same object, and it is encoded once for all."""
    last, frame = _last_frames.get(event.seq, (None, b""))
    if last is event:
        return frame
    frame = f"id: {event.seq}\r\nevent: {event.type}\r\ndata: {event_view(event).model_dump_json()}\r\n\r\n".encode()
    if len(_last_frames) == FRAMES_KEPT:
        del _last_frames[next(iter(_last_frames))]
    _last_frames[event.seq] = event, frame
    return frame


_last_frames: Final[dict[int, tuple[Event, bytes]]] = {}
"""Number → an event with its frame, the oldest first."""


def _position(last_event_id: str | None, after: int | None) -> int | None:
    """Return where to continue. The header wins: a browser that reconnects repeats the URL with its old ``after``."""
    if last_event_id is None or last_event_id == "":
        return after
    return min(int(last_event_id), MAX_NUMBER)  # its pattern allows only digits
