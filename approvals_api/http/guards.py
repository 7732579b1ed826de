"""What every request passes before an endpoint: the host check, the size limit, and the headers of every answer.

Plain ASGI, because Starlette's function middleware would buffer streams and hold them open.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from approvals_api.http.problems import problem_response
from approvals_api.http.security_headers import SECURITY_HEADERS
from approvals_api.settings import ApiSettings
from turngate.runtime import log_ids

STATIC_PREFIX = "/static/"


class Guards:
    """Refuses requests for other host names and bodies that are too large; adds the security headers.

    The host check stops DNS rebinding: a page of another site whose name suddenly leads to 127.0.0.1 sends its own name
    as ``Host``, and its browser would hand it our answers as same-origin.
    """

    def __init__(self, app: ASGIApp, *, settings: ApiSettings) -> None:
        self._app = app
        self._host_names = settings.host_names
        self._max_body_bytes = settings.max_body_bytes

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
                for name, value in SECURITY_HEADERS.items():
                    answer.setdefault(name, value)
                if not scope["path"].startswith(STATIC_PREFIX):
                    answer.setdefault("Cache-Control", "no-store")
                if scope["app"].state.draining:
                    # The next request goes to another process, instead of to a connection that ends with this one.
                    answer["Connection"] = "close"
            await send(message)

        refusal = self._refusal(headers)
        if refusal is not None:
            status, code, detail = refusal
            await problem_response(status, code, detail, {}, {"Connection": "close"})(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, headers: Headers) -> tuple[HTTPStatus, str, str] | None:
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
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body_bytes:
            return (
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too_large",
                f"the body is too large: at most {self._max_body_bytes:,} bytes",
            )
        return None


def host_name(host: str) -> str:
    """Return the ``Host`` header without its port, lower-case: ``[::1]:8321`` is ``[::1]``."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
