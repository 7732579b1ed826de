"""``GET /metrics`` on a port of its own, in a thread: it answers also while the event loop does not.

Anyone who reaches the port can read how much happens here, and can change nothing. So it is on loopback unless the settings
say otherwise, and answers there to loopback names only, as the API does: a page in a browser could else read it under another
name (DNS rebinding).
"""

from __future__ import annotations

import http.client
import logging
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
CONNECTION_SECONDS: Final = 5.0
"""How long a client may take to send its request, and to read each part of the answer."""
ACCEPT_SECONDS: Final = 0.5
MOST_AT_ONCE: Final = 16
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
SDK_SECONDS: Final = 2.0
MOST_SDK_BYTES: Final = 8 * 1024 * 1024


class MetricsPort:
    """Serves one text on a listening socket while the block runs.

    Args:
        listener: taken at the start's beginning, so that a port that is in use is an error then. Closed at the end. Processes
            may share one: each client is answered by one of them.
        render: returns the text; called in a thread, for each request.
        names: to which requests may be addressed, without the port; None: any.
    """

    def __init__(
        self, listener: socket.socket, render: Callable[[], bytes], *, names: frozenset[str] | None = LOOPBACK
    ) -> None:
        self._server = _Server(listener, render, names)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def __enter__(self) -> Self:
        """Start to answer."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Answers on their way are not waited for."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, render: Callable[[], bytes], names: frozenset[str] | None) -> None:
        super().__init__(listener.getsockname()[:2], _Answer, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # Another process may listen on it, too, and take a client before this one does: then it must not wait for the next.
        self.socket.settimeout(ACCEPT_SECONDS)
        self.render, self.names = render, names
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or hang up when too many clients are answered already."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the place back at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say little of a client that hangs up or sends nonsense."""
        del request
        logger.debug("a request for metrics from %s failed: %s", client_address[0], sys.exc_info()[1])


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    timeout = CONNECTION_SECONDS
    server_version = "turngate"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the metrics."""
        if not self._is_addressed_to_us():
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"this port answers to loopback names only\n")
        elif self.path.partition("?")[0] != PATH:
            self._send(HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n")
        else:
            try:
                text = self.server.render()
            except Exception:
                logger.exception("the metrics could not be rendered")
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, b"the metrics could not be rendered; see the log\n")
                return
            self._send(HTTPStatus.OK, text, CONTENT_TYPE_PLAIN_0_0_4)

    do_HEAD = do_GET  # noqa: N815 - the base class's way to name a method

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log no requests: a scraper sends one every few seconds."""

    def _is_addressed_to_us(self) -> bool:
        if self.server.names is None:
            return True
        host = self.headers.get("Host", "")
        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        return name in self.server.names

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def read_sdk(port: int) -> bytes:
    """Return the metrics of the Temporal SDK's core, which it serves on a port of its own; empty when it doesn't answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SDK_SECONDS)
    try:
        connection.request("GET", PATH)
        answer = connection.getresponse()
        body = answer.read(MOST_SDK_BYTES)
        return body if answer.status == HTTPStatus.OK and len(body) < MOST_SDK_BYTES else b""
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()
