"""Runs under a filter: the same by API, page, terminal and client; and stalled runs by what they wait for."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import httpx
import pytest
from sqlalchemy import text, update
from support.api.api_server import serving
from support.api.store_app import Desk, desk_on
from support.stores.stored_requests import live_run, open_requests, request_row
from support.stores.users import added
from temporalio.client import Client
from typer.testing import CliRunner, Result

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.gateway.workflow_status import WorkflowLook
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as commands
from turngate.client import SyncTurngateClient
from turngate.domain.runs.failure_classes import MEANINGS, FailureClass
from turngate.domain.runs.run_filter import RunFilter
from turngate.store.access import tokens
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.store.tables import runs as runs_table
from turngate.text.run_words import WAITS_FOR, by_cause
from turngate.wire.explanation import StuckRun, WaitKind

LONG_AGO = "2026-01-01T00:00:00.000000+00:00"
CREDENTIAL = "ghp_" + "a1B2" * 9
RUNS: dict[str, dict[str, Any]] = {
    "run_a": {"task": "Refund order 1042 of Ada"},
    "run_b": {"task": "Write the 50% report", "agent": "writer"},
    "run_c": {"task": "Refund order 7", "agent": "writer"},
    "run_d": {"task": f"Log in with {CREDENTIAL} and look"},
    "run_e": {"task": "Look", "started_by": "grace"},
}
ENDINGS = {
    "run_b": runs.Ending(status="failed", error_class="step_cap", reason="The run reached its limit"),
    "run_c": runs.Ending(status="failed", error_class="KeyError", reason="'order'"),
    "run_e": runs.Ending(status="interrupted", by="grace"),
}
FILTERS = {
    "": "edcba",
    "status=running": "da",
    "status=failed": "cb",
    "status=interrupted": "e",
    "agent=writer": "cb",
    "agent=other": "",
    "search=refund": "ca",
    "search=refund+1042": "a",
    "search=ADA": "a",
    "search=50%25": "b",
    "search=_": "edcba",
    "search=grace": "e",
    "search=run_d": "d",
    "search=limit": "b",
    f"search={CREDENTIAL}": "",
    "cause=budget": "b",
    "cause=bug": "c",
    "cause=model_refused": "",
    "agent=writer&cause=bug&search=order": "c",
    "status=running&cause=bug": "",
}
"""Query → the runs, newest first."""


async def plant(database: Database) -> None:
    async with database.write() as conn:
        for place, (run_id, run) in enumerate(RUNS.items()):
            await live_run(conn, run_id, **run)
            at = f"2026-01-01T00:00:0{place}.000000+00:00"
            await conn.execute(update(runs_table).where(runs_table.c.id == run_id).values(created_at=at))
        for run_id, ending in ENDINGS.items():
            await runs.end(conn, run_id, ending)


async def listed(client: httpx.AsyncClient, query: str, *, limit: int) -> str:
    """The last letters of the ids of every page."""
    seen, cursor = "", ""
    while True:
        answer = await client.get(f"/api/v1/runs?{query}&limit={limit}{cursor}")
        assert answer.status_code == 200, answer.text
        seen += "".join(each["id"][-1] for each in answer.json()["items"])
        if answer.json()["next_cursor"] is None:
            return seen
        cursor = f"&cursor={answer.json()['next_cursor']}"


@pytest.mark.unencrypted
async def test_each_filter_lists_its_runs_over_all_pages(database: Database) -> None:
    """One page or many, on both databases. A secret that people can't see can't be found."""
    await plant(database)
    async with desk_on(database) as desk:
        ann = await desk.person("ann")
        for query, expected in FILTERS.items():
            assert await listed(ann, query, limit=200) == expected, query
            assert await listed(ann, query, limit=1) == expected, query
        assert (await ann.get("/api/v1/runs?cause=nothing")).status_code == 422


@pytest.fixture
async def desk(sqlite: Database) -> AsyncIterator[Desk]:
    await plant(sqlite)
    async with desk_on(sqlite) as desk:
        yield desk


@pytest.mark.unencrypted
async def test_the_page_has_the_same_filters(desk: Desk) -> None:
    """The form keeps what was chosen, a tab keeps the other conditions, and a secret is neither found nor shown."""
    ann = await desk.person("ann")
    for query, expected in FILTERS.items():
        page = (await ann.get(f"/runs?{query}")).text
        assert [run_id for run_id in sorted(RUNS, reverse=True) if f'href="/runs/{run_id}"' in page] == [
            f"run_{each}" for each in expected
        ], query
    page = html.unescape((await ann.get("/runs?status=failed&agent=writer&cause=bug&search=order+%22%3E")).text)
    assert 'href="/runs?status=completed&search=order+%22%3E&agent=writer&cause=bug"' in page
    assert '<option value="bug" selected>' in page
    assert "No runs here." in page
    empty = await ann.get("/runs?status=all&search=&agent=&cause=")
    assert all(f'href="/runs/{run_id}"' in empty.text for run_id in RUNS)
    assert (await ann.get("/runs?cause=nothing")).status_code == 422


def test_every_stored_class_has_a_cause() -> None:
    """A failed run is listed under exactly one cause."""
    assert {meaning.failure for meaning in MEANINGS.values()} == set(get_args(FailureClass))


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (RunFilter(agent="writer"), "ix_runs_agent"),
        (RunFilter(status="failed"), "ix_runs_stopped"),
        (RunFilter(status="interrupted"), "ix_runs_stopped"),
        (RunFilter(cause="budget"), "ix_runs_stopped"),
        (RunFilter(cause="bug"), "ix_runs_stopped"),
        (RunFilter(), "ix_runs_created_at_id"),
    ],
    ids=str,
)
async def test_a_filter_reads_an_index_not_every_run(database: Database, wanted: RunFilter, index: str) -> None:
    """Runs of an agent, and runs that failed, are found by an index in their order, without a sort."""
    await plant(database)
    async with database.write() as conn:
        dialect = await conn.run_sync(lambda sync: sync.dialect)
        query = runs.page_query(wanted, limit=50).compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        if dialect.name == "postgresql":  # so few rows are read faster without an index
            await conn.execute(text("SET LOCAL enable_seqscan = off"))
            await conn.execute(text("SET LOCAL enable_bitmapscan = off"))
        explain = "EXPLAIN QUERY PLAN" if dialect.name == "sqlite" else "EXPLAIN"
        plan = " ".join(str(row) for row in await conn.execute(text(f"{explain} {query}")))
    assert index in plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


# Stalled runs


class Looks(Gateway):
    """A Temporal that says of each workflow what the run's task names."""

    def __init__(self, client: Client, database: Database) -> None:
        super().__init__(client)
        self.database = database

    async def look(self, run_id: str) -> WorkflowLook:
        async with self.database.read() as conn:
            run = await runs.get(conn, run_id)
        assert run is not None
        return {
            "no worker": WorkflowLook(state="running", task_queue="q", polled=False),
            "gone": WorkflowLook(state="gone"),
        }.get(run.task, WorkflowLook(state="running", polled=True))


