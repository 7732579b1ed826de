"""Two tenants of one API process and one worker process, as their administrator sets them up."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy.engine import make_url
from support.engine import until
from support.postgres_server import PostgresServer
from support.terminal_process import Background, turngate

from turngate.runtime.embedded_temporal import EmbeddedTemporal, choose_port

APP = '''
from pydantic import BaseModel
from turngate import Agent, App, Toolkit, tool

class Words(BaseModel):
    text: str

@tool(effect="once", ask=True)
async def send(params: Words) -> Words:
    """Send words."""
    return params

app = App(agents=[Agent(name="clerk", instructions="Send.", toolkit=Toolkit.of(send), model="scripted:clerk.yaml")])
'''
SCRIPT = """
responses:
  - text: I will send it.
    calls: [{tool: send, input: {text: hello}}]
  - text: Done.
"""
KEY = "the-same-key"


@pytest.mark.exhaustive  # tests/api/test_tenants.py covers the routes, and unit tests the rest
@pytest.mark.parametrize("store", ["postgresql", "sqlite"])
async def test_two_tenants_share_processes_and_nothing_else(  # noqa: PLR0915 - one story
    store: str, request: pytest.FixtureRequest, temporal: EmbeddedTemporal, tmp_path: Path
) -> None:
    """Created by the command; the same agent, repeat key and text in both; each decides its own run, which continues.

    Neither sees the other's run, request or token, and the answer to the same key is each tenant's own run.
    """
    unique = secrets.token_hex(3)
    names = [f"acme-{unique}", f"bolt-{unique}"]
    (tmp_path / "my_app.py").write_text(APP)
    (tmp_path / "clerk.yaml").write_text(SCRIPT)
    (tmp_path / "tenants.toml").write_text("".join(f'[{name}]\nhosts = ["{name}.test"]\n' for name in names))
    port = choose_port()
    environment = {
        "TURNGATE_TENANTS": str(tmp_path / "tenants.toml"),
        "TURNGATE_DATA_DIR": str(tmp_path / "state"),
        "TURNGATE_API_PORT": str(port),
        "TEMPORAL_ADDRESS": temporal.address,
    }
    if store == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.fresh_url()
        request.addfinalizer(_dropping(url, [f"tenant_{name.replace('-', '_')}" for name in names]))
        environment["TURNGATE_DATABASE_URL"] = url.replace("+psycopg", "")
    created = turngate("tenants", "create", cwd=tmp_path, **environment)
    assert created.returncode == 0, created.stderr
    again = turngate("tenants", "create", cwd=tmp_path, **environment)
    for name in names:
        assert f"{name}: search attributes: added agent, " in created.stdout
        assert f"{name}: search attributes: all there" in again.stdout
    checked = turngate("tenants", "check", cwd=tmp_path, **environment)
    assert checked.stdout.splitlines() == [f"{name}: good" for name in names]

    api = Background("api", cwd=tmp_path, **environment)
    request.addfinalizer(api.stop)
    worker = Background("worker", "my_app:app", cwd=tmp_path, **environment)
    request.addfinalizer(worker.stop)
    api.wait_for(names[1])
    worker.wait_for(names[1])
    url = f"http://127.0.0.1:{port}"
    tokens = {name: (tmp_path / "state" / "tenants" / name / "token").read_text().strip() for name in names}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:

        async def ask(name: str, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
            headers = {"Host": f"{name}.test", "Authorization": f"Bearer {token or tokens[name]}"}
            if path == "/runs":
                headers["Idempotency-Key"] = KEY
            return await http.request(method, f"/api/v1{path}", headers=headers, **more)

        runs = {}
        for name in names:
            started = await ask(name, "POST", "/runs", json={"agent": "clerk", "input": f"only {name} knows"})
            assert started.status_code == HTTPStatus.CREATED, started.text
            again = await ask(name, "POST", "/runs", json={"agent": "clerk", "input": f"only {name} knows"})
            assert again.json()["id"] == started.json()["id"]
            runs[name] = started.json()["id"]
        assert len(set(runs.values())) == len(names)

        for name, other in (names, names[::-1]):

            async def pending(name: str = name) -> dict[str, Any] | None:
                items = (await ask(name, "GET", "/requests")).json()["items"]
                return items[0] if items else None

            item = await until(pending, "a request")
            detail = (await ask(name, "GET", f"/requests/{item['id']}")).text
            assert f"only {name} knows" in detail
            assert other not in detail
            order = {"decision": "approve", "digest": item["digest"]}
            decisions = f"/requests/{item['id']}/decisions"
            at_other = await ask(other, "POST", decisions, json=order)
            assert at_other.status_code == HTTPStatus.NOT_FOUND, at_other.text
            stolen = await ask(name, "POST", decisions, token=tokens[other], json=order)
            assert stolen.status_code == HTTPStatus.UNAUTHORIZED
            assert (await ask(name, "POST", decisions, json=order)).status_code < HTTPStatus.BAD_REQUEST

            async def ended(name: str = name) -> bool | None:
                return (await ask(name, "GET", f"/runs/{runs[name]}")).json()["status"] == "completed"

            await until(ended, "the end of the run")
            assert (await ask(other, "GET", f"/runs/{runs[name]}")).status_code == HTTPStatus.NOT_FOUND
            listed = (await ask(name, "GET", "/runs")).json()["items"]
            assert [each["id"] for each in listed] == [runs[name]]
    nameless = turngate("token", "list", cwd=tmp_path, **environment)
    assert nameless.returncode == 2
    assert "--tenant NAME" in nameless.stderr


def _dropping(url: str, names: list[str]) -> Callable[[], None]:
    def drop() -> None:
        where = make_url(url)
        with psycopg.connect(
            host=where.host, port=where.port, user="turngate", dbname=where.database, autocommit=True
        ) as connection:
            for name in names:
                connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
                connection.execute(f"DROP ROLE IF EXISTS {name}".encode())

    return drop
