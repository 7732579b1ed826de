"""Several tenants at one listener: each request goes to the app of the tenant whose host name it is for (docs/adr/0057)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from approvals_api.http.guards import host_name
from approvals_api.http.problems import problem_response
from approvals_api.http.security_headers import SECURITY_HEADERS
from turngate.wire.people import Memory, apart

HEALTH: Final = frozenset({"/livez", "/readyz"})
"""A probe asks for these at an address, not at a tenant's name."""


class HostApps:
    """One app a tenant, each with its own store, settings and limits, and nothing in common but the process.

    ``apps``: host name, in lower case and without a port → app. A name that is no tenant's gets 421, and no store is asked.
    """

    def __init__(self, apps: Mapping[str, FastAPI]) -> None:
        self._apps = dict(apps)
        self.apps = tuple({id(app): app for app in apps.values()}.values())
        self._people = {id(app): Memory() for app in self.apps}
        self._lifespans = Starlette(lifespan=self._running)

    @contextlib.asynccontextmanager
    async def _running(self, _app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as running:
            for app in self.apps:
                with apart(self._people[id(app)]):
                    await running.enter_async_context(app.router.lifespan_context(app))
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the tenant's app, or refuse it."""
        if scope["type"] == "lifespan":
            await self._lifespans(scope, receive, send)
            return
        # Two names in one request would be one for us and another one for a proxy.
        names = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        app = self._apps.get(host_name(names[0])) if len(names) == 1 else None
        if app is not None:
            with apart(self._people[id(app)]):
                await app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in HEALTH:
            await self._answer_probe(scope, receive, send)
        elif scope["type"] == "http":
            await self._refuse(scope, receive, send)

    async def _answer_probe(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the first tenant that is ready; if none is, as the last one: a tenant that is away stops no other."""
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        answer: list[Message] = []
        for name, app in self._apps.items():
            own = {**scope, "headers": [(b"host", name.encode("latin-1")), *others]}
            with apart(self._people[id(app)]):
                answer = await _answer_of(app, own, receive)
            if any(message.get("status", HTTPStatus.BAD_REQUEST) < HTTPStatus.BAD_REQUEST for message in answer):
                break
        for message in answer:
            await send(message)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**SECURITY_HEADERS, "Cache-Control": "no-store"}.items():
                    headers.setdefault(name, value)
            await send(message)

        detail = "nothing is served at this host name: use the address that you have from your administrator"
        refusal = problem_response(HTTPStatus.MISDIRECTED_REQUEST, "unknown_host", detail, {}, {"Connection": "close"})
        await refusal(scope, receive, send_guarded)


async def _answer_of(app: FastAPI, scope: Scope, receive: Receive) -> list[Message]:
    messages: list[Message] = []

    async def note(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, note)
    return messages
