"""How often a principal may send requests, and how often log-ins may fail: token buckets in this process.

In this process only, on purpose: two API processes allow twice as much, which is still a bound, and no request waits for
a store to be counted. Algorithm: a bucket holds up to ``burst`` tokens and gains ``per_second``; a request takes one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, Protocol

from turngate.approvals_api.settings import RateLimitSettings
from turngate.domain.errors import TooManyRequestsError
from turngate.domain.identity import name_key

MAX_KEYS: Final = 10_000
"""Buckets in memory; a client that invents new names cannot fill it."""

LOGINS_WAITING: Final = 3
"""Log-ins under one name from one address that wait for their turn."""
LOGIN_WAIT_SECONDS: Final = 30
Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


class Buckets:
    """One bucket per key. ``clock``: monotonic seconds."""

    def __init__(
        self, *, per_second: float, burst: int, clock: Clock = time.monotonic, max_keys: int = MAX_KEYS
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._max_keys = max_keys
        # key → (tokens, at), the longest unused first. A key that is not there has a full bucket.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take one token; returns 0, or how many seconds until there is one."""
        now = self._clock()
        tokens = self._tokens(key, now)
        if tokens < 1:
            return (1 - tokens) / self._per_second
        self._keep(key, tokens - 1, now)
        return 0.0

    def queue(self, key: str, *, places: int) -> float | None:
        """Take one token ahead of time; returns in how many seconds it is there. None: all ``places`` in the queue are taken."""
        now = self._clock()
        tokens = self._tokens(key, now)
        if tokens < 1 - places:
            return None
        self._keep(key, tokens - 1, now)
        return max(0.0, (1 - tokens) / self._per_second)

    def give_back(self, key: str) -> None:
        """Put back the token of a request that does not count."""
        now = self._clock()
        self._keep(key, min(self._burst, self._tokens(key, now) + 1), now)

    def _tokens(self, key: str, now: float) -> float:
        tokens, at = self._buckets.get(key, (float(self._burst), now))
        return min(self._burst, tokens + (now - at) * self._per_second)

    def _keep(self, key: str, tokens: float, now: float) -> None:
        self._buckets[key] = (tokens, now)
        self._buckets.move_to_end(key)
        # The bucket that was unused longest has gained most tokens; dropping it early forgives a few at worst.
        while len(self._buckets) > self._max_keys:
            self._buckets.popitem(last=False)


class RateLimits:
    """The limits of one API process. Belongs to one event loop."""

    def __init__(
        self, settings: RateLimitSettings | None = None, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        settings = settings or RateLimitSettings()
        self._sleep = sleep

        def per_minute(count: int | None) -> Buckets | None:
            return None if count is None else Buckets(per_second=count / 60, burst=count, clock=clock)

        self._requests: Buckets | None = None
        if settings.per_second is not None:
            self._requests = Buckets(per_second=settings.per_second, burst=settings.burst, clock=clock)
        self._names = per_minute(settings.logins_per_name)
        self._addresses = per_minute(settings.logins_per_address)

    def count_request(self, principal: str) -> None:
        """Count a request of an authenticated principal. Raises TooManyRequestsError."""
        if self._requests is not None:
            _refuse(self._requests.take(principal), f"too many requests by {principal!r}")

    async def count_login(self, address: str, name: str | None = None) -> None:
        """Count a log-in before it is looked at. ``name``: of one by password. Raises TooManyRequestsError.

        An address that fails too often is refused. Too many tries of one name from one address wait their turn, so that the right
        password still gets in. Tries from other addresses don't count, or a stranger could lock a name.
        """
        network = _network(address)
        if self._addresses is not None:
            _refuse(self._addresses.take(network), "too many log-ins failed from your address")
        if self._names is not None and name is not None:
            wait = self._names.queue(_name_from(name, network), places=LOGINS_WAITING)
            if wait is None:
                _refuse(LOGIN_WAIT_SECONDS, "too many log-ins wait under this name from your address")
            elif wait:
                await self._sleep(wait)

    def forgive_login(self, address: str, name: str | None = None) -> None:
        """Take a successful log-in back: a whole office behind one proxy's address may log in at nine."""
        network = _network(address)
        if self._addresses is not None:
            self._addresses.give_back(network)
        if self._names is not None and name is not None:
            self._names.give_back(_name_from(name, network))


def _name_from(name: str, network: str) -> str:
    return f"{network} {name_key(name)}"


def _network(address: str) -> str:
    """Return who counts as one address: of IPv6, all that one customer gets (a /64)."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else address


CONNECTION: Final = "turngate.connection"
"""Where the server leaves a request's connection in its scope; servers of tests may have none."""
PLACE_WAIT_SECONDS: Final = 5


class Connection(Protocol):
    """A client's connection, one of the bounded number that the server has."""

    def hold(self, holder: Hashable) -> bool:
        """Keep it for a request whose credential was checked, until that is answered; False: the holder has too many."""


def hold_connection(scope: Mapping[str, Any], holder: Hashable, name: str) -> None:
    """Keep the connection of an authenticated request while it is answered, however many others want it.

    Raises TooManyRequestsError when the holder has its share of the server's connections already.
    """
    connection: Connection | None = scope.get(CONNECTION)
    if connection is not None and not connection.hold(holder):
        message = (
            f"{name!r} has too many requests and event streams open: end one, or try again in {PLACE_WAIT_SECONDS} s"
        )
        raise TooManyRequestsError(message, retry_after_seconds=PLACE_WAIT_SECONDS, code="too_many_open")


def _refuse(seconds: float, what: str) -> None:
    if seconds > 0:
        wait = max(1, math.ceil(seconds))
        raise TooManyRequestsError(f"{what}: try again in {wait} s", retry_after_seconds=wait)