STALLED = {"run_1": "no worker", "run_2": "asks", "run_3": "gone", "run_4": "no worker", "run_5": "works"}


async def plant_stalled(database: Database) -> None:
    async with database.write() as conn:
        for run_id, task in STALLED.items():
            run = await live_run(conn, run_id, task=task)
            if task == "asks":
                await plant_request(conn, run)
        await conn.execute(update(runs_table).values(created_at=LONG_AGO))


async def plant_request(conn: Any, run: runs.Run) -> None:
    from turngate.store.runs import calls  # noqa: PLC0415

    row = request_row(run, "rq_1", created_at=LONG_AGO)
    call = calls.Call(
        run_id=run.id, tool_call_id=row.tool_call_id, step=run.step, position=0, tool_name="pay", input=row.input,
        repeat_key="", disposition="ask", verdict="", digest="d", policy_version="p", effect="once",
    )  # fmt: skip
    await calls.insert_planned(conn, [call])
    await open_requests(conn, [row])


@pytest.fixture
async def stalled(sqlite: Database) -> AsyncIterator[tuple[str, str]]:
    """The address and a token of an API over stalled runs."""
    await plant_stalled(sqlite)
    await added(sqlite, "grace")
    async with sqlite.write() as conn:
        token = await tokens.issue(
            conn, tokens.NewToken(name="desk", scopes=["requests:read", "requests:decide"], owner="grace")
        )
    nowhere = await Client.connect("127.0.0.1:1", lazy=True)
    app = create_app(database=sqlite, gateway=Looks(nowhere, sqlite), settings=ApiSettings())
    async with serving(app) as url:
        yield url, token


