"""One HTTP call from end to end: check the target, send, follow or not, read, and say what happened. Never crashes.

Every hop uses a transport of its own: no connection and no lookup is shared between hosts or calls, there are no cookies,
and leaving it (by return, failure or cancellation) closes its connection.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from logging import LoggerAdapter
from typing import Any, Literal
from urllib.parse import urljoin

import httpx
from pydantic import BaseModel

from turngate import ToolFailure
from turngate.toolkits.http_client.bodies import RawBody, UnreadableBodyError, as_text, read_body
from turngate.toolkits.http_client.hosts import AllowList, BadUrl, Target, clipped
from turngate.toolkits.http_client.safe_connect import UnsafeAddressError
from turngate.toolkits.http_client.secrets import ConfiguredHeaders

MAX_REDIRECTS = 5
CONNECT_TIMEOUT_SECONDS = 10.0

_MAX_HEADER_CHARS = 2_000
_REDIRECTS = {301, 302, 303, 307, 308}
_SHOWN_HEADERS = (
    "content-type",
    "content-length",
    "content-language",
    "content-disposition",
    "location",
    "link",
    "etag",
    "last-modified",
    "allow",
    "retry-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
)

Cause = Literal["timeout", "connect", "tls", "too_many_redirects", "bad_redirect", "bad_response"]


class RequestFailed(ToolFailure):
    """There is no response. ``maybe_sent``: the server may have received the request and acted on it."""

    cause: Cause
    maybe_sent: bool
    reason: str


class HttpResponse(BaseModel):
    """A response of any status.

    ``url``: where it came from, after ``redirects`` (the URLs that led there). ``headers``: a useful few, in lower case.
    The body is in ``text``, or in ``base64`` when it is no text; at most the tool's limit, and ``truncated`` says that
    there was more. ``size_bytes``: of what is here, decompressed.
    """

    url: str
    status: int
    headers: dict[str, str]
    redirects: list[str] = []
    text: str | None = None
    base64: str | None = None
    size_bytes: int = 0
    truncated: bool = False


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A request as a tool makes it, before the configured headers."""

    method: str
    target: Target
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass
class _Wire:
    """Whether the request began to leave. ``trace`` is httpcore's hook: it is told of each step by name."""

    sent: bool = False

    async def trace(self, step: str, _about: Mapping[str, Any]) -> None:
        self.sent = self.sent or step.endswith("send_request_headers.started")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Makes calls under one toolkit's rules. ``timeout``: for a whole call, redirects included."""

    allow: AllowList
    configured: ConfiguredHeaders
    transport: Callable[[], httpx.AsyncBaseTransport]
    max_bytes: int
    timeout: timedelta

    async def call(self, outgoing: Outgoing, *, follow: bool, logger: LoggerAdapter[Any]) -> HttpResponse:
        """Send the request and return the response, whatever its status.

        ``follow``: go where a redirect leads, at most MAX_REDIRECTS times, every hop checked like the first; only for
        requests that change nothing and carry no body.

        Raises HostNotAllowed, RequestFailed.
        """
        self.allow.check(outgoing.target)
        wire = _Wire()
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                return await self._hops(outgoing, wire, follow=follow)
        except UnsafeAddressError as refused:
            logger.warning("request refused: %s", refused)
            reason = (
                f"{refused.host} leads to an address that this tool may not connect to. Only whoever built the tool can "
                "change that; do not try other spellings"
            )
            raise self.allow.refusal(self.configured.hide(refused.host), self.configured.hide(reason)) from None
        except (TimeoutError, httpx.TimeoutException):
            raise _failed("timeout", wire, f"no answer within {self.timeout.total_seconds():g} s") from None
        except UnreadableBodyError as problem:
            raise _failed("bad_response", wire, str(problem)) from None
        # Never the error's own text: h11's quotes the header it stumbles over, which may be a secret one.
        except httpx.ConnectError as error:
            tls = _tls_error(error)
            if tls is not None:
                raise _failed("tls", wire, f"no secure connection: {tls}") from None
            raise _failed("connect", wire, "the host cannot be reached (no such name, or nothing answers)") from None
        except httpx.TransportError:
            raise _failed("bad_response", wire, "the connection broke, or the server does not speak HTTP") from None

    async def _hops(self, outgoing: Outgoing, wire: _Wire, *, follow: bool) -> HttpResponse:
        first, hop, redirects = outgoing.target, outgoing, list[str]()
        # Once a redirect has led to another origin, whoever controls that chain chooses the URLs: configured headers
        # are not sent there, nor on the way back.
        trusted = True
        while True:
            headers = httpx.Headers({"User-Agent": "turngate", **hop.headers})
            headers.update(self.configured.for_target(hop.target) if trusted else {})
            headers["Accept-Encoding"] = "gzip"
            async with self._open(hop, headers, wire) as response:
                location = response.headers.get("location")
                if not follow or response.status_code not in _REDIRECTS or location is None:
                    return await self._read(response, hop, redirects)
            if len(redirects) == MAX_REDIRECTS:
                raise _failed("too_many_redirects", wire, f"more than {MAX_REDIRECTS} redirects")
            redirects.append(self.configured.hide(str(hop.target.url)))
            target = self._next(hop.target, location, wire)
            trusted = trusted and target.origin == first.origin
            hop = replace(hop, target=target)

    def _next(self, current: Target, location: str, wire: _Wire) -> Target:
        try:
            target = Target.parse(urljoin(str(current.url), location))
        except (BadUrl, ValueError):
            shown = clipped(self.configured.hide(location))
            raise _failed("bad_redirect", wire, f"the server redirected to what is no http(s) URL: {shown}") from None
        if not self.allow.permits(target):
            host = self.configured.hide(target.host)
            reason = f"the server redirected to {host}:{target.port}, which is not allowed; allowed are: {self.allow}"
            raise self.allow.refusal(host, reason)
        return target

    @asynccontextmanager
    async def _open(self, hop: Outgoing, headers: httpx.Headers, wire: _Wire) -> AsyncIterator[httpx.Response]:
        """Send to the transport itself: a client would add cookies, and give up on a response whose Location is odd."""
        seconds = self.timeout.total_seconds()
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_TIMEOUT_SECONDS))
        request = httpx.Request(
            hop.method,
            hop.target.url,
            headers=headers,
            content=hop.body,
            extensions={"timeout": timeout.as_dict(), "trace": wire.trace},
        )
        async with self.transport() as transport:
            response = await transport.handle_async_request(request)
            try:
                yield response
            finally:
                await response.aclose()

    async def _read(self, response: httpx.Response, hop: Outgoing, redirects: list[str]) -> HttpResponse:
        configured = self.configured
        raw = RawBody(b"", whole=True)
        if hop.method != "HEAD":
            raw = await read_body(response, self.max_bytes + configured.overlap)
        content = configured.hide_bytes(raw.content)[: self.max_bytes]
        whole = raw.whole and len(raw.content) <= self.max_bytes
        text = as_text(content, response.charset_encoding, whole=whole)
        return HttpResponse(
            url=configured.hide(str(hop.target.url)),
            status=response.status_code,
            headers={
                # Hidden first: clipping could cut a secret in two, and neither half would be found.
                name: clipped(configured.hide(response.headers[name]), _MAX_HEADER_CHARS)
                for name in _SHOWN_HEADERS
                if name in response.headers
            },
            redirects=redirects,
            text=text,
            base64=base64.b64encode(content).decode() if text is None else None,
            size_bytes=len(content),
            truncated=not whole,
        )


def _failed(cause: Cause, wire: _Wire, reason: str) -> RequestFailed:
    return RequestFailed(cause=cause, maybe_sent=wire.sent, reason=reason)


def _tls_error(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        if isinstance(error, ssl.SSLError):
            return error.reason or "the handshake failed"
        error = error.__cause__ or error.__context__
    return None
