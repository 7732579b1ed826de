"""An API after SIGTERM: it says that it stops, serves on, asks streams to come again, and finishes what it began."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from httpx_sse import ServerSentEvent, aconnect_sse
from support.api.api_server import Api, token_for

from turngate.approvals_api.app import create_app
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.api_server import ApiServer, listen
from turngate.client.event_stream import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, EventStream
from turngate.runtime import embedded_temporal

TIMEOUT = httpx.Timeout(20)


async def test_an_api_that_stops_fails_no_request(api: Api) -> None:
    """/readyz fails first, requests are served and moved elsewhere, streams get a hint, a slow request ends in peace."""
    app = create_app(database=api.stack.database, gateway=api.stack.services.gateway, settings=ApiSettings())
    may_end, begun = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        begun.set()
        await may_end.wait()
        return "done"

    app.get("/slow")(slow)
    listener = listen("127.0.0.1", embedded_temporal.choose_port())
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    headers = await token_for(api.stack.database, "watcher-of-a-stop", "requests:read")
    server = ApiServer(app, listener)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=TIMEOUT) as client:
            assert "connection" not in (await client.get("/livez")).headers
            async with aconnect_sse(client, "GET", "/api/v1/events") as source:
                frames = source.aiter_sse()
                assert (await anext(frames)).id.isdecimal()
                draining = asyncio.create_task(server.drain(0.2))
                await asyncio.sleep(0)
                unready = await client.get("/readyz")
                assert (unready.status_code, unready.json()["code"]) == (503, "draining")
                served = await client.get("/api/v1/requests")
                assert (served.status_code, served.headers["connection"]) == (200, "close")
                waiting = asyncio.create_task(client.get("/slow"))
                await begun.wait()
                await draining
                stopping = asyncio.create_task(server.stop())
                rest = [frame async for frame in frames]  # no error: the stream's body ends as HTTP requires
            assert rest[-1].retry is not None
            assert 250 <= rest[-1].retry < 500
            with pytest.raises(httpx.ConnectError):
                await client.get("/livez")
            assert not stopping.done()
            may_end.set()
            assert (await waiting).json() == "done"
            await stopping
    finally:
        await server.stop()


def test_the_client_connects_again_when_the_server_says() -> None:
    """``retry:`` sets the next pause, within bounds; what comes after sets it back."""
    stream = EventStream("http://localhost", run_id=None, after=7, with_progress=True, with_deltas=False)
    for milliseconds, seconds in ((410, 0.41), (3_600_000, LONGEST_PAUSE_SECONDS)):
        assert stream.take(ServerSentEvent(event="", data="", id="7", retry=milliseconds)) is None
        assert stream.next_pause() == seconds
    stream.take(ServerSentEvent(event="", data="", id="7"))
    assert stream.next_pause() == FIRST_PAUSE_SECONDS
    assert stream.options["headers"] == {"Last-Event-ID": "7"}
