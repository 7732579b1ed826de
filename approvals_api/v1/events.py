"""Events as they happen: server-sent events with a durable sequence, resumed by ``Last-Event-ID``; and what is said between.

Progress is no part of the sequence: it is sent as ``event: progress`` without an ``id:``. It is kept while its call runs,
so a watcher that comes late or comes back is given what is kept of the calls that still run; clients tell what they have
seen by ``(run_id, tool_call_id, n)``, ``n`` growing within a call.

What a model says while its response is made is sent in the same way, as ``event: delta``: who comes late is given what the
response at hand has said so far. Clients tell what they have seen by ``(run_id, step, attempt, n)``, and drop all of it at
``step.responded``, whose response is stored.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from approvals_api.http.dependencies import ReaderDep, RunReaderDep, ServicesDep
from approvals_api.lookups import existing_run
from approvals_api.runs.views import delta_view, event_view, progress_view
from approvals_api.services import Services
from approvals_api.v1.parameters import RunId
from approvals_api.validation.text import STORABLE
from turngate.domain.errors import UnavailableError
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.live.deltas import Deltas
from turngate.store.live.watch import EVERY_RUN, Told

router = APIRouter(tags=["events"])

RUN_ENDED = "run.ended"
PROGRESS = "progress"
DELTA = "delta"
MAX_SEQ = 2**31 - 1
GRACE_SECONDS = 1.0
"""From the order to stop until streams that still run are cut off."""

After = Annotated[
    int | None, Query(ge=0, le=MAX_SEQ, description="Go on behind this `seq`; `Last-Event-ID` comes before it.")
]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        pattern=r"^[0-9]{0,10}$",
        description="The `id:` that was seen last: the stream goes on behind it. Empty is the same as left out.",
    ),
]
WhoseProgress = Annotated[
    str,
    Query(
        alias="progress",
        description="What tools say while they run: `all`, `none`, or a run's id for it and its sub-agents' runs only.",
        max_length=255,
        pattern=STORABLE,
    ),
]
WhoseDeltas = Annotated[
    str,
    Query(
        alias="deltas",
        description="What models say while they answer: `all`, `none`, or a run's id for it and its sub-agents' runs only.",
        max_length=255,
        pattern=STORABLE,
    ),
]
WithDeltas = Annotated[bool, Query(alias="deltas", description="Whether to tell what models say while they answer.")]
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; the schema is one event's. `progress` and `delta` come without an `id:`",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "description": "The event's `seq`."},
                        "event": {"type": "string", "description": "The event's `type`, or `progress` or `delta`."},
                        "data": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "contentSchema": {
                                "anyOf": [
                                    {"$ref": "#/components/schemas/EventView"},
                                    {"$ref": "#/components/schemas/ProgressView"},
                                    {"$ref": "#/components/schemas/DeltaView"},
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
) -> Response:
    """Follow every run, and what belongs to none: grants and policy; for admins log-ins and people, too.

    From ``Last-Event-ID`` or ``after`` (exclusive), or, with neither, from now on: then a bare ``id:`` comes first, so that
    whoever connects again misses nothing.

    What tools say while they run comes in between as ``event: progress``, without an id: first what is kept of the calls
    that run now, again on every connection; tell repeats by ``(run_id, tool_call_id, n)``. ``progress``: ``all``, ``none``,
    or a run's id for that run and its sub-agents' runs only.

    ``deltas`` asks in the same words for what models say while they answer, as ``event: delta``: of responses that are being
    made first what they have said so far, again on every connection; tell repeats by ``(run_id, step, attempt, n)``.
    """
    position = _position(last_event_id, after)
    since = await services.feed.last_seq() if position is None else position
    followed = services.feed.follow(
        since,
        with_progress=whose_progress != "none",
        progress_of=None if whose_progress in {"all", "none"} else whose_progress,
        deltas_of={"all": EVERY_RUN, "none": None}.get(whose_deltas, whose_deltas),
    )
    return _stream(
        services,
        followed if principal.may("admin") else _without_people(followed),
        begins_behind=since if position is None else None,
    )


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

    Its sub-agents' runs are followed with it, however deep; each event names its own ``run_id``. What tools say while they
    run comes in between as ``event: progress``, without an id: of calls that run when this connection is made first what is
    kept of them, so tell repeats by ``(run_id, tool_call_id, n)``.

    What the model says while it answers comes as ``event: delta``, in the same way: tell repeats by
    ``(run_id, step, attempt, n)``. A greater ``attempt``, or a ``reset`` with its reason, voids what was said in the step;
    with its ``step.responded`` the response is stored, and stands in place of all of it.

    204 when the run has ended and nothing is left to send: it tells a browser not to connect again.
    """
    position = _position(last_event_id, after) or 0
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
        waiting = await events.after(conn, position, run_id=run_id, limit=1)
    if run.status != "running" and not waiting:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    followed = services.feed.follow(position, run_id, deltas_of=EVERY_RUN if with_deltas else None)
    return _stream(services, _until_ended(followed, run_id))


