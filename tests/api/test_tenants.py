"""Two tenants at one listener: every route and stream, with one's ids and credentials at the other's host name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy import select
from sqlalchemy.engine import make_url
from support.api_server import session_for
from support.postgres_server import PostgresServer
from support.store_app import MANIFEST
from support.stored_requests import live_run, request_row
from support.users import added
from temporalio.client import Client

from approvals_api.app import create_app
from approvals_api.gateway.client import Gateway
from approvals_api.http.hosts import HostApps
from approvals_api.settings import ApiSettings
from turngate.cli.api_server import ApiServer, listen
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.runtime.temporal_client import data_converter
from turngate.store.access import binding, people, tokens
from turngate.store.connection import Binding, bound_url
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.policy import grants
from turngate.store.requests import comments, requests
from turngate.store.tables import metadata
from turngate.wire.people import Memory, apart

MARKER = "zanzibar"
"""In every text of acme's, its ids too."""
WITHOUT_LOGIN = re.compile(r"/(livez|readyz|static/.*|login.*|logout|api/v1/openapi.*|api/v1/docs.*|manifest.*)?")
REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.SEE_OTHER}


@dataclass
class Tenant:
    name: str
    database: Database
    app: FastAPI
    token: str = ""
    cookies: dict[str, str] | None = None
    ids: dict[str, str] | None = None

    @property
    def host(self) -> str:
        return f"{self.name}.example.com"

    async def rows(self) -> dict[str, list[str]]:
        """Everything that is stored of it, but when its credentials were last seen."""
        async with self.database.read() as conn:
            return {
                name: sorted(repr(row) for row in (await conn.execute(select(table))).all())
                for name, table in metadata.tables.items()
                if name not in {"sessions", "api_tokens"}
            }


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
async def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Tenant, Tenant, str]]:
    """Acme with marked rows of every kind that a route shows, bolt with nothing but people, and the address of both."""
    names = ("acme", "bolt")
    with contextlib.ExitStack() as after:
        if request.param == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            databases = await _schemas(server.fresh_url(), names, after)
        else:
            directory = tmp_path_factory.mktemp("tenants")
            databases = [Database(f"sqlite:///{directory}/{name}.db") for name in names]
        nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
        tenants = []
        for name, database in zip(names, databases, strict=True):
            await database.migrate()
            app = create_app(database=database, gateway=Gateway(nowhere), settings=ApiSettings(host="0.0.0.0"))  # noqa: S104
            tenants.append(Tenant(name, database, app, cookies=await session_for(database, f"{name}-person")))
            async with database.write() as conn:
                tenants[-1].token = await tokens.issue_owner_token(conn, f"{name}-owner")
        acme, bolt = tenants
        acme.ids = await _plant(acme.database)
        listener = listen("127.0.0.1", 0)
        api = ApiServer(HostApps({each.host: each.app for each in tenants}), listener, grace_seconds=1)
        await api.start()
        yield acme, bolt, f"http://127.0.0.1:{listener.getsockname()[1]}"
        await api.stop()
        for database in databases:
            await database.close()


async def _schemas(url: str, names: tuple[str, ...], after: contextlib.ExitStack) -> list[Database]:
    bindings = [Binding(schema=f"routes_{name}", role=f"routes_{name}") for name in names]
    owner = Database(url)
    async with owner.write() as conn:
        for each in bindings:
            await binding.create(conn, each)
    await owner.close()

    def drop() -> None:
        where = make_url(url)
        with psycopg.connect(
            host=where.host, port=where.port, user="turngate", dbname=where.database, autocommit=True
        ) as connection:
            for each in bindings:
                connection.execute(f"DROP SCHEMA {each.schema} CASCADE".encode())
                connection.execute(f"DROP ROLE {each.role}".encode())

    after.callback(drop)
    return [Database(bound_url(url, each)) for each in bindings]


