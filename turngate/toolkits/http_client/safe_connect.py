"""Outgoing connections that cannot be led into a private network (SSRF): an httpx transport that checks every address.

Owns which IP addresses may be connected to, and the pinning: a name is looked up once, each of its addresses is checked,
and exactly a checked address is dialled. A second lookup, whose answer could differ (DNS rebinding), never happens. The
URL keeps the name, so ``Host``, SNI and the certificate check are about the name. Which *names* are allowed is the
caller's business.

The one module that knows httpcore, which is private to httpx: httpx has no way to say how an address is connected to. If httpx
is replaced by its successor, this is what changes with the imports.

What is left: a NAT64 prefix of one's own (RFC 6052 §2.2) looks like any public IPv6 prefix; a network that has one must
keep its translator from reaching private addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import httpcore
import httpx

from turngate import ConfigurationError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Reach = Literal["public", "private", "never"]
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host name and port → its addresses as text, in the order to try them. Raises OSError when there are none."""

Dial = httpcore.AsyncNetworkBackend
"""How a checked address is connected to."""

MAX_ADDRESSES = 4
"""Addresses of one name that are tried before giving up."""

# Not `ipaddress.is_global`: its answers depend on Python's patch level (CVE-2024-4032), and it calls multicast global.
# Source: IANA's IPv4 and IPv6 Special-Purpose Address Registries, and the IPv6 Unicast Address Assignments.
_PRIVATE = [
    ipaddress.ip_network(block)
    for block in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "::1/128",
        "fc00::/7",
    )
]
_NEVER_V4 = [
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # "this host": Linux connects it to loopback
        "169.254.0.0/16",  # link-local, where clouds keep their metadata (and credentials) service
        "168.63.129.16/32",  # Azure's host agent: a public address that answers only inside
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
# Of IPv6 only 2000::/3 is handed out as global unicast. That alone refuses mapped, compatible, link-local, site-local
# and multicast addresses; these are the exceptions inside it. 2001::/23 holds Teredo, 2002::/16 is 6to4: both smuggle
# an IPv4 address that no one has checked.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_NEVER_V6 = [ipaddress.IPv6Network(block) for block in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class UnsafeAddressError(httpx.ConnectError):
    """The name has an address that must not be connected to. ``address`` is for logs, not for the sender of the URL."""

    def __init__(self, host: str, address: str, reach: Reach) -> None:
        super().__init__(
            f"{host} has the address {address}, which is {'private' if reach == 'private' else 'not usable'}"
        )
        self.host = host
        self.address = address
        self.reach: Reach = reach


def reach_of(address: Address) -> Reach:
    """Say what an address leads to: the internet, a private network, or nothing that a request may ever go to.

    ``private``: loopback, RFC 1918, carrier-grade NAT (RFC 6598), unique local IPv6. ``never``: link-local, multicast,
    unspecified, reserved, documentation, and every IPv6 form that embeds an IPv4 address, except the well-known NAT64
    prefix around a public one: that is what a name without IPv6 looks like in a network that has nothing else.
    """
    if any(address in block for block in _PRIVATE):
        return "private"
    if isinstance(address, ipaddress.IPv4Address):
        return "never" if any(address in block for block in _NEVER_V4) else "public"
    if address in _NAT64:
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        return "public" if reach_of(embedded) == "public" else "never"
    if address not in _GLOBAL_V6 or any(address in block for block in _NEVER_V6):
        return "never"
    return "public"


def closed_networks() -> list[str]:
    """Return the IPv4 networks that aren't public, but for loopback: what routes have to close where names can't be checked."""
    closed = [*(block for block in _PRIVATE if isinstance(block, ipaddress.IPv4Network)), *_NEVER_V4]
    return [str(block) for block in closed if not block.is_loopback]


def open_networks(listed: Iterable[str]) -> tuple[str, ...]:
    """Return private IPv4 networks or addresses as networks, to be opened in spite of :func:`closed_networks`.

    Raises ConfigurationError: one is no network, or isn't private; loopback and link-local addresses are never opened.
    """
    opened = []
    for text in sorted(listed):
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError as error:
            raise ConfigurationError(f"TURNGATE_TOOL_NETWORKS: {error}: write 10.1.2.3 or 10.1.0.0/16") from error
        private = [block for block in _PRIVATE if isinstance(block, ipaddress.IPv4Network)]
        if network.is_loopback or not any(network.subnet_of(block) for block in private):
            raise ConfigurationError(f"TURNGATE_TOOL_NETWORKS: {network} is no private network, or holds others, too")
        opened.append(str(network))
    return tuple(opened)


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Look the name up the way the machine does (``getaddrinfo``: hosts file, DNS), in a thread."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in addresses))


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves, checks and pins, then dials by another backend, which only ever gets IP addresses."""

    def __init__(self, *, allow_private: bool, resolve: Resolver, dial: Dial) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        self._dial = dial

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first checked address that answers; ``timeout``: seconds, for the lookup and for each address.

        Raises UnsafeAddressError when *any* address of the name is refused: a name that mixes public and private
        addresses is an attack or a mistake. Raises httpcore.ConnectError and ConnectTimeout for the rest.
        """
        failure: Exception = httpcore.ConnectError("the name has no address")
        for address in (await self._checked_addresses(host, port, timeout))[:MAX_ADDRESSES]:
            try:
                return await self._dial.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        """Sleep (httpcore asks for it between retries)."""
        await asyncio.sleep(seconds)

    async def _checked_addresses(self, host: str, port: int, seconds: float | None) -> list[Address]:
        addresses = [ipaddress.ip_address(text) for text in await self._look_up(host, port, seconds)]
        for address in addresses:
            reach = reach_of(address)
            if reach == "never" or (reach == "private" and not self._allow_private):
                raise UnsafeAddressError(host, str(address), reach)
        return addresses

    async def _look_up(self, host: str, port: int, seconds: float | None) -> Sequence[str]:
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass  # A name.
        try:
            async with asyncio.timeout(seconds):
                return await self._resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout("looking the name up took too long") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: Python's own idna codec, for labels it cannot encode
            raise httpcore.ConnectError("the name cannot be looked up") from error


class SafeTransport(httpx.AsyncBaseTransport):
    """An httpx transport over :class:`CheckedBackend`: ``httpx.AsyncClient(transport=SafeTransport(…), trust_env=False)``.

    Args:
        tls: what certificates are checked with.
        allow_private: connect to private addresses too; for tests and intranets.
        resolve: how names are looked up.
        dial: how a checked address is connected to; None is the ordinary way.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext,
        allow_private: bool = False,
        resolve: Resolver = resolve_by_system,
        dial: Dial | None = None,
    ) -> None:
        backend = CheckedBackend(allow_private=allow_private, resolve=resolve, dial=dial or httpcore.AnyIOBackend())
        # httpx's own transport takes no network backend, hence httpcore's pool in person.
        self._pool = httpcore.AsyncConnectionPool(ssl_context=tls, network_backend=backend)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; raises httpx's errors, and UnsafeAddressError."""
        assert isinstance(request.stream, httpx.AsyncByteStream)  # noqa: S101 - AsyncClient makes no other
        sent = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _as_httpx_errors():
            answer = await self._pool.handle_async_request(sent)
        return httpx.Response(
            status_code=answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx_errors():
            async for chunk in self._answer.aiter_stream():
                yield chunk

    async def aclose(self) -> None:
        await self._answer.aclose()


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    """Raise httpcore's errors as those of the same name in httpx, which is what a transport owes its client."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as error:
        raised: type[httpx.TransportError] = getattr(httpx, type(error).__name__)
        raise raised(str(error)) from error
