"""The pages and the API without an engine: enough to test logins and access."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.datastructures import State
from support.api.api_server import serving
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.settings import ApiSettings
from turngate.runtime.temporal_client import data_converter
from turngate.store.access import users
from turngate.store.access.passwords import hash_password
from turngate.store.database import Database

PASSWORD = "correct horse battery"


@dataclass
class Door:
    """A server to log in to. ``state``: of its app."""

    url: str
    database: Database
    state: State

    def browser(self, **options: Any) -> httpx.AsyncClient:
        """A browser that sends what browsers send with forms; it keeps cookies and follows no redirects."""
        headers = {"Sec-Fetch-Site": "same-origin", "Accept": "text/html", **options.pop("headers", {})}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=30, **options)

    async def add(self, name: str, role: str = "operator", password: str = PASSWORD) -> users.User:
        password_hash = await hash_password(password)
        async with self.database.write() as conn:
            return await users.add(conn, users.User(name=name, role=role, password_hash=password_hash), by="boss")


async def log_in(browser: httpx.AsyncClient, name: str, password: str = PASSWORD) -> httpx.Response:
    return await browser.post("/login", data={"name": name, "password": password})


async def status(browser: httpx.AsyncClient) -> int:
    """The status code of a page that needs a login: 200 if the browser is logged in."""
    return (await browser.get("/api/v1/me")).status_code


def session_of(browser: httpx.AsyncClient) -> str | None:
    return browser.cookies.get(f"{SESSION_COOKIE}_{browser.base_url.port}")


@contextlib.asynccontextmanager
async def door_on(database: Database, port: int = 0, **settings: Any) -> AsyncIterator[Door]:
    """Serve it. ``port`` 0: any free one."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    app = create_app(database=database, gateway=Gateway(nowhere), settings=ApiSettings(**settings))
    async with serving(app, port) as url:
        yield Door(url, database, app.state)