async def _plant(database: Database) -> dict[str, str]:
    """Store rows with the marker; return acme's ids by the names that routes' parameters have."""
    async with database.write() as conn:
        run = await live_run(conn, f"run_{MARKER}", task=f"task {MARKER}", started_by=MARKER)
        row = request_row(
            run,
            f"rq_{MARKER}",
            input=json.dumps({"note": MARKER}),
            manifest=MANIFEST,
            agent_words=MARKER,
            reason=MARKER,
        )
        await requests.insert_all(conn, [row])
        await comments.add(conn, run_id=run.id, request_id=row.id, author=MARKER, text=MARKER)
        wanted = WantedGrant(scope="everyone", max_uses=3, pattern=GrantPattern(tool="pay", fixed={"note": MARKER}))
        grant = await grants.create(conn, wanted, grants.Origin(created_by=MARKER, role="admin"), key="k")
        await events.append(conn, run.id, [("run_noted", {"text": MARKER})])
    return {
        "run_id": run.id,
        "request_id": row.id,
        "conversation_id": run.conversation_id,
        "grant_id": grant.id,
        "tool_call_id": row.tool_call_id,
        "message_id": run.input_message_id,
    }


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    """Return every method and path of an app."""
    pairs = set()
    for context in iter_route_contexts(app.routes):
        route: Any = context
        path = getattr(route, "path", None)
        pairs |= {(method, path) for method in (getattr(route, "methods", None) or ()) if path}
    return sorted(pairs - {pair for pair in pairs if pair[0] in {"HEAD", "OPTIONS"}})


def filled(path: str, ids: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: ids.get(match[1], MARKER), path)


async def answer(
    http: httpx.AsyncClient, method: str, url: str, headers: dict[str, str], cookies: dict[str, str] | None = None
) -> tuple[int, str]:
    """Return a status, the headers and the body of an answer; of a stream, what comes within a moment."""
    crumbs = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())} if cookies else {}
    request = http.build_request(method, url, headers={**headers, **crumbs}, json=None if method == "GET" else {})
    response = await http.send(request, stream=True)
    seen = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3 if "event-stream" in response.headers.get("content-type", "") else 30):
            async for piece in response.aiter_bytes():
                seen += piece
    await response.aclose()
    return response.status_code, f"{dict(response.headers)}{seen.decode(errors='replace')}"


async def test_no_route_leads_from_one_tenant_to_another(both: tuple[Tenant, Tenant, str]) -> None:
    """Every method of every route, with acme's ids at bolt's name: by acme's credentials refused, by bolt's not found.

    Nothing of acme's is in an answer, and nothing of it has changed afterwards. At its own name the same request shows it.
    """
    acme, bolt, url = both
    assert acme.ids is not None
    before = await acme.rows()
    routes = routes_of(bolt.app)
    assert len(routes) > 100
    own = 0
    wrong: list[tuple[str, str, str, int]] = []
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        for method, path in routes:
            target = filled(path, acme.ids)
            echo = MARKER in target  # a problem may name the id that it was asked for
            callers: dict[str, tuple[dict[str, str], dict[str, str] | None]] = {
                "acme's token": ({"Authorization": f"Bearer {acme.token}"}, None),
                "acme's session": ({"Origin": f"http://{bolt.host}"}, acme.cookies),
                "bolt's token": ({"Authorization": f"Bearer {bolt.token}"}, None),
                "bolt's session": ({"Origin": f"http://{bolt.host}"}, bolt.cookies),
            }
            for caller, (headers, cookies) in callers.items():
                status, text = await answer(http, method, target, {"Host": bolt.host, **headers}, cookies)
                without_echo = text
                for value in sorted({target, *acme.ids.values(), MARKER}, key=len, reverse=True) if echo else ():
                    without_echo = without_echo.replace(value, "", 1 if value == MARKER else -1)
                foreign = caller.startswith("acme") and status not in REFUSED and not WITHOUT_LOGIN.fullmatch(path)
                exists = caller.startswith("bolt") and echo and status < HTTPStatus.BAD_REQUEST and method == "GET"
                if MARKER in without_echo or foreign or (exists and status != HTTPStatus.SEE_OTHER):
                    wrong.append((caller, method, path, status))
        assert wrong == []
        assert await acme.rows() == before
        for method, path in routes:
            if method == "GET":
                target, headers = filled(path, acme.ids), {"Host": acme.host, "Authorization": f"Bearer {acme.token}"}
                own += MARKER in (await answer(http, method, target, headers))[1]
    assert own > 20, "the marker isn't where it should be seen, so its absence says nothing"


