"""Clients that trickle, on the API's own server: raw sockets against small limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from turngate.approvals_api.http.rate_limits import CONNECTION
from turngate.cli.api_server import ApiServer, listen
from turngate.cli.bounded_http import ConnectionLimits, Places, default_limits

LIMITS = ConnectionLimits(
    connections=12, header_seconds=0.4, body_seconds=0.4, unread_seconds=0.4, header_bytes=4_096, headers=20
)
DEADLINE_SECONDS = 60.0
GET = b"GET /fine HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


class Peer:
    """A client's socket. Not a stream: after a failed write, a stream forgets what the server said before it closed."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._received = connected, b""

    async def send(self, content: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, content)

    async def read_until(self, end: bytes) -> bytes:
        while end not in self._received:
            await self._read_more()
        head, self._received = self._received.split(end, 1)
        return head + end

    async def read_exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            await self._read_more()
        content, self._received = self._received[:count], self._received[count:]
        return content

    async def read_rest(self) -> bytes:
        """Return everything up to the server's end of the connection, however it ends it."""
        with suppress(EOFError, ConnectionError):
            while True:
                await self._read_more()
        return self._received

    async def _read_more(self) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            content = await asyncio.get_running_loop().sock_recv(self._socket, 65_536)
        if not content:
            raise EOFError
        self._received += content

    def is_open(self) -> bool:
        """Whether the server has sent nothing more, the connection's end included."""
        with suppress(BlockingIOError):
            self._socket.recv(1)
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def _app() -> FastAPI:
    app = FastAPI()

    @app.get("/fine")
    async def fine() -> str:
        return "fine"

    @app.post("/body")
    async def body(request: Request) -> int:
        return len(await request.body())

    @app.get("/quiet")
    async def quiet() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            yield b"begun"
            await asyncio.sleep(60)

        return StreamingResponse(lines())

    @app.get("/held")
    async def held(request: Request) -> StreamingResponse:
        has_place = request.scope[CONNECTION].hold("someone")
        return await quiet() if has_place else StreamingResponse(iter([b""]), status_code=429)

    @app.get("/from")
    async def client(request: Request) -> str:
        return f"{request.client and request.client.host} by {request.url.scheme}"

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65_536
                await asyncio.sleep(0)

        return StreamingResponse(lines())

    return app


@asynccontextmanager
async def serving(limits: ConnectionLimits = LIMITS) -> AsyncIterator[Callable[[], Awaitable[Peer]]]:
    """Run the server, and yield what opens one more connection to it."""
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    server = ApiServer(_app(), listener, limits=limits)
    await server.start()
    opened: list[Peer] = []

    async def connect() -> Peer:
        client = socket.socket()
        opened.append(Peer(client))
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, address)
        return opened[-1]

    try:
        yield connect
    finally:
        for peer in opened:
            peer.close()
        await server.stop()


