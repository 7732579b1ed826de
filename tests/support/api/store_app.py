"""The whole app over a store with requests in it, without an engine: for what people do around decisions.

In this process, without a socket; Temporal is a port on which no server listens.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from support.api.api_server import session_for, token_for
from support.stores.stored_requests import live_run, open_requests, request_row
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.services import Services
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.policy.terms import Role
from turngate.runtime.temporal_client import data_converter
from turngate.store.access import sessions, tokens
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import runs

URL = "http://127.0.0.1"


@dataclass
class Desk:
    """The app, and people at it. ``url`` of requests: ``/api/v1/requests/{id}``."""

    database: Database
    transport: httpx.ASGITransport
    services: Services
    clients: list[httpx.AsyncClient] = field(default_factory=list)

    async def person(self, name: str, role: Role = "operator") -> httpx.AsyncClient:
        """The client of a logged-in user, with a session cookie as in a browser."""
        if role == "operator":
            cookies = await session_for(self.database, name)
        else:
            async with self.database.write() as conn:
                cookies = {SESSION_COOKIE: await sessions.begin(conn, name, role=role)}
        return self._client(cookies=cookies, headers={"Origin": URL})

    async def machine(self, name: str, *scopes: Any) -> httpx.AsyncClient:
        return self._client(headers=await token_for(self.database, name, *scopes))

    async def terminal(self, name: str) -> httpx.AsyncClient:
        """The client of the commands and the terminal UI of a stack's owner."""
        async with self.database.write() as conn:
            secret = await tokens.issue_owner_token(conn, name)
        return self._client(headers={"Authorization": f"Bearer {secret}"})

    def _client(self, **options: Any) -> httpx.AsyncClient:
        client = httpx.AsyncClient(transport=self.transport, base_url=URL, **options)
        self.clients.append(client)
        return client

    async def run(self, run_id: str = "run_1") -> runs.Run:
        async with self.database.write() as conn:
            return await live_run(conn, run_id)

    async def put(self, run: runs.Run, request_id: str = "rq", **changes: Any) -> str:
        """Open a request; returns its address."""
        async with self.database.write() as conn:
            await open_requests(conn, [request_row(run, request_id, manifest=MANIFEST, **changes)])
        return f"/api/v1/requests/{request_id}"

    async def events(self, run_id: str = "run_1") -> list[tuple[str, dict[str, Any]]]:
        """The run's events after the openings of its requests, as :meth:`put` writes them."""
        async with self.database.read() as conn:
            assert await events.chain_break(conn, run_id) is None
            stored = await events.after(conn, 0, run_id=run_id)
        return [(event.type, event.payload) for event in stored if event.type != "request.opened"]


MANIFEST = '{"name":"pay","description":"","kind":"local","parameters":{"type":"object"},"success":{},"effect":"once"}'


@contextlib.asynccontextmanager
async def desk_on(
    database: Database, settings: ApiSettings | None = None, *, gateway: Gateway | None = None
) -> AsyncIterator[Desk]:
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    app = create_app(database=database, gateway=gateway or Gateway(nowhere), settings=settings or ApiSettings())
    desk = Desk(database, httpx.ASGITransport(app=app), app.state.services)
    try:
        yield desk
    finally:
        for client in desk.clients:
            await client.aclose()
        await app.state.services.feed.close()
