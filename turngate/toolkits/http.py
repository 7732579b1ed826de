"""HTTP tools: http_get, and http_request when asked for. Allowed hosts only, public addresses only.

Built for a model that may be misled by what it reads: it chooses URLs and bodies, but neither hosts, nor headers, nor
where a redirect may lead.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
from pydantic import Field, create_model

from turngate import (
    ConfigurationError,
    OutcomeUnknown,
    Preview,
    Tool,
    ToolContext,
    ToolFailure,
    Toolkit,
    declare_tool,
)
from turngate.toolkits.edits import Params
from turngate.toolkits.http_client.exchange import Exchange, HttpResponse, OutgoingRequest, RequestFailed
from turngate.toolkits.http_client.hosts import AllowList, BadUrl, HostNotAllowed, Target
from turngate.toolkits.http_client.safe_connect import Dial, Resolver, SafeTransport, resolve_by_system
from turngate.toolkits.http_client.secrets import ConfiguredHeaders

__all__ = ["BadUrl", "HostNotAllowed", "HttpResponse", "RequestFailed", "http_toolkit"]

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

MAX_BODY_CHARS = 500_000

_SAFE = ("GET", "HEAD")
_CHANGING = ("POST", "PUT", "PATCH", "DELETE")

Url = Annotated[str, Field(description="An absolute http:// or https:// URL, without user name or password.")]
HeaderValue = Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")]


class GetParams(Params):
    """What to fetch."""

    url: Url
    accept: HeaderValue = Field(default="*/*", description="The Accept header, such as application/json.")


class RequestParams(Params):
    """What to send where."""

    url: Url
    body: str | None = Field(default=None, max_length=MAX_BODY_CHARS, description="Sent as UTF-8; null for none.")
    content_type: HeaderValue = Field(default="application/json", description="Of the body.")
    accept: HeaderValue = Field(default="*/*", description="The Accept header.")


def http_toolkit(
    allow: Sequence[str],
    *,
    methods: Sequence[Method] = ("GET", "HEAD"),
    headers: Mapping[str, Mapping[str, str]] | None = None,
    max_bytes: int = 1024 * 1024,
    timeout: timedelta = timedelta(seconds=30),
    allow_private: bool = False,
    untrusted: bool = True,
    tls: ssl.SSLContext | None = None,
    resolve: Resolver = resolve_by_system,
    dial: Dial | None = None,
) -> Toolkit:
    """Return ``http_get`` for GET and HEAD, which runs without asking, and ``http_request`` for the rest, which asks.

    Args:
        allow: hosts: ``api.example.com``, ``*.example.com`` (names below it, not itself), ``host:8080``. Without a port,
            the scheme's own port only.
        methods: what the tools may do. POST, PUT, PATCH and DELETE make ``http_request``: effect ``once``, each call
            waits for a person unless policy says otherwise, and redirects are not followed, so that what was approved is
            what is sent. It sends the call's idempotency key as ``Idempotency-Key``.
        headers: entry of ``allow`` → header → value, such as ``{"api.example.com": {"Authorization": "Bearer …"}}``. Sent
            to that host only, over TLS only (unless ``allow_private``), not after a redirect to another origin; masked
            wherever a server echoes them.
        max_bytes: of a body, decompressed; what is beyond is cut off.
        timeout: 1 s to 10 min, for a whole call, redirects included.
        allow_private: connect to private addresses of allowed hosts too (loopback, RFC 1918, unique local). For
            tests and intranets. Link-local addresses, where clouds keep credentials, stay refused.
        untrusted: anyone may have written what these hosts return: a value that comes only from there is marked. False: they are
            your own, and return only what people you trust have written.
        tls: instead of checking certificates with the public authorities that httpx ships.
        resolve: instead of the system's lookup of names.
        dial: how a checked address is connected to, such as by way of an egress proxy.

    Raises:
        ConfigurationError: a host, method, header or limit is wrong; the message says the fix.
    """
    _check_limits(methods, max_bytes, timeout)
    allowed = AllowList.of(allow)
    context = tls or _public_authorities()
    exchange = Exchange(
        allow=allowed,
        configured=ConfiguredHeaders.of(headers or {}, allowed, plain_http=allow_private),
        transport=lambda: SafeTransport(tls=context, allow_private=allow_private, resolve=resolve, dial=dial),
        max_bytes=max_bytes,
        timeout=timeout,
    )
    tools = []
    if safe := [method for method in _SAFE if method in methods]:
        tools.append(replace(_get_tool(exchange, safe), untrusted=untrusted))
    if changing := [method for method in _CHANGING if method in methods]:
        tools.append(replace(_request_tool(exchange, changing), untrusted=untrusted))
    return Toolkit.of(*tools)


def _get_tool(exchange: Exchange, methods: list[str]) -> Tool:
    params_type = _with_method(GetParams, methods, default=methods[0])

    async def http_get(params: Any, ctx: ToolContext) -> HttpResponse:
        target = Target.parse(params.url)
        outgoing = OutgoingRequest(method=params.method, target=target, headers={"Accept": params.accept})
        return await exchange.call(outgoing, follow=True, logger=ctx.logger)

    http_get.__annotations__["params"] = params_type
    return declare_tool(
        name="http_get",
        description=f"Fetch a URL with {' or '.join(methods)}. Redirects are followed between allowed hosts. An error status "
        f"is a result, too. At most {exchange.max_bytes} bytes of the body are returned. Allowed hosts: {exchange.allow}.",
        params=params_type,
        success=HttpResponse,
        effect="read",
        ask=False,
        failures=[BadUrl, HostNotAllowed, RequestFailed],
        timeout=exchange.timeout + timedelta(seconds=10),
        handler=http_get,
    )


def _request_tool(exchange: Exchange, methods: list[str]) -> Tool:
    params_type = _with_method(RequestParams, methods)

    async def http_request(params: Any, ctx: ToolContext) -> HttpResponse:
        outgoing = _outgoing(params)
        keyed = {**outgoing.headers, "Idempotency-Key": ctx.idempotency_key}
        sent = OutgoingRequest(method=outgoing.method, target=outgoing.target, headers=keyed, body=outgoing.body)
        try:
            return await exchange.call(sent, follow=False, logger=ctx.logger)
        except RequestFailed as failed:
            if not failed.fields["maybe_sent"]:
                raise
            raise OutcomeUnknown(
                f"The request was sent, and there is no response: {failed.fields['reason']}"
            ) from failed

    http_request.__annotations__["params"] = params_type
    return declare_tool(
        name="http_request",
        description=f"Send a request that may change something: {', '.join(methods)}. Redirects are not followed; look at status "
        f"and location. After a failure with maybe_sent, find out what happened before you repeat it. Allowed hosts: "
        f"{exchange.allow}.",
        params=params_type,
        success=HttpResponse,
        effect="once",
        ask=True,
        failures=[BadUrl, HostNotAllowed, RequestFailed],
        timeout=exchange.timeout + timedelta(seconds=10),
        preview=functools.partial(_preview_request, exchange),
        handler=http_request,
    )


def _with_method(base: type[Params], methods: list[str], default: Any = ...) -> type[Params]:
    """Return the parameters with a ``method`` of just these: what is not allowed is refused before anyone is asked."""
    pattern = Field(default=default, pattern=f"^({'|'.join(methods)})$", json_schema_extra={"enum": list(methods)})
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, method=(str, pattern))


def _outgoing(params: Any) -> OutgoingRequest:
    headers = {"Accept": params.accept}
    if params.body is None:
        return OutgoingRequest(method=params.method, target=Target.parse(params.url), headers=headers)
    headers["Content-Type"] = params.content_type
    return OutgoingRequest(
        method=params.method, target=Target.parse(params.url), headers=headers, body=params.body.encode()
    )


def _preview_request(exchange: Exchange, params: Any, _workspace: Path | None) -> Preview:
    """Show the request as it will be sent; of configured headers the names. Looks no name up."""
    try:
        outgoing = _outgoing(params)
        exchange.allow.check(outgoing.target)
    except ToolFailure as failure:
        return Preview(kind="text", text=f"this request would fail: {failure.fields['reason']}")
    named = exchange.configured.for_target(outgoing.target)
    headers = {
        name: value for name, value in outgoing.headers.items() if name.lower() not in {each.lower() for each in named}
    }
    lines = [f"{outgoing.method} {outgoing.target.url}", *(f"{name}: {value}" for name, value in headers.items())]
    lines += [f"{name}: (configured, not shown)" for name in named]
    text = "\n".join([*lines, "", params.body or ""])
    return Preview(kind="text", text=exchange.configured.hide(text.rstrip("\n")))


def _check_limits(methods: Sequence[str], max_bytes: int, timeout: timedelta) -> None:
    known = (*_SAFE, *_CHANGING)
    if isinstance(methods, str) or not methods or not set(methods) <= set(known):
        raise ConfigurationError(f"methods is a list of some of {', '.join(known)}, not {methods!r}")
    if max_bytes < 1:
        raise ConfigurationError(f"max_bytes must be at least 1, not {max_bytes}")
    if not timedelta(seconds=1) <= timeout <= timedelta(minutes=10):
        raise ConfigurationError(f"the timeout must be between 1 second and 10 minutes, not {timeout}")


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    """The bundle httpx ships; SSL_CERT_FILE does not count: the environment of a worker is no policy."""
    return httpx.create_ssl_context(trust_env=False)
