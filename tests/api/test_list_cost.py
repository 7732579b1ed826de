"""What a list costs the database: as many statements for twenty rows as for five, whatever a row says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import httpx
import pytest
from sqlalchemy import update
from support.api.api_server import pay, session_for
from support.pages.html_forms import PostedPage
from support.stores.sql_census import SqlCensus
from support.stores.stored_requests import live_run, open_requests, request_row
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.origins.origin import Origin, Origins
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import claims, comments
from turngate.store.runs import runs
from turngate.store.tables import runs as runs_table

ORIGINS = Origins(items=(Origin(at="/cents", doubt="nowhere"),)).model_dump_json(exclude_defaults=True)
PATHS = (
    "/", "/?order=age", "/?status=all", "/?search=pay", "/?group=run", "/?group=step", "/?group=alike", "/runs",
    "/api/v1/requests?limit=200", "/api/v1/requests?limit=200&order=age", "/api/v1/requests?limit=200&status=all",
    "/api/v1/requests?limit=200&search=pay", "/api/v1/runs?limit=200", "/api/v1/runs?limit=200&search=go&agent=agent",
    "/api/v1/stuck-runs?limit=200&still_for_seconds=0", "/runs?search=go&agent=agent",
)  # fmt: skip
"""What pages, the terminal's screens and the commands list. Each of these reads one page of the API."""

MANIFEST = pay.manifest.model_dump_json()


@pytest.fixture
async def browser(client: Client, database: Database) -> AsyncIterator[httpx.AsyncClient]:
    # Without its lifespan, whose loops have statements of their own.
    app = create_app(database=database, gateway=Gateway(client), settings=ApiSettings())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://127.0.0.1",
        cookies=await session_for(database, "ann"),
        headers={"Sec-Fetch-Site": "same-origin"},
    ) as browser:
        yield browser


async def plant(database: Database, numbers: range) -> None:
    """Runs with a request each, claimed, with a secret and a comment, every third of a sub-agent."""
    async with database.write() as conn:
        above = None
        for number in numbers:
            if number % 3 == 0:
                above = await live_run(conn, f"run_{number}")
                run = above
            else:
                child = {} if above is None else {"parent_run_id": above.id, "parent_tool_call_id": "c1"}
                run = await live_run(conn, f"run_{number}", path=f"agent/{number}", **child)
            await open_requests(
                conn,
                [
                    request_row(
                        run,
                        f"rq_{number}",
                        manifest=MANIFEST,
                        preview_kind="text",
                        preview="What it does",
                        origins=ORIGINS,
                        masked_input='{"cents": "⟦secret 1⟧"}',
                    )
                ],
            )
            await events.append(conn, run.id, [("run.started", {})])
            await claims.claim(conn, f"rq_{number}", by="ann", seconds=600, take_over=False)
            await comments.add(conn, run_id=run.id, request_id=f"rq_{number}", author="ann", text="Looks right.")
        # Long enough ago that a run without a workflow counts as stalled.
        await conn.execute(update(runs_table).values(created_at="2026-01-01T00:00:00.000000+00:00"))


async def statements(database: Database, row: str, ask: Callable[[], Awaitable[httpx.Response]]) -> list[str]:
    await ask()  # what a process keeps in memory
    with SqlCensus(database) as census:
        answer = await ask()
    assert answer.status_code == httpx.codes.OK, answer.text
    assert row in answer.text
    return [statement for each in census.transactions for statement in each.statements]


async def of_lists(browser: httpx.AsyncClient, database: Database) -> dict[str, list[str]]:
    return {path: await statements(database, "run_3", partial(browser.get, path)) for path in PATHS}


async def of_bulk_page(browser: httpx.AsyncClient, database: Database, rows: int) -> list[str]:
    inbox = PostedPage((await browser.get("/")).text)
    token = next(each.sent["csrf_token"] for each in inbox.forms if "csrf_token" in each.sent)
    picked = {f"pick-rq_{number}": "d" for number in range(rows)}
    form = {"csrf_token": token, **picked}
    return await statements(database, "rq_3", partial(browser.post, "/requests/bulk", data=form))


@pytest.mark.unencrypted  # its searches find nothing then
async def test_a_longer_list_takes_no_more_statements(browser: httpx.AsyncClient, database: Database) -> None:
    """Twenty rows take exactly the statements that five take, on pages and in the API."""
    await plant(database, range(5))
    few = await of_lists(browser, database)
    await plant(database, range(5, 20))
    assert await of_lists(browser, database) == few


async def test_more_picked_requests_take_no_more_statements(browser: httpx.AsyncClient, database: Database) -> None:
    """The page on which several requests are reviewed takes for twenty of them as many statements as for five."""
    await plant(database, range(20))
    few = await of_bulk_page(browser, database, 5)
    assert len(await of_bulk_page(browser, database, 20)) == len(few)


async def test_the_way_through_longer_groups_takes_no_more_statements(
    browser: httpx.AsyncClient, database: Database
) -> None:
    """A request's page knows the next request of a list in groups by as many statements for twenty as for five."""
    await plant(database, range(5))
    page = partial(browser.get, "/requests/rq_0?list=group%3Dalike")
    few = await statements(database, "rq_1", page)
    await plant(database, range(5, 20))
    assert await statements(database, "rq_1", page) == few


async def test_a_longer_conversation_takes_no_more_statements(browser: httpx.AsyncClient, database: Database) -> None:
    """The page of a conversation of nine runs takes exactly the statements that one of three takes."""
    counts = []
    for talk, length in (("short", 3), ("long", 9)):
        async with database.write() as conn:
            run = await live_run(conn, f"{talk}_0")
            for number in range(1, length):
                await runs.end(conn, run.id, runs.Ending(status="interrupted"))
                run = await live_run(
                    conn, f"{talk}_{number}", conversation_id=run.conversation_id, after=run.head_message_id
                )
        page = partial(browser.get, f"/runs/{run.id}/conversation")
        counts.append(len(await statements(database, run.id, page)))
    assert counts[0] == counts[1]