async def answer_to(peer: Peer, request: bytes = GET) -> bytes:
    """Send a whole request and return the answer's status line and body."""
    await peer.send(request)
    head = await peer.read_until(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return head.split(b"\r\n")[0] + b" " + await peer.read_exactly(length)


async def end_of(peer: Peer, *, trickle: bytes, every: float = 0.05) -> bytes:
    """Send the same bytes again and again until the server ends the connection; return what arrived."""

    async def drip() -> None:
        with suppress(ConnectionError):
            while True:
                await peer.send(trickle)
                await asyncio.sleep(every)

    dripping = asyncio.create_task(drip())
    try:
        return await peer.read_rest()
    finally:
        dripping.cancel()


TRICKLES = [
    (b"", b""),
    (b"GET /fine HTT", b""),
    (b"GET /fine HTTP/1.1\r\n", b"X-More: 1\r\n"),
    (b"GET /fine HTTP/1.1\r\nX-Long: ", b"x"),
    (b"GET /", b"x"),
    (b"", b"\r\n"),
    (POST, b""),
    (POST, b"x"),
]
"""What a client begins with, and what it sends again and again."""


async def test_a_request_that_trickles_is_ended() -> None:
    """Nothing, half a line, a header or a byte of the body at a time, or empty lines: over when its time is over."""
    async with serving() as connect:
        peers = [await connect() for _ in TRICKLES]
        for peer, (first, _trickle) in zip(peers, TRICKLES, strict=True):
            await peer.send(first)
        ends = [end_of(peer, trickle=trickle) for peer, (_first, trickle) in zip(peers, TRICKLES, strict=True)]
        for begun, received in zip(TRICKLES, await asyncio.gather(*ends), strict=True):
            assert received.startswith(b"HTTP/1.1 4"), begun


async def test_the_second_request_has_the_same_deadline() -> None:
    """A connection that was used once is no way around it, and one that is used in time stays open."""
    async with serving(replace(LIMITS, header_seconds=1.2, body_seconds=1.2)) as connect:
        peer = await connect()
        for _ in range(3):
            assert await answer_to(peer) == b'HTTP/1.1 200 OK "fine"'
            await asyncio.sleep(0.45)
        assert await answer_to(peer, POST + b"x" * 100) == b"HTTP/1.1 200 OK 100"
        received = await end_of(peer, trickle=b"\r\n")
    assert received.startswith(b"HTTP/1.1 408")


async def test_a_header_that_is_too_large_is_refused() -> None:
    """Its bytes and its lines are bounded, whether it is whole or never ends."""
    long, many = b"x" * 5_000, b"".join(b"X-%d: 1\r\n" % n for n in range(21))
    async with serving() as connect:
        for request in (
            b"GET /" + long,
            b"GET /" + long + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /fine HTTP/1.1\r\nX: " + long,
            b"GET /fine HTTP/1.1\r\nX: " + long + b"\r\n\r\n",
            b"GET /fine HTTP/1.1\r\n" + many + b"\r\n",
        ):
            peer = await connect()
            await peer.send(request)
            assert (await peer.read_rest()).startswith(b"HTTP/1.1 400"), request[:40]


async def test_connections_that_wait_make_room() -> None:
    """However many connections a stranger holds open, the next client gets its answer at once."""
    slow = ConnectionLimits(connections=8, header_seconds=60)
    async with serving(slow) as connect:
        held = [await connect() for _ in range(50)]
        for peer in held:
            with suppress(ConnectionError):  # those that made room already
                await peer.send(b"GET /fine HTTP/1.1\r\nX-Slow: ")
        for _ in range(20):
            assert await answer_to(await connect()) == b'HTTP/1.1 200 OK "fine"'
        first = await held[0].read_rest()
    assert first.startswith(b"HTTP/1.1 408")


async def test_requests_in_progress_keep_their_places() -> None:
    """A principal's requests stay, up to its share; a body that isn't whole makes room, and then what has no credential."""
    busy = ConnectionLimits(connections=9, body_seconds=60)
    async with serving(busy) as connect:
        held = [await connect() for _ in range(3)]
        for peer in held:
            await peer.send(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [await peer.read_until(b"\r\n") for peer in held] == [b"HTTP/1.1 200 OK\r\n"] * 2 + [
            b"HTTP/1.1 429 Too Many Requests\r\n"
        ]
        uploading, anonymous = await connect(), [await connect() for _ in range(5)]
        await uploading.send(POST)
        for peer in anonymous:
            await peer.send(b"GET /quiet HTTP/1.1\r\nHost: x\r\n\r\n")
            await peer.read_until(b"begun")
        last = await connect()
        assert (await uploading.read_rest()).startswith(b"HTTP/1.1 408")
        assert await answer_to(last) == b'HTTP/1.1 200 OK "fine"'
        for _ in range(20):
            assert await answer_to(await connect()) == b'HTTP/1.1 200 OK "fine"'
        for peer in held[:2]:
            await peer.read_until(b"begun\r\n")
            assert peer.is_open()


def test_the_places_of_principals_never_run_out() -> None:
    """However many principals take all that they may, a newcomer finds one, and who leaves can come again."""
    places = Places(1_000)
    shares = [sum(1 for _ in range(1_000) if places.take(who)) for who in range(15)]
    assert shares[:3] == [250, 187, 140]
    assert sum(shares) < 990
    assert places.take("newcomer")
    assert not places.take(0)
    places.leave("newcomer")
    assert places.take("newcomer")


async def test_a_client_that_does_not_read_is_ended() -> None:
    """An answer that no one takes holds its connection for a bounded time."""
    async with serving() as connect:
        peer = await connect()
        await peer.send(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(1.5)
        received = await peer.read_rest()  # what was sent before, then the end
    assert not received or received.startswith(b"HTTP/1.1 200")


def test_the_default_leaves_descriptors_for_the_store() -> None:
    """A server never grants its clients all the files that its process may open."""
    limits = default_limits()
    assert 16 <= limits.connections <= 1_000


@pytest.mark.parametrize(
    ("proxies", "client"),
    [
        (None, "127.0.0.1 by http"),
        ("", "127.0.0.1 by http"),
        ("10.0.0.1", "127.0.0.1 by http"),
        ("127.0.0.0/8", "9.9.9.9 by https"),
    ],
)
async def test_only_a_named_proxy_says_where_a_request_comes_from(
    monkeypatch: pytest.MonkeyPatch, proxies: str | None, client: str
) -> None:
    """Any program of this machine can send the header, so loopback proves nothing."""
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if proxies is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxies)
    forwarded = b"GET /from HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\n\r\n"
    async with serving() as connect:
        assert (await answer_to(await connect(), forwarded)).endswith(f'"{client}"'.encode())
