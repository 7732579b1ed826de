"""What every request passes before an endpoint: the check of headers and host, the size limit, and the headers of every answer.

Plain ASGI, because Starlette's function middleware would buffer streams and hold them open.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turngate.approvals_api.http.problems import problem_response
from turngate.approvals_api.http.security_headers import ONLY_HTTPS, SECURITY_HEADERS
from turngate.approvals_api.requests.answer_check import MAX_ARGS_CHARS
from turngate.approvals_api.settings import ApiSettings
from turngate.runtime import log_ids
from turngate.wire.external_calls import MAX_REPORT_CHARS

STATIC_PREFIX = "/static/"
_REST: Final = 1024 * 1024
"""Room in a body beside its one long text: a tool's schema, a message, the names of the members."""
LARGER_BODIES: Final = (
    (re.compile(r"/api/v1/external-calls/[^/]+/result"), 4 * MAX_REPORT_CHARS + _REST),
    (re.compile(r"/api/v1/(external-calls|requests/[^/]+/decisions|requests/decisions)"), 4 * MAX_ARGS_CHARS + _REST),
)
"""Paths whose bodies hold a text that may be longer than an ordinary body, and how many bytes: UTF-8 takes four a character."""
SINGLE_HEADERS: Final = (
    "host", "authorization", "content-length", "content-type", "origin", "sec-fetch-site", "transfer-encoding", "idempotency-key",
)  # fmt: skip
"""Of which a request has one: of two, a proxy may have read the other one."""
MAX_READ_BYTES: Final = 64 * 1024 * 1024
MAX_READ_SECONDS: Final = 30.0
"""How much of a refused body is read, for how long. A client that is still sending when the connection ends never sees why."""


class Guards:
    """Refuses requests for other host names and bodies that are too large; adds the security headers.

    The host check stops DNS rebinding: a page of another site whose name suddenly leads to 127.0.0.1 sends its own name
    as ``Host``, and its browser would hand it our answers as same-origin.
    """

    def __init__(self, app: ASGIApp, *, settings: ApiSettings) -> None:
        self._app = app
        self._host_names = settings.host_names
        self._max_body_bytes = settings.max_body_bytes
        is_https = (settings.public_url or "").startswith("https:")
        self._headers = {**SECURITY_HEADERS, **(ONLY_HTTPS if is_https else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        log_ids.belongs_to(scope)
        headers = Headers(scope=scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    answer.setdefault(name, value)
                if not scope["path"].startswith(STATIC_PREFIX):
                    answer.setdefault("Cache-Control", "no-store")
                if scope["app"].state.draining:
                    # The next request goes to another process, instead of to a connection that ends with this one.
                    answer["Connection"] = "close"
            await send(message)

        refusal = self._refusal(headers, scope["path"])
        if refusal is not None:
            status, code, detail = refusal
            await _discard_body(receive)
            await problem_response(status, code, detail, {}, {"Connection": "close"})(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, headers: Headers, path: str) -> tuple[HTTPStatus, str, str] | None:
        twice = next((name for name in SINGLE_HEADERS if len(headers.getlist(name)) > 1), None)
        if twice is not None:
            return HTTPStatus.BAD_REQUEST, "header_twice", f"the request has several {twice} headers: send one"
        host = headers.get("host", "")
        if self._host_names is not None and host_name(host) not in self._host_names:
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                "unknown_host",
                f"this server answers requests for {', '.join(sorted(self._host_names))}, not for {host!r}",
            )
        if "chunked" in headers.get("transfer-encoding", "").lower():
            # Without a length the limit below could only be enforced by counting; our clients always send one.
            return HTTPStatus.LENGTH_REQUIRED, "length_required", "send a Content-Length"
        length, most = headers.get("content-length", "0"), self._max_bytes(path)
        if not length.isdecimal() or int(length) > most:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"the body is too large: at most {most:,} bytes"
        return None

    def _max_bytes(self, path: str) -> int:
        larger = next((most for pattern, most in LARGER_BODIES if pattern.fullmatch(path)), 0)
        return max(larger, self._max_body_bytes)


async def _discard_body(receive: Receive) -> None:
    """Read a refused body to its end, within bounds, and keep nothing of it."""
    size = 0
    try:
        async with asyncio.timeout(MAX_READ_SECONDS):
            while size <= MAX_READ_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


def host_name(host: str) -> str:
    """Return the ``Host`` header without its port, lower-case: ``[::1]:8321`` is ``[::1]``."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
