"""One client that opens more connections than the API has: everyone else is answered all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from support.api.api_server import token_for
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.api_server import ApiServer, listen
from turngate.cli.bounded_http import ConnectionLimits
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database

PLACES = 60

Request = Callable[[str], bytes]
"""What each of the crowd sends, with the crowd's own token at hand."""

CROWDS: dict[str, Request] = {
    "event streams of one token": lambda token: _get("/api/v1/events", token),
    "a body that is announced": lambda _: _post("/login", ""),
    "a body with a token that works": lambda token: _post("/api/v1/runs", token),
    "a header that never ends": lambda _: b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "nothing": lambda _: b"",
}


def _get(path: str, token: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\n\r\n".encode()


def _post(path: str, token: str) -> bytes:
    known = f"Authorization: {token}\r\n" if token else ""
    first = _get("/api/v1/me", token) if token else b""  # so its connection has shown the credential once
    return first + f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{known}Content-Length: 100\r\n\r\nx".encode()


@asynccontextmanager
async def crowding(port: int, many: int, request: bytes) -> AsyncIterator[None]:
    """Hold so many connections; one that the server ends is opened again, up to five times."""
    connected = asyncio.Semaphore(0)

    async def hold() -> None:
        for _ in range(5):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                connected.release()
                await reader.read()
                writer.close()

    async with asyncio.TaskGroup() as group:
        crowd = [group.create_task(hold()) for _ in range(many)]
        async with asyncio.timeout(60):
            for _ in crowd:
                await connected.acquire()
        yield
        for each in crowd:
            each.cancel()


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("event streams of one token", PLACES),
        *((kind, PLACES) for kind in list(CROWDS)[1:]),
        *((kind, 1_000) for kind in CROWDS),
    ],
)
async def test_a_crowd_of_one_client_holds_up_no_one_else(sqlite: Database, kind: str, places: int) -> None:
    """Operators' requests, log-in pages and probes are answered while a crowd that is larger than the server has all places."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    app = create_app(database=sqlite, gateway=Gateway(nowhere), settings=ApiSettings())
    crowds, operator = [await token_for(sqlite, name, "requests:read") for name in ("crowd", "operator")]
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = ApiServer(app, listener, limits=ConnectionLimits(connections=places))
    await server.start()
    try:
        async with crowding(port, places * 21 // 20, CROWDS[kind](crowds["Authorization"])):
            for path in ["/livez", "/login", "/api/v1/requests"] * 3:
                async with httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}", headers=operator, timeout=120
                ) as client:
                    answer = await client.get(path)
                assert answer.status_code == 200, (path, answer.text)
            async with (
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=operator, timeout=120) as client,
                client.stream("GET", "/api/v1/events") as stream,
            ):
                assert stream.status_code == 200
    finally:
        await server.stop()
