"""Events as they happen: server-sent events with a durable sequence, resumed by ``Last-Event-ID``.

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
from approvals_api.run_views import event_view, existing_run
from approvals_api.services import Services
from turngate.domain.errors import InvalidInputError, UnavailableError
from turngate.store import events
from turngate.store.events import Event

router = APIRouter(tags=["events"])

RUN_ENDED = "run.ended"
MAX_SEQ = 2**31 - 1
GRACE_SECONDS = 1.0
"""From the order to stop until streams that still run are cut off."""

After = Annotated[int | None, Query(ge=0, le=MAX_SEQ)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]


@router.get("/events", response_class=EventSourceResponse)
async def all_events(
    services: ServicesDep, _principal: ReaderDep, after: After = None, last_event_id: LastEventId = None
) -> Response:
    """Follow every run: from ``Last-Event-ID`` or ``after`` (exclusive), or, with neither, from now on."""
    position = _position(last_event_id, after)
    since = await services.feed.last_seq() if position is None else position
    return _stream(services, services.feed.follow(since))


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def run_events(
    run_id: str,
    services: ServicesDep,
    _principal: RunReaderDep,
    after: After = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow one run from its beginning, or from a position on; the stream ends after ``run.ended``.

    204 when the run has ended and nothing is left to send: it tells a browser not to connect again.
    """
    position = _position(last_event_id, after) or 0
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
        waiting = await events.after(conn, position, run_id=run_id, limit=1)
    if run.status != "running" and not waiting:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return _stream(services, _until_ended(services.feed.follow(position, run_id)))


async def _until_ended(followed: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(followed):
        async for event in followed:
            yield event
            if event.type == RUN_ENDED:
                return


def _stream(services: Services, followed: AsyncGenerator[Event, None]) -> EventSourceResponse:
    closing = anyio.Event()
    return EventSourceResponse(
        _sent(followed, closing),
        ping=services.settings.sse_ping.total_seconds(),
        shutdown_event=closing,
        shutdown_grace_period=GRACE_SECONDS,
    )


async def _sent(followed: AsyncGenerator[Event, None], closing: anyio.Event) -> AsyncIterator[ServerSentEvent]:
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
                event = following.result()
                yield ServerSentEvent(data=event_view(event).model_dump_json(), event=event.type, id=str(event.seq))
        except StopAsyncIteration:
            return
        except UnavailableError:
            return  # the client connects again from the last id it saw, and is told 503 until the store is back
        finally:
            stop.cancel()


def _position(last_event_id: str | None, after: int | None) -> int | None:
    """Return where to go on. The header comes first: a browser that reconnects repeats the URL with its old ``after``."""
    if last_event_id is None or last_event_id == "":
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id) <= MAX_SEQ):
        message = "Last-Event-ID: the id of an event of ours is a whole number"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    return int(last_event_id)
