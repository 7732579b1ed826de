"""The playground of ``turngate dev``: what would happen to a call, without anything happening."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from support.api.api_server import token_for
from support.api.playground import ORIGIN, POLICY, RAN, Served, playground_on, refund
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.tools.known_tools import known
from turngate.store.database import Database
from turngate.store.policy import policies

HOSTILE = '<script>alert(1)</script>"\u202e'


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    RAN.clear()
    database = Database(f"sqlite:///{tmp_path}/store.db")
    await database.migrate()
    async with playground_on(database) as on:
        yield on
    await database.close()


async def rows(database: Database) -> dict[str, int]:
    """Every table of the store, with how many rows it has."""
    async with database.read() as conn:
        names = [row[0] for row in await conn.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'"))]
        return {name: (await conn.execute(text(f"SELECT count(*) FROM {name}"))).scalar_one() for name in names}  # noqa: S608


async def page_of(served: Served, tool: str = "refund") -> str:
    answer = await served.client.get("/playground", params={"agent": "support", "tool": tool})
    assert answer.status_code == 200, answer.text
    return answer.text


async def tried(served: Served, tool: str = "refund", **typed: str) -> httpx.Response:
    """Send the form of a tool as a browser does."""
    page = await page_of(served, tool)
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert token is not None
    content = {"csrf_token": token.group(1), "agent": "support", "tool": tool, "action": "json", **typed}
    return await served.client.post("/playground", data=content, headers={"origin": ORIGIN})


async def test_a_call_that_asks_is_shown_as_people_would_see_it(served: Served) -> None:
    """Verdict, rule, reason, preview, arguments, forms and digest by the request page's own template; its controls are off."""
    before = await rows(served.database)
    answer = await tried(served, json='{"order_id": "A-1", "amount": 75}', task="Refund A-1")
    assert answer.status_code == 200
    assert (
        'verdict-ask">ask</span> by <code><bdi lang translate=no>large</bdi></code>: <bdi lang translate=no>Money leaves.</bdi>'
        in answer.text
    )
    assert "Dear customer of A-1: 75 &lt;b&gt;euros&lt;/b&gt;" in answer.text
    request = answer.text.partition('<fieldset class="bare" disabled>')[2]
    for part in ("The exact arguments", "A-1", "Why it waits", "Approve as edited", "digest", "Refund A-1"):
        assert part in request
    [digest, again] = re.findall(r"[0-9a-f]{64}", re.sub(r"value=\"[^\"]*\"", "", answer.text))
    assert digest == again
    assert await rows(served.database) == before
    assert RAN == []


@pytest.mark.parametrize(
    ("tool", "raw", "says"),
    [
        ("look", "{}", ['verdict-allow">allow</span> by <code>', ">tool:ask</bdi></code>", "no one would be asked"]),
        ("refund", '{"order_id": "B", "amount": 1}', ['verdict-deny">deny', "none-for-b", "B is gone.", "the default</p>"]),
        ("refund", '{"order_id": "A", "amount": 0}', ["The call doesn&#39;t get as far as a rule", "input_validation_error"]),
        ("refund", "[", ["get as far as a rule", "input_validation_error"]),
    ],
)  # fmt: skip
async def test_a_call_that_no_one_is_asked_about_says_what_happens(
    served: Served, tool: str, raw: str, says: list[str]
) -> None:
    """Allowed, denied, or closed before any rule, with what the model would read; no handler runs, nothing is stored."""
    before = await rows(served.database)
    page = (await tried(served, tool, json=raw)).text.replace("doesn't", "doesn&#39;t")
    assert [each for each in says if each not in page] == [], page
    assert "What people would see" not in page
    assert (await rows(served.database), RAN) == (before, [])


async def test_the_policy_page_shows_what_a_call_leaves_out(served: Served) -> None:
    """As the request's page would, by the schema that the worker published."""
    async with served.database.write() as conn:
        await policies.publish(conn, task_queue="q", policy=POLICY, file="", tools=[known(refund)])
    page = await served.client.get("/policy", params={"tool": "refund", "args": '{"order_id": "B"}'})
    assert 'verdict-deny">deny' in page.text
    assert "left out by the agent: the default</p>" in page.text


async def test_the_form_has_the_fields_of_the_schema(served: Served) -> None:
    """As an edit's form does, filled by the keyboard alone; what doesn't fit is marked beside its field and nothing is tried."""
    page = await page_of(served)
    assert re.findall(r'<label for="(try-\d+)"><code><bdi lang translate=no>(\w+)', page) == [
        ("try-0", "order_id"),
        ("try-1", "amount"),
        ("try-2", "note"),
    ]
    filled = {"action": "form", "try-0": "A-7", "try-2-state": "absent", "try-2": ""}
    fitting = await tried(served, **filled, **{"try-1": "3"})
    assert "Dear customer of A-7: 3" in fitting.text
    wrong = await tried(served, **filled, **{"try-1": "three"})
    assert "What would happen" not in wrong.text
    assert 'aria-invalid="true"' in wrong.text


async def test_i13_an_agents_token_and_other_servers_have_no_playground(served: Served) -> None:
    """Only people who may decide reach it, and only `turngate dev` serves it. A form from elsewhere is refused."""
    token = await token_for(served.database, "agent", "runs:write")
    transport = httpx.ASGITransport(served.app)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=token) as agent:
        assert (await agent.get("/playground")).status_code == 403
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as stranger:
        assert (await stranger.get("/playground")).status_code in {303, 401}
    form = {"agent": "support", "tool": "look", "action": "json", "json": "{}"}
    elsewhere = await served.client.post("/playground", data=form, headers={"origin": "http://evil.test"})
    forged = await served.client.post("/playground", data={**form, "csrf_token": "x"}, headers={"origin": ORIGIN})
    assert (elsewhere.status_code, forged.status_code) == (403, 403)
    assert "verdict-" not in elsewhere.text + forged.text


async def test_only_dev_has_a_playground(served: Served) -> None:
    """Every other server has neither the page nor a link to it."""
    assert 'href="/playground"' in (await served.client.get("/")).text
    gateway = Gateway(await Client.connect("127.0.0.1:1", lazy=True))
    app = create_app(database=served.database, gateway=gateway, settings=ApiSettings())
    cookies = dict(served.client.cookies)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN, cookies=cookies) as other:
        assert (await other.get("/playground")).status_code == 404
        assert "laygroun" not in (await other.get("/")).text


async def test_an_error_of_the_app_and_what_is_typed_are_escaped(served: Served) -> None:
    """The error is shown above the former version's tools. Neither it nor an argument becomes a part of the page."""
    served.playground.error = f"shop:app cannot be loaded: {HOSTILE}"
    answer = await tried(served, json='{"order_id": ' + '"<script>alert(1)</script>"' + ', "amount": 5}', task=HOSTILE)
    assert "can't be loaded as it is now" in answer.text
    assert "cannot be loaded: &lt;script&gt;" in answer.text
    assert "<script>alert" not in answer.text
    served.playground.tools = {}
    assert "former version" not in (await page_of(served)).partition("load-error")[2].partition("<pre")[0]
