"""Events as they happen: server-sent events with a durable sequence, resumed by ``Last-Event-ID``; and tools' progress.

Progress is no part of the sequence: it is sent as ``event: progress`` without an ``id:``. It is kept while its call runs,
so a watcher that comes late or comes back is given what is kept of the calls that still run; clients tell what they have
seen by ``(run_id, tool_call_id, n)``, ``n`` growing within a call.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated

import anyio
from fastapi import APIRouter, Header, Query, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from approvals_api.dependencies import ReaderDep, RunReaderDep, ServicesDep
from approvals_api.run_views import event_view, existing_run, progress_view
from approvals_api.services import Services
from turngate.domain.errors import InvalidInputError, UnavailableError
from turngate.store import events
from turngate.store.events import Event
from turngate.store.following import Told

router = APIRouter(tags=["events"])

RUN_ENDED = "run.ended"
PROGRESS = "progress"
MAX_SEQ = 2**31 - 1
GRACE_SECONDS = 1.0
"""From the order to stop until streams that still run are cut off."""

After = Annotated[int | None, Query(ge=0, le=MAX_SEQ)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]
WhoseProgress = Annotated[str, Query(alias="progress", max_length=64)]


@router.get("/events", response_class=EventSourceResponse)
async def all_events(
    services: ServicesDep,
    _principal: ReaderDep,
    after: After = None,
    last_event_id: LastEventId = None,
    whose_progress: WhoseProgress = "all",
) -> Response:
    """Follow every run: from ``Last-Event-ID`` or ``after`` (exclusive), or, with neither, from now on.

    What tools say while they run comes in between as ``event: progress``, without an id: first what is kept of the calls
    that run now, again on every connection; tell repeats by ``(run_id, tool_call_id, n)``. ``progress``: ``all``, ``none``,
    or a run's id for that run and its sub-agents' runs only.
    """
    position = _position(last_event_id, after)
    since = await services.feed.last_seq() if position is None else position
    return _stream(
        services,
        services.feed.follow(
            since,
            with_progress=whose_progress != "none",
            progress_of=None if whose_progress in {"all", "none"} else whose_progress,
        ),
    )


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def run_events(
    run_id: str,
    services: ServicesDep,
    _principal: RunReaderDep,
    after: After = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow one run from its beginning, or from a position on; the stream ends after its ``run.ended``.

    Its sub-agents' runs are followed with it, however deep; each event names its own ``run_id``. What tools say while they
    run comes in between as ``event: progress``, without an id: of calls that run when this connection is made first what is
    kept of them, so tell repeats by ``(run_id, tool_call_id, n)``.

    204 when the run has ended and nothing is left to send: it tells a browser not to connect again.
    """
    position = _position(last_event_id, after) or 0
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
        waiting = await events.after(conn, position, run_id=run_id, limit=1)
    if run.status != "running" and not waiting:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return _stream(services, _until_ended(services.feed.follow(position, run_id), run_id))


async def _until_ended(followed: AsyncGenerator[Told, None], run_id: str) -> AsyncGenerator[Told, None]:
    async with aclosing(followed):
        async for told in followed:
            yield told
            if isinstance(told, Event) and told.type == RUN_ENDED and told.run_id == run_id:
                return


def _stream(services: Services, followed: AsyncGenerator[Told, None]) -> EventSourceResponse:
    closing = anyio.Event()
    return EventSourceResponse(
        _sent(followed, closing),
        ping=services.settings.sse_ping.total_seconds(),
        shutdown_event=closing,
        shutdown_grace_period=GRACE_SECONDS,
    )


async def _sent(followed: AsyncGenerator[Told, None], closing: anyio.Event) -> AsyncIterator[ServerSentEvent]:
    """Yield what goes over the wire, until the events end or the server shuts down.

    ``closing`` is set when the server is told to stop. Returning then ends the body as HTTP wants it; being cancelled
    a moment later would cut it off, which clients report as a broken connection.
    """
    stop = asyncio.ensure_future(closing.wait())
    async with aclosing(followed):
        try:
            while True:
                following = asyncio.ensure_future(anext(followed))
                try:
                    await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not following.done():
                        following.cancel()
                        await asyncio.wait({following})
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
    return ServerSentEvent(data=progress_view(told).model_dump_json(), event=PROGRESS)


def _position(last_event_id: str | None, after: int | None) -> int | None:
    """Return where to go on. The header comes first: a browser that reconnects repeats the URL with its old ``after``."""
    if last_event_id is None or last_event_id == "":
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id) <= MAX_SEQ):
        message = "Last-Event-ID: the id of an event of ours is a whole number"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    return int(last_event_id)