async def _without_people(followed: AsyncGenerator[Told, None]) -> AsyncGenerator[Told, None]:
    """Leave out who came in and how, which is for admins."""
    async with aclosing(followed):
        async for told in followed:
            if (
                not isinstance(told, Event)
                or told.run_id != events.SYSTEM
                or told.type.startswith(events.FOR_ALL_READERS)
            ):
                yield told


async def _until_ended(followed: AsyncGenerator[Told, None], run_id: str) -> AsyncGenerator[Told, None]:
    async with aclosing(followed):
        async for told in followed:
            yield told
            if isinstance(told, Event) and told.type == RUN_ENDED and told.run_id == run_id:
                return


def _stream(
    services: Services, followed: AsyncGenerator[Told, None], *, begins_behind: int | None = None
) -> EventSourceResponse:
    closing = anyio.Event()
    return EventSourceResponse(
        _sent(followed, closing, begins_behind),
        ping=services.settings.sse_ping.total_seconds(),
        shutdown_event=closing,
        shutdown_grace_period=GRACE_SECONDS,
    )


async def _sent(
    followed: AsyncGenerator[Told, None], closing: anyio.Event, begins_behind: int | None
) -> AsyncIterator[ServerSentEvent]:
    """Yield what goes over the wire, until the events end or the server shuts down.

    ``begins_behind``: a position that the watcher did not name. It is told to them in an event without data, which no
    browser shows to a page: without it, one who connects again before the first event would miss what came in between.

    ``closing`` is set when the server is told to stop. Returning then ends the body as HTTP wants it; being cancelled
    a moment later would cut it off, which clients report as a broken connection.
    """
    stop = asyncio.ensure_future(closing.wait())
    async with aclosing(followed):
        try:
            if begins_behind is not None:
                yield ServerSentEvent(id=str(begins_behind))
            while True:
                following = asyncio.ensure_future(anext(followed))
                try:
                    await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not following.done():
                        following.cancel()
                        await asyncio.wait({following})
                    if not following.cancelled():
                        following.exception()  # seen, or asyncio would log it when it is us who are cancelled here
                if following.cancelled():
                    return
                yield _on_the_wire(following.result())
        except StopAsyncIteration:
            return
        except UnavailableError:
            return  # the client connects again from the last id it saw, and is told 503 until the store is back
        finally:
            stop.cancel()


def _on_the_wire(told: Told) -> ServerSentEvent:
    if isinstance(told, Event):
        return ServerSentEvent(data=event_view(told).model_dump_json(), event=told.type, id=str(told.seq))
    if isinstance(told, Deltas):
        return ServerSentEvent(data=delta_view(told).model_dump_json(), event=DELTA)
    return ServerSentEvent(data=progress_view(told).model_dump_json(), event=PROGRESS)


def _position(last_event_id: str | None, after: int | None) -> int | None:
    """Return where to go on. The header comes first: a browser that reconnects repeats the URL with its old ``after``."""
    if last_event_id is None or last_event_id == "":
        return after
    return min(int(last_event_id), MAX_SEQ)  # its pattern let only digits in
