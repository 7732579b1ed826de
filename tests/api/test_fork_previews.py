"""What a fork would do, before it starts: over HTTP, in the terminal and on its page, which starts it without a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from api.test_fork import approved, fetch, finished, request_of
from sqlalchemy import func, select
from support.api.api_server import Api, session_for, token_for
from support.engine.sub_agent_app import World, step, task
from support.pages.html_forms import PostedPage
from typer.testing import CliRunner

from turngate.approvals_api.app import create_app
from turngate.cli.main import app
from turngate.store.runs import runs
from turngate.store.tables import events


async def paid_asked_and_read(office: Api) -> dict[str, Any]:
    """Three steps: a payment, another one beside a log, a rejected one; the fork leaves after the first."""
    run = await office.start(
        task(
            step(("pay", {"cents": 1})),
            step(("pay", {"cents": 2}), ("read_log", {"chars": 5})),
            step(("pay", {"cents": 3})),
            step(("researcher", {"task": task(step(("pay", {"cents": 4})))})),
        )
    )
    await approved(office, run["id"])
    await approved(office, run["id"])
    assert (await office.decide(await request_of(office, run["id"]), "reject")).status_code == 200
    async with office.stack.database.read() as conn:
        stored = await runs.get(conn, run["id"])
    assert stored is not None
    await approved(office, (await office.stack.started_below(stored)).id)
    return await finished(office, run["id"])


@asynccontextmanager
async def browsing(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    services = api.stack.services
    pages = create_app(database=services.database, gateway=services.gateway, settings=services.settings)
    address = "http://127.0.0.1"
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(pages),
        base_url=address,
        headers={"Origin": address, "Sec-Fetch-Site": "same-origin"},
        cookies=await session_for(api.stack.database, "eve"),
    ) as browser:
        yield browser


async def test_a_plan_says_what_is_reused_and_what_may_run_again(
    office: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded results up to the step, effects that stay (a sub-agent's too), and the later calls, with those that happened."""
    run = await paid_asked_and_read(office)
    token = await token_for(office.stack.database, "cli", "runs:write", "runs:all")
    monkeypatch.setenv("TURNGATE_TOKEN", token["Authorization"].removeprefix("Bearer "))
    async with office.stack.database.read() as conn:
        before = (await conn.execute(select(func.count()).select_from(events))).scalar_one()
    plan = await fetch(office, f"/runs/{run['id']}/fork?step=1&agent=researcher&tools=pay")
    assert (plan["step"], plan["dry"], plan["messages"], plan["needs_admin"]) == (1, False, 3, False)
    assert [(each["tool_name"], each["decision"], each["result"]) for each in plan["reused"]] == [
        ("pay", "approved", "ok")
    ]
    assert plan["effects"] == [{"tool_name": "pay", "effect": "once", "calls": 3, "unknown": 0}]
    assert [(each["step"], each["tool_name"], each["result"], each["happened"]) for each in plan["again"]] == [
        (2, "pay", "ok", True),
        (2, "read_log", "ok", False),
        (3, "pay", "rejected", False),
        (4, "researcher", "ok", False),
    ]
    differs = {each["name"]: (each["was"], each["will_be"]) for each in plan["differences"]}
    assert differs["agent"] == ("agent", "researcher")
    assert differs["model"] == ("scripted:test", "scripted:acting")
    assert differs["tools"][1] == "pay"
    assert set(differs) == {"agent", "model", "instructions", "tools"}
    newest = await fetch(office, f"/runs/{run['id']}/fork")
    assert (newest["step"], newest["again"], newest["differences"]) == (5, [], [])

    summed = await fetch(office, f"/runs/{run['id']}/fork?step=1&summarise=true")
    assert (summed["messages"], summed["replaced"], summed["replaced_by"]) == (0, 3, "new_summary")
    assert (newest["replaced"], newest["replaced_by"]) == (0, None)

    for query, code in (("step=9", "no_such_step"), ("tools=nope", "unknown_tool"), ("agent=missing", "unknown_agent")):
        refused = await office.operator.get(f"/api/v1/runs/{run['id']}/fork?{query}")
        assert (refused.status_code, refused.json()["code"]) == (422, code)
    assert (await office.operator.get("/api/v1/runs/run_none/fork")).status_code == 404

    command = ["fork", run["id"], "--step", "1", "--url", office.url]
    result = await asyncio.to_thread(CliRunner().invoke, app, [*command, "--preview", "--policy", "rules.toml"])
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "pay 3 calls, once" in lines
    assert (
        'step 2 pay {"cents": 2} asked, approved, ok it has happened; if the model makes it again, it may happen twice'
        in lines
    )
    assert "policy → rules.toml" in lines
    result = await asyncio.to_thread(CliRunner().invoke, app, [*command, "--preview", "--summarise"])
    assert "the model reads a summary of the 3 messages of the past, which a model writes first" in result.stdout
    assert "calls of that past, none of which runs again: 1" in result.stdout
    assert (await asyncio.to_thread(CliRunner().invoke, app, command)).exit_code == 2  # no message
    async with office.stack.database.read() as conn:
        assert (await conn.execute(select(func.count()).select_from(events))).scalar_one() == before
    assert world.paid == [1, 2, 4]


@pytest.mark.exhaustive
async def test_the_page_looks_first_and_starts_by_a_button(office: Api) -> None:
    """Without a script, the run's page links it, "Look again" starts nothing, and a wrong tool is reported at its control."""
    run = await paid_asked_and_read(office)
    async with browsing(office) as browser:
        assert f'href="/runs/{run["id"]}/fork?step=1"' in (await browser.get(f"/runs/{run['id']}")).text
        path = f"/runs/{run['id']}/fork"
        page = (await browser.get(f"{path}?step=1")).text
        assert page.count("It has happened: a repeat may make it happen twice.") == 1
        assert "policy" not in PostedPage(page).form("fork").sent  # eve is no admin
        form = PostedPage(page).form("fork")
        typed = {**form.sent, "text": "once more", "tools": "pay, nope"}
        wrong = await browser.post(path, data=typed)
        assert (wrong.status_code, 'id="tools-complaint"' in wrong.text) == (422, True)
        again = await browser.post(path, data={**typed, "tools": "pay", "look": "yes"})
        assert (again.status_code, "→ <bdi lang translate=no>pay</bdi>" in again.text) == (200, True)
        assert (await browser.post(path, data={**typed, "step": "x", "tools": ""})).status_code == 422
        started = await browser.post(path, data={**typed, "tools": "pay, read_log"})
        assert started.status_code == 303, started.text
        fork = await fetch(office, started.headers["location"])
        assert (fork["forked_from_step"], fork["own"]["tools"], fork["started_by"]) == (1, ["pay", "read_log"], "eve")
        twice = await browser.post(path, data={**typed, "tools": "pay, read_log"})
        assert twice.headers["location"] == started.headers["location"]
        assert (await browser.get("/runs/run_none/fork")).status_code == 404
