"""One HTTP call from end to end: check the target, send, follow or not, read, and say what happened. Never crashes.

Every hop uses a transport of its own: no connection and no lookup is shared between hosts or calls, there are no cookies,
and leaving it (by return, failure or cancellation) closes its connection.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import re
import ssl
import zlib
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
from turngate.toolkits.http_client.hosts import AllowList, BadUrl, Target, clipped
from turngate.toolkits.http_client.safe_connect import UnsafeAddressError
from turngate.toolkits.http_client.secrets import ConfiguredHeaders

# The body of a response: read up to a limit, decompressed up to the same limit, and turned into text if it is text.


# What a hostile server may send that decodes to nothing, on top of the limit, before it is hung up on.
_COMPRESSED_SLACK_BYTES = 64 * 1024
_GZIP_MAGIC = b"\x1f\x8b"

# Python also calls `idna`, `utf-7`, `unicode_escape` and the like text encodings; no server means those.
_CHARSETS = re.compile(
    r"ascii|utf-8(-sig)?|utf-(16|32)(-[bl]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|gbk|gb2312|gb18030|big5(hkscs)?"
    r"|shift_jis(_2004|x0213)?|euc_(jp|kr)|iso2022_jp|mac-roman"
)


class UnreadableBodyError(Exception):
    """The body is compressed in a way that was not asked for, or wrongly. The text says which."""


@dataclass(frozen=True)
class RawBody:
    """The first bytes of a body, decompressed. ``whole``: nothing followed."""

    content: bytes
    whole: bool


async def read_body(response: httpx.Response, limit: int) -> RawBody:
    """Read at most ``limit`` bytes of an open response, counted after decompression.

    Memory stays bounded by the limit and one network chunk, whatever the compression ratio: a decoder that is
    without a limit on its output would inflate each chunk a thousandfold first.

    Raises UnreadableBodyError; httpx's errors pass through.
    """
    inflate = _inflater(response.headers.get("content-encoding", ""))
    content = bytearray()
    received = 0
    async for chunk in response.aiter_raw():
        received += len(chunk)
        # One byte over the limit is asked for: it tells a body of exactly the limit from a longer one.
        room = limit + 1 - len(content)
        content += chunk[:room] if inflate is None else inflate.feed(chunk, room)
        if len(content) > limit or received > limit + _COMPRESSED_SLACK_BYTES:
            return RawBody(bytes(content[:limit]), whole=False)
    return RawBody(bytes(content), whole=inflate is None or inflate.complete)


def as_text(content: bytes, charset: str | None, *, whole: bool) -> str | None:
    """Return the text, or None when it is none: not in its charset, or with NUL characters (no store takes them).

    ``charset``: as the server says; None means UTF-8, or UTF-16 with a byte order mark. Unless ``whole``, a character
    that was cut at the end is left out.
    """
    codec = _codec(content, charset)
    if codec is None:
        return None
    try:
        text = codecs.getincrementaldecoder(codec)("strict").decode(content, final=whole)
    except UnicodeError:
        return None
    return None if "\0" in text else text


def _codec(content: bytes, charset: str | None) -> str | None:
    if charset is None:
        return "utf-16" if content.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)) else "utf-8-sig"
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return None
    if not _CHARSETS.fullmatch(name):
        return None
    return "utf-8-sig" if name == "utf-8" else name


def _inflater(content_encoding: str) -> _Inflater | None:
    match content_encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return _Inflater()
        case _:
            raise UnreadableBodyError("the server compressed its answer in a way that was not asked for")


class _Inflater:
    """Gzip, any number of members (RFC 1952 §2.2), never more output than there is room for."""

    def __init__(self) -> None:
        self._fed = False
        self._member = self._new_member()

    @property
    def complete(self) -> bool:
        return self._member.eof or not self._fed

    def feed(self, compressed: bytes, room: int) -> bytes:
        """Return at most ``room`` bytes; what does not fit is lost, so stop feeding then."""
        content = bytearray()
        while compressed and len(content) < room:  # Not `room == 0`: zlib takes a limit of 0 for none at all.
            if self._member.eof:
                if not compressed.startswith(_GZIP_MAGIC):
                    break  # Padding after the last member.
                self._member = self._new_member()
            self._fed = True
            try:
                content += self._member.decompress(compressed, room - len(content))
            except zlib.error:
                raise UnreadableBodyError("the server's compressed answer is broken") from None
            compressed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        return bytes(content)

    @staticmethod
    def _new_member() -> zlib._Decompress:
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


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
class OutgoingRequest:
    """A request as a tool makes it, before the configured headers."""

    method: str
    target: Target
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass
class _Wire:
    """Whether the request began to leave. ``trace`` is httpcore's hook: it gets each step by name."""

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

    async def call(self, outgoing: OutgoingRequest, *, follow: bool, logger: LoggerAdapter[Any]) -> HttpResponse:
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
                f"{refused.host} leads to an address that this tool may not connect to. Only the developer of the tool can "
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

    async def _hops(self, outgoing: OutgoingRequest, wire: _Wire, *, follow: bool) -> HttpResponse:
        first, hop, redirects = outgoing.target, outgoing, list[str]()
        # Once a redirect has led to another origin, a stranger chooses the URLs: configured headers are not sent there,
        # nor on the way back.
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
            redirect = clipped(self.configured.hide(location))
            raise _failed(
                "bad_redirect", wire, f"the server redirected to what is no http(s) URL: {redirect}"
            ) from None
        if not self.allow.permits(target):
            host = self.configured.hide(target.host)
            reason = f"the server redirected to {host}:{target.port}, which is not allowed; allowed are: {self.allow}"
            raise self.allow.refusal(host, reason)
        return target

    @asynccontextmanager
    async def _open(self, hop: OutgoingRequest, headers: httpx.Headers, wire: _Wire) -> AsyncIterator[httpx.Response]:
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

    async def _read(self, response: httpx.Response, hop: OutgoingRequest, redirects: list[str]) -> HttpResponse:
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
