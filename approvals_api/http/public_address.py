"""The address at which browsers reach this app (``TURNGATE_PUBLIC_URL``), and what follows from it where it has a path.

Inside the app, paths begin at ``/``. Here, the public address's path is taken off what comes in, whether or not a proxy has
removed it, and put before what goes out: redirects here, the links of a page where it is drawn, cookies by their path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turngate.domain.errors import ConfigurationError

_NONE: Final = urlsplit("")
_address: ContextVar[SplitResult] = ContextVar("public_address", default=_NONE)
"""Of the app that answers."""
_LINK: Final = re.compile(r'( (?:href|src|action|formaction)=")/')
"""In HTML of our templates. Text of others can't look like it: its quotes are escaped."""


def public_address() -> SplitResult:
    """Return the address, while a request is answered; empty parts where the settings name none."""
    return _address.get()


def public_path() -> str:
    """Return the address's path: empty, or ``/turngate``."""
    return _address.get().path


def with_public_links(html: str) -> str:
    """Return a page of our templates with its links, forms and assets below the public path."""
    path = public_path()
    return _LINK.sub(rf"\g<1>{path}/", html) if path else html


def require_free_path(url: str | None, pages: Iterable[str]) -> None:
    """Raise ConfigurationError if a page has the first part of the public path: a request for one would be ambiguous."""
    first = urlsplit(url or "").path.split("/")[1:2]
    if first and first[0] in {path.split("/")[1] for path in pages}:
        raise ConfigurationError(
            f"TURNGATE_PUBLIC_URL can't have the path /{first[0]}, where Turngate has pages: choose another, such as /turngate"
        )


class PublicAddress:
    """ASGI middleware around everything that answers requests. ``url``: without a trailing slash."""

    def __init__(self, app: ASGIApp, url: str) -> None:
        self._app = app
        self._address = urlsplit(url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, as one for a path of the app."""
        path = self._address.path

        async def send_below(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                to = headers.get("location", "")
                if to.startswith("/") and not to.startswith("//"):
                    headers["location"] = path + to
            await send(message)

        before = _address.set(self._address)
        try:
            await self._app(_without(path, scope), receive, send_below if path else send)
        finally:
            _address.reset(before)


def _without(prefix: str, scope: Scope) -> Scope:
    path = scope.get("path", "")
    if not prefix or (path != prefix and not path.startswith(f"{prefix}/")):
        return scope
    rest = path[len(prefix) :] or "/"
    return {**scope, "path": rest, "raw_path": (scope.get("raw_path") or b"")[len(prefix) :] or b"/"}
