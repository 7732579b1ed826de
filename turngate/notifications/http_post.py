"""One POST to a receiver: guarded against private networks, no redirects, no cookies, no proxy, bounded in time and size."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Final

import httpx

from turngate.domain.text.hidden_text import marked_text
from turngate.http_environment import require_certificates
from turngate.notifications.send_results import Delivered, Refused, SendResult, Unreachable, retry_after
from turngate.store.clock import now
from turngate.toolkits.http_client.safe_connect import (
    Dial,
    Resolver,
    SafeTransport,
    UnsafeAddressError,
    resolve_by_system,
)

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 10.0
"""From the look-up to the answer's headers, which are what counts."""
BODY_SECONDS: Final = 2.0
MAX_ANSWER_BYTES: Final = 1024
_SHOWN_CHARS: Final = 200
_ASKS_FOR_PATIENCE: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


@dataclass(frozen=True, kw_only=True, repr=False)
class Poster:
    """Sends to one URL, which may itself be a secret: it is in no answer, no ``repr`` and no log line.

    ``allow_private``: the address may be in a private network. ``resolve``, ``dial``: how names are looked up and checked
    addresses connected to. ``gone``: the statuses that mean "never again".
    """

    url: str
    allow_private: bool
    gone: frozenset[int] = frozenset({HTTPStatus.GONE})
    resolve: Resolver = resolve_by_system
    dial: Dial | None = None

    async def post(self, body: bytes, headers: Mapping[str, str]) -> SendResult:
        """Send one POST and return the result. Never raises for what the network or the receiver does."""
        # A transport of its own for each message: no connection or lookup is shared, and a hanging one holds up no other.
        transport = SafeTransport(
            tls=authorities(), allow_private=self.allow_private, resolve=self.resolve, dial=self.dial
        )
        try:
            async with httpx.AsyncClient(
                transport=transport, trust_env=False, follow_redirects=False, timeout=TIMEOUT_SECONDS
            ) as client:
                request = client.build_request("POST", self.url, content=body, headers=headers)
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    response = await client.send(request, stream=True)
                return self._send_result(response, await _beginning(response))
        except UnsafeAddressError as refused:
            logger.warning("a notification was not sent: %s", refused)
            return Refused(
                answer="the address is in a private network, or never to be connected to; for a private one that is "
                "meant, set allow_private = true for the channel"
            )
        except (httpx.TimeoutException, TimeoutError):
            return Unreachable(answer=f"no answer within {TIMEOUT_SECONDS:g} s")
        except httpx.ConnectError as error:
            return Unreachable(answer=f"cannot connect: {self._harmless(str(error)) or 'no server listens there'}")
        except httpx.HTTPError as error:  # not its text: it may quote what was sent
            return Unreachable(answer=f"the connection broke ({type(error).__name__})")

    def _send_result(self, response: httpx.Response, body: str) -> SendResult:
        status = response.status_code
        text = self._harmless(body)
        answer = f"{status} {self._harmless(response.reason_phrase)}".strip() + (f": {text}" if text else "")
        if response.is_success:
            return Delivered(answer=answer)
        if response.is_redirect:
            return Refused(answer=f"{answer} (redirects are not followed: configure the final address)")
        if status in _ASKS_FOR_PATIENCE or not response.is_client_error:
            return Unreachable(answer=answer, retry_after=retry_after(response.headers.get("retry-after"), now()))
        return Refused(answer=answer, for_good=status in self.gone)

    def _harmless(self, text: str) -> str:
        return marked_text(text.replace(self.url, "(its URL)").strip()[:_SHOWN_CHARS])


async def _beginning(response: httpx.Response) -> str:
    """Return the first KiB of the answer's body, as text. The rest is never read, nor is a compressed one unpacked."""
    read = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in response.aiter_raw():
                read += chunk
                if len(read) >= MAX_ANSWER_BYTES:
                    break
    except (httpx.HTTPError, TimeoutError):  # the status has come
        pass
    finally:
        await response.aclose()
    return bytes(read[:MAX_ANSWER_BYTES]).decode(errors="replace")


@cache
def authorities() -> ssl.SSLContext:
    """Return whose certificates count: SSL_CERT_FILE or SSL_CERT_DIR of this process, else those that httpx ships.

    Cached: reading them takes tens of milliseconds, in which the event loop would be blocked.
    """
    require_certificates()
    return httpx.create_ssl_context()
