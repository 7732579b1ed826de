"""HTTP connections, bounded in number, size and time; and who keeps one when all are taken.

Until a request is whole, no credential was checked. So what is not whole, or came without one, makes room for a newcomer; what a
principal has in progress doesn't, and each principal has a bounded share of the places. So a probe always finds one.
uvicorn has no deadline for a header or a body: a client that sends a byte a minute keeps its connection, and a thousand of
them take every file descriptor. Its parser gathers a header line of any length in memory.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from turngate.approvals_api.http.rate_limits import CONNECTION

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


class Places:
    """The connections that principals hold while their requests are in progress.

    A principal may hold a quarter of those that no other one holds: one takes 250 of 1,000, the next 187, and a newcomer always
    finds one.
    """

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._held: Counter[Hashable] = Counter()

    def take(self, holder: Hashable) -> bool:
        """Take a place; False: the holder has its share."""
        others = self._held.total() - self._held[holder]
        if self._held[holder] >= (self._connections - others) // 4:
            return False
        self._held[holder] += 1
        return True

    def leave(self, holder: Hashable) -> None:
        """Give a place back."""
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]


def bounded_http(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with these limits, for one server."""
    places = Places(limits.connections)

    class Bounded(_BoundedHttp):
        def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], **more: Any) -> None:
            super().__init__(config, server_state, app_state, **more)
            self.limits, self.places = limits, places

    return Bounded


class _BoundedHttp(HttpToolsProtocol):
    """One connection. ``idle_since``: when it was opened, or its last answer ended.

    ``holder``: whose request is in progress, once its credential was checked.
    """

    limits: ConnectionLimits
    places: Places

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.idle_since = 0.0
        self.holder: Hashable | None = None
        self._in_header = True
        self._in_body = False
        self._header_bytes = 0
        self._header_lines = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Take a connection. When all places are taken, another one makes room for it.

        First by its :attr:`claim`; among equals, one of the address that has most, and there the oldest.
        """
        super().connection_made(transport)
        self._begin_header()
        if len(self.connections) <= self.limits.connections:
            return
        open_ones = [each for each in self.connections if isinstance(each, _BoundedHttp)]
        of_address = Counter(each.address for each in open_ones)
        weakest = min(
            (each for each in open_ones if each is not self and each.claim is not None),
            key=lambda each: (each.claim, -of_address[each.address], each.idle_since),
            default=self,
        )
        weakest.give_up()

    @property
    def address(self) -> str:
        """The other end's address; behind a proxy, all have the proxy's."""
        return self.client[0] if self.client else ""

    @property
    def claim(self) -> int | None:
        """How strong its claim to its place is; None: it keeps it until its request is answered.

        A connection that was just opened must not be the weakest: a crowd that connects again and again would drive out all.
        """
        if self.holder is not None or self.transport.is_closing():
            return None
        if self._in_body:
            return 0
        is_answered = self.cycle is None or self.cycle.response_complete
        return 1 if is_answered else 2  # 2: a whole request without a credential, such as a log-in or a probe

    def hold(self, holder: Hashable) -> bool:
        """Keep the place for this principal until the request in progress is answered; False: it has its share."""
        if self.holder is None and self.places.take(holder):
            self.holder = holder
        return self.holder is not None

    def _release(self) -> None:
        if self.holder is not None:
            self.places.leave(self.holder)
            self.holder = None

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
        self._in_header, self._in_body = False, True
        self._arm(self.limits.body_seconds)
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request; the next one may begin."""
        super().on_message_complete()
        self._disarm()
        self._in_header, self._in_body, self._header_bytes = True, False, 0

    def on_response_complete(self) -> None:
        """End the answer; the connection is idle again."""
        self._release()
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
        self._release()
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
