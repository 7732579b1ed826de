"""What a list costs the database: as many statements for fifty rows as for five, whatever a row says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from support.api_server import session_for
from support.sql_census import SqlCensus
from support.stored_requests import live_run, request_row
from temporalio.client import Client

from approvals_api.app import create_app
from approvals_api.gateway.client import Gateway
from approvals_api.settings import ApiSettings
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import claims, comments, requests

PATHS = (
    "/",
    "/?status=all",
    "/runs",
    "/api/v1/requests?limit=50",
    "/api/v1/requests?status=all&limit=50",
    "/api/v1/runs",
)


@pytest.fixture
async def browser(client: Client, database: Database) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(database=database, gateway=Gateway(client), settings=ApiSettings())
    cookies = await session_for(database, "ann")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", cookies=cookies) as browser,
    ):
        yield browser


async def plant(database: Database, numbers: range) -> None:
    """Runs with a request each, claimed and with a comment, every third of a sub-agent."""
    async with database.write() as conn:
        above = None
        for number in numbers:
            if number % 3 == 0:
                above = await live_run(conn, f"run_{number}")
                run = above
            else:
                child = {} if above is None else {"parent_run_id": above.id, "parent_tool_call_id": "c1"}
                run = await live_run(conn, f"run_{number}", path=f"agent/{number}", **child)
            await requests.insert_all(
                conn, [request_row(run, f"rq_{number}", preview_kind="text", preview="What it does")]
            )
            await events.append(conn, run.id, [("run.started", {})])
            await claims.claim(conn, f"rq_{number}", by="ann", seconds=600, take_over=False)
            await comments.add(conn, run_id=run.id, request_id=f"rq_{number}", author="ann", text="Looks right.")


async def statements(browser: httpx.AsyncClient, database: Database, path: str, row: str) -> list[str]:
    await browser.get(path)  # what a process keeps in memory
    with SqlCensus(database) as census:
        answer = await browser.get(path)
    assert answer.status_code == httpx.codes.OK, answer.text
    assert row in answer.text
    return [statement for each in census.transactions for statement in each.statements]


async def test_a_longer_list_takes_no_more_statements(browser: httpx.AsyncClient, database: Database) -> None:
    """Fifty rows take exactly the statements that five take, on pages and in the API."""
    await plant(database, range(5))
    few = {path: await statements(browser, database, path, "run_3") for path in PATHS}
    await plant(database, range(5, 50))
    assert {path: await statements(browser, database, path, "run_3") for path in PATHS} == few
