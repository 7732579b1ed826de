"""Health on the real engine: what is there, what is missing, and what is away."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.api_server import Api, api_on, serving, session_for, token_for
from support.engine.stack import until
from temporalio.client import Client

from turngate.approvals_api import health
from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.runtime import embedded_temporal
from turngate.store.database import Database

PATH = "/api/v1/health"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no defect."""
    monkeypatch.setattr(health, "CHECK_SECONDS", 60.0)


async def checks(api: Api) -> dict[str, dict[str, Any]]:
    """The worst check of each name."""
    answer = await api.operator.get(PATH)
    assert answer.status_code == 200, answer.text
    return {each["name"]: each for each in reversed(answer.json()["checks"])}


async def test_a_whole_installation_is_in_order(idle: Api) -> None:
    """Each part is checked, the worker is listed, and nothing is wrong."""
    async with idle.stack.worker():

        async def polled() -> dict[str, Any] | None:
            view = (await idle.operator.get(PATH)).json()
            return view if view["workers"] and view["state"] == "ok" else None

        view = await until(polled, "worker that polls, and nothing wrong")
        assert {each["name"] for each in view["checks"]} == {
            "store", "temporal", "search_attributes", "workers", "runs", "notifications", "retention", "clock",
        }  # fmt: skip
        [worker] = view["workers"]
        assert (worker["task_queue"], worker["build"], worker["gets_new_runs"]) == (idle.stack.task_queue, None, True)


async def test_a_missing_worker_is_named_with_its_fix(idle: Api) -> None:
    """First what is wrong: no worker polls the agent's queue, and a run waits for one."""
    started = await idle.start("hello")

    async def seen() -> dict[str, Any] | None:
        view = (await idle.operator.get(PATH)).json()
        return view if view["waits"] else None

    view = await until(seen, "run that waits")
    assert view["state"] == "wrong"
    first = view["checks"][0]
    assert (first["name"], first["command"]) == ("workers", "turngate worker APP")
    assert idle.stack.task_queue in first["says"]
    assert "the agent agent needs" in first["says"]
    assert (view["live"], [(each["kind"], each["runs"], each["run_id"]) for each in view["waits"]]) == (
        1,
        [("no_worker", 1, started["id"])],
    )
    assert (await checks(idle))["runs"]["command"] == f"turngate explain {started['id']}"
    await idle.stack.client.get_workflow_handle(started["id"]).terminate()


async def test_a_worker_that_stops_is_named(idle: Api) -> None:
    """At once, by what Temporal knows of it, although its last poll still counts for a minute."""
    async with idle.stack.worker():

        async def polled() -> bool:
            return bool((await idle.operator.get(PATH)).json()["workers"])

        await until(polled, "worker that polls")

    async def named() -> list[dict[str, Any]] | None:
        lines = [each for each in (await idle.operator.get(PATH)).json()["checks"] if each["name"] == "workers"]
        return lines if len(lines) == 2 else None

    missing, stopping = await until(named, "worker that is stopping")
    assert (missing["state"], missing["command"]) == ("wrong", "turngate worker APP")
    assert missing["says"].endswith("Its last one is stopping.")
    assert (stopping["state"], stopping["command"]) == ("warning", "turngate runs --stuck")
    assert idle.stack.client.identity in stopping["says"]


async def test_an_api_that_drains_says_so(api: Api) -> None:
    """To whom it still answers, with what to do."""
    database = api.stack.database
    app = create_app(database=database, gateway=Gateway(api.stack.client), settings=ApiSettings())
    reader = await token_for(database, f"eye-{secrets.token_hex(4)}", "requests:read")
    async with serving(app) as url, httpx.AsyncClient(base_url=url, headers=reader, timeout=60) as client:
        for draining, expected in ((False, None), (True, ("warning", "turngate api APP"))):
            app.state.draining = draining
            check = {each["name"]: each for each in (await client.get(PATH)).json()["checks"]}.get("api")
            assert (check and (check["state"], check["command"])) == expected


async def test_health_is_for_those_who_see_every_run(api: Api) -> None:
    """A stranger and an agent's token learn nothing; a reader's token does."""
    assert (await api.stranger.get(PATH)).status_code == 401
    assert (await api.agent.get(PATH)).status_code == 403
    reader = await token_for(api.stack.database, f"eye-{secrets.token_hex(4)}", "requests:read")
    assert (await api.stranger.get(PATH, headers=reader)).status_code == 200


async def test_a_temporal_that_is_away_is_one_line(cut_off: Api) -> None:
    """The other checks are made as far as they can, and end."""
    worst = await checks(cut_off)
    assert (worst["temporal"]["state"], worst["temporal"]["command"]) == ("wrong", "turngate doctor")
    assert worst["store"]["state"] == "ok"
    assert not {"workers", "builds", "runs"} & worst.keys()


async def test_a_check_that_hangs_is_a_finding(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is there, and the others' results."""
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.0)
    view = await health.examine(api.stack.services)
    assert {each.state for each in view.checks} <= {"warning", "ok"}
    assert view.checks[0].says == "This check took longer than 0 s, so its result is unknown."


async def test_the_page_says_so_when_the_store_is_away(client: Client, sqlite: Database) -> None:
    """No one can be logged in then: the page has what /readyz tells anyone, and no more."""
    away = Database(f"postgresql://u@127.0.0.1:{embedded_temporal.choose_port()}/x")
    app = create_app(database=away, gateway=Gateway(client), settings=ApiSettings())
    cookies = await session_for(sqlite, "ada")
    try:
        async with serving(app) as url, httpx.AsyncClient(base_url=url, cookies=cookies, trust_env=False) as browser:
            page = await browser.get("/health", timeout=30)
    finally:
        await away.close()
    assert page.status_code == 200
    assert "The database cannot be reached" in page.text
    assert "Temporal answers." in page.text
    assert "Disk" not in page.text


async def test_the_page_shows_what_the_api_says(idle: Api) -> None:
    """The same checks, for a browser that is logged in."""
    app = create_app(
        database=idle.stack.database, gateway=idle.stack.services.gateway, settings=idle.stack.services.settings
    )
    async with serving(app) as url:
        cookies = await session_for(idle.stack.database, f"ada-{secrets.token_hex(3)}")
        async with httpx.AsyncClient(base_url=url, cookies=cookies, trust_env=False) as browser:
            page = await browser.get("/health", timeout=30)
    assert page.status_code == 200
    assert f"No worker polls the task queue &#39;{idle.stack.task_queue}&#39;" in page.text
    assert "<code><bdi lang translate=no>turngate worker APP</bdi></code>" in page.text


async def test_disk_is_checked_where_the_store_is_a_file(api: Api, tmp_path: Path) -> None:
    """On a server of its own it can't be seen from here."""
    services = replace(api.stack.services, settings=replace(api.stack.services.settings, disk=tmp_path))
    assert "disk" in {each.name for each in (await health.examine(services)).checks}
    async with api_on(api.stack, api.stack.services.gateway) as other:
        assert "disk" not in await checks(other)