async def type_in(stalled: tuple[str, str], *words: str) -> Result:
    url, token = stalled
    environment = {"TURNGATE_TOKEN": token, "TURNGATE_API_URL": url, "NO_COLOR": "1"}
    return await asyncio.to_thread(CliRunner().invoke, commands, ["runs", *words], env=environment)


def rows_of(answer: Result) -> list[list[str]]:
    return [line.split("\t")[:2] for line in answer.stdout.splitlines()]


async def test_stalled_runs_come_by_cause_with_people_apart(stalled: tuple[str, str]) -> None:
    """What needs an engineer comes first, by cause; what waits for a decision comes apart, after it."""
    answer = await type_in(stalled, "--stuck")
    assert answer.exit_code == 0, answer.output
    assert rows_of(answer) == [
        ["run_3", "workflow gone"],
        ["run_4", "no worker"],
        ["run_1", "no worker"],
        ["run_2", "person"],
    ]
    notes = answer.stderr.splitlines()
    assert notes[:2] == ["1 waits for: workflow gone", "2 wait for: no worker"]
    assert notes[-1].startswith("1 for a person's decision: turngate requests")


async def test_stalled_runs_of_one_cause(stalled: tuple[str, str]) -> None:
    """The API, the client and the terminal take the same cause; a word that is none gets those that there are."""
    url, token = stalled
    for cause, expected in {"no_worker": ["run_4", "run_1"], "person": ["run_2"], "paused": []}.items():
        answer = await type_in(stalled, "--stuck", "--cause", cause)
        assert [row[0] for row in rows_of(answer)] == expected
        assert ("no run is stalled" in answer.stderr) == (not expected)
        printed = json.loads((await type_in(stalled, "--stuck", "--cause", cause, "--json")).stdout)
        assert [each["run"]["id"] for each in printed] == expected

    def by_client() -> list[str]:
        with SyncTurngateClient(url, token=token) as client:
            return [each.run.id for each in client.iter_stuck_runs(cause="workflow_gone", limit=1)]

    assert await asyncio.to_thread(by_client) == ["run_3"]
    wrong = await type_in(stalled, "--stuck", "--cause", "budget")
    assert (wrong.exit_code, "with --stuck it is one of person, tool" in wrong.stderr) == (2, True)
    wrong = await type_in(stalled, "--cause", "no_worker")
    assert (wrong.exit_code, "without --stuck it is one of model_unreachable" in wrong.stderr) == (2, True)
    assert (await type_in(stalled, "--stuck", "--agent", "a")).exit_code == 2


@pytest.mark.unencrypted
async def test_the_terminal_filters_runs_as_the_page_does(stalled: tuple[str, str]) -> None:
    """Search, agent and cause, together with the status."""
    for words, expected in {
        ("--search", "GONE"): ["run_3"],
        ("--search", "no worker", "--status", "running"): ["run_4", "run_1"],
        ("--agent", "other"): [],
        ("--cause", "bug"): [],
    }.items():
        answer = await type_in(stalled, *words)
        assert [row[0] for row in rows_of(answer)] == expected
        assert ("no run matches" in answer.stderr) == (not expected)


async def test_the_page_of_stalled_runs(sqlite: Database) -> None:
    """It has a section for each cause, people's last with a link to the request; each says why in a sentence."""
    await plant_stalled(sqlite)
    nowhere = await Client.connect("127.0.0.1:1", lazy=True)
    async with desk_on(sqlite, gateway=Looks(nowhere, sqlite)) as desk:
        page = html.unescape((await (await desk.person("ann")).get("/runs?status=stalled")).text)
    titles = ["workflow gone: 1 run", "no worker: 2 runs", "Waits for a person: 1 run"]
    places = [page.index(title) for title in titles]
    assert places == sorted(places)
    assert "No worker polls the task queue 'q'." in page
    assert page.index('href="/requests/rq_1"') > places[-1]
    assert 'href="/runs/run_5"' not in page


def test_every_wait_has_its_words_and_its_place() -> None:
    """A new kind of wait has words and a place in the order; people's waits are last."""
    assert set(WAITS_FOR) == set(get_args(WaitKind))
    assert list(WAITS_FOR)[-1] == "person"
    assert by_cause(list[StuckRun]()) == []
