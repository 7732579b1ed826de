"""HTTP connections of strangers, bounded in number, size and time: before a request is whole, no credential was checked.

uvicorn has no deadline for a header or a body: a client that sends a byte a minute keeps its connection, and a thousand of
them take every file descriptor. Its parser gathers a header line of any length in memory.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What one server grants its clients.

    ``connections``: open at once. ``header_seconds``: from the connection, or a request's first byte, to the end of its
    header. ``body_seconds``: from there to the body's end. ``unread_seconds``: how long an answer may wait for a client
    that does not read it. ``header_bytes``, ``headers``: of one request, with its first line.
    """

    connections: int
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    unread_seconds: float = 60.0
    header_bytes: int = 64 * 1024
    headers: int = 100


def default_limits() -> ConnectionLimits:
    """Return the limits of a server: half of the file descriptors that this process may open are for its clients."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else soft // 2
    return ConnectionLimits(connections=min(MOST_CONNECTIONS, max(descriptors, 16)))


def bounded_http(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with these limits."""

    class Bounded(_BoundedHttp):
        def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], **more: Any) -> None:
            super().__init__(config, server_state, app_state, **more)
            self.limits = limits

    return Bounded


class _BoundedHttp(HttpToolsProtocol):
    """One connection. ``idle_since``: when the connection or the last answer was; what :attr:`is_idle` goes by."""

    limits: ConnectionLimits

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.idle_since = 0.0
        self._in_header = True
        self._header_bytes = 0
        self._header_lines = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Take a connection. When all places are taken, the one that has been idle longest makes room for it."""
        super().connection_made(transport)
        self._begin_header()
        if len(self.connections) <= self.limits.connections:
            return
        idle = [
            each for each in self.connections if isinstance(each, _BoundedHttp) and each.is_idle and each is not self
        ]
        (min(idle, key=lambda each: each.idle_since) if idle else self).give_up()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress: neither a body that arrives nor an answer, such as an event stream."""
        answered = self.cycle is None or self.cycle.response_complete
        return self._in_header and answered and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Read what arrived. A header that is too long, whole or not, ends the connection."""
        if self._in_header:
            # Also for what the parser skips, such as empty lines: uvicorn takes any byte as a sign of life.
            if self._deadline is None:
                self._begin_header()
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_header and self._header_bytes > self.limits.header_bytes and not self.transport.is_closing():
            self.send_400_response("The header is too long.")

    def on_url(self, url: bytes) -> None:
        """Take a part of the first line."""
        self._require(len(self.url) + len(url) <= self.limits.header_bytes)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line. The parser turns an exception into 400 and ends the connection."""
        self._header_lines += 1
        self._require(self._header_lines <= self.limits.headers)
        self._require(len(name) + len(value) <= self.limits.header_bytes)
        super().on_header(name, value)

    def on_message_begin(self) -> None:
        """Begin a request; its deadline runs since the connection or its first byte."""
        self._header_lines = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin the body, with a deadline of its own."""
        self._in_header = False
        self._arm(self.limits.body_seconds)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request; the next one may begin."""
        super().on_message_complete()
        self._disarm()
        self._in_header, self._header_bytes = True, 0

    def on_response_complete(self) -> None:
        """End the answer; the connection is idle again."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not read."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue: the client reads again."""
        super().resume_writing()
        self._stop_waiting_for_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._disarm()
        super().connection_lost(exc)
        self._stop_waiting_for_reader()

    def give_up(self) -> None:
        """End the connection at once; a client that still reads gets 408."""
        self._disarm()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        answered = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answered:
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def _begin_header(self) -> None:
        self._header_bytes, self.idle_since = 0, self.loop.time()
        self._arm(self.limits.header_seconds)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self.give_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    @staticmethod
    def _require(within: bool) -> None:
        if not within:
            raise ValueError("a header is too long, or there are too many")