async def test_a_stream_carries_its_own_tenants_events(both: tuple[Tenant, Tenant, str]) -> None:
    """A watcher of bolt's events sees the next event of bolt's, and not acme's, which was stored before it."""
    acme, bolt, url = both
    seen = ""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http, asyncio.timeout(20):
        headers = {"Host": bolt.host, "Authorization": f"Bearer {bolt.token}"}
        async with http.stream("GET", "/api/v1/events", headers=headers) as response:
            assert response.status_code == HTTPStatus.OK
            for tenant, word in ((acme, MARKER), (bolt, "of bolt")):
                async with tenant.database.write() as conn:
                    await events.append(conn, events.SYSTEM, [("run_noted", {"text": word})])
            async for piece in response.aiter_text():
                seen += piece
                if "of bolt" in seen:
                    break
    assert MARKER not in seen


@pytest.mark.parametrize("host", ["", "127.0.0.1", "acme.example.com.evil.test", "example.com", "bolt"])
async def test_an_unknown_name_gets_421_and_names_no_tenant(both: tuple[Tenant, Tenant, str], host: str) -> None:
    """Nor do two names at once; a probe is answered at any name."""
    _acme, _bolt, url = both
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        refused = await http.get("/api/v1/runs", headers={"Host": host})
        assert refused.status_code == HTTPStatus.MISDIRECTED_REQUEST
        assert refused.headers["content-security-policy"]
        assert "example" not in refused.text
        assert (await http.get("/livez", headers={"Host": host})).status_code == HTTPStatus.OK
        assert (await http.get("/readyz", headers={"Host": host})).json()[
            "code"
        ] == "unavailable"  # Temporal is nowhere


async def test_a_session_is_a_cookie_of_one_host(both: tuple[Tenant, Tenant, str]) -> None:
    """No cookie has a domain, so a browser sends none to the next tenant's name."""
    _acme, bolt, url = both
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        page = await http.get("/", headers={"Host": bolt.host, "Accept": "text/html"})
    cookies = page.headers.get_list("set-cookie")
    assert [each for each in cookies if "domain=" in each.lower()] == []


async def test_people_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    """Each tenant shows its own Ann by name, and another tenant's only as the id that no one here knows."""
    apps, tokens_of, ids = {}, {}, {}
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    databases = {name: Database(f"sqlite:///{tmp_path}/{name}.db") for name in ("acme", "bolt")}
    for name, database in databases.items():
        await database.migrate()
        with apart(Memory()):
            async with database.write() as conn:
                await people.turn_on(conn, local_user="root")
            ids[name] = (await added(database, "Ann", "admin")).name
            async with database.write() as conn:
                token = tokens.NewToken(name="ann-laptop", scopes=["requests:read", "runs:all"], owner="Ann")
                tokens_of[name] = await tokens.issue(conn, token)
                await live_run(conn, f"run_of_{name}", started_by=ids[name])
                await live_run(conn, f"run_of_another_in_{name}", started_by=ids.get("acme", "root"))
        app = create_app(database=database, gateway=Gateway(nowhere), settings=ApiSettings(host="0.0.0.0"))  # noqa: S104
        apps[f"{name}.example.com"] = app
    assert ids["acme"] != ids["bolt"]
    everyone = httpx.ASGITransport(app=HostApps(apps))
    for name in ("acme", "bolt", "acme"):
        headers = {"Authorization": f"Bearer {tokens_of[name]}"}
        async with httpx.AsyncClient(
            transport=everyone, base_url=f"http://{name}.example.com", headers=headers
        ) as http:
            own = (await http.get(f"/api/v1/runs/run_of_{name}")).json()
            another = (await http.get(f"/api/v1/runs/run_of_another_in_{name}")).json()
        assert own["started_by"] == "Ann"
        assert another["started_by"] == ("Ann" if name == "acme" else ids["acme"])
    for database in databases.values():
        await database.close()
