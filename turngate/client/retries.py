"""Which calls are sent again, how often, and how long is waited in between."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

import httpx

from turngate.client.calls import Call
from turngate.client.responses import retry_after

AWAY: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
"""Nothing was changed, and the same request may be sent again (RFC 9110 §15.6.4, RFC 6585 §4)."""


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How a call is sent again when it got no answer, or the answer was 503 or 429.

    Only GET, and POST with an Idempotency-Key, are sent again: the others might happen twice. ``attempts``: how often a
    call is sent at most, the first time included; 1 never sends again. Pauses double from ``first_pause`` up to
    ``longest_pause``, each shortened by up to a half at random, so that clients that failed together do not come back
    together. A ``Retry-After`` of the server's comes before our own pause; one longer than ``longest_pause`` is not waited
    for, and its error is raised.
    """

    attempts: int = 4
    first_pause: timedelta = timedelta(milliseconds=200)
    longest_pause: timedelta = timedelta(seconds=5)

    def pause(self, call: Call[Any], attempt: int, result: httpx.Response | httpx.TransportError) -> float | None:
        """Return the seconds to wait before the call is sent again; None when this result is final.

        ``attempt``: how often it was sent so far, from 1.
        """
        if attempt >= self.attempts or not call.is_repeatable or not _may_change(result):
            return None
        longest = self.longest_pause.total_seconds()
        wished = retry_after(result) if isinstance(result, httpx.Response) else None
        if wished is not None:
            return wished if wished <= longest else None
        pause: float = min(self.first_pause.total_seconds() * 2 ** (attempt - 1), longest)
        return pause * secrets.SystemRandom().uniform(0.5, 1)


def _may_change(result: httpx.Response | httpx.TransportError) -> bool:
    if isinstance(result, httpx.Response):
        return result.status_code in AWAY
    return not isinstance(result, httpx.UnsupportedProtocol)  # the address itself is wrong
