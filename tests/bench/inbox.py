"""Figure 5: a page of 50 among 10,000 pending requests, through the whole app on a loopback socket.

At rest, and while requests are decided, run out of time and are opened; and what counting them costs under each filter.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
from bench.figures import Figure, MeasurementError, milliseconds, percentile
from bench.scale import Scale
from sqlalchemy import text
from support.api.api_server import serving, session_for, token_for
from support.stores.stored_requests import live_run, open_requests
from temporalio.client import Client

from turngate.approvals_api.app import ApiSettings, create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.domain.runs.inbox import urgent_at
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.toolkits.files import edit_file
from turngate.wire.orders import DecisionOrder

GOAL_SECONDS = 0.01
PAGE = 50
PER_RUN = 50
WARM_UP = 10
ROUNDS_PER_SECOND = 10
"""A second: in each, one request is decided, one runs out of time, and two are opened. Fifty operators decide a tenth of it."""
TRAFFIC = 2000
"""Enough of the oldest for the longest measurement."""
FILTERS: Sequence[Mapping[str, str]] = (
    {},
    {"status": "decided"},
    {"status": "expired"},
    {"status": "all"},
    {"tool": "edit_file"},
    {"risk": "medium", "agent": "agent"},
    {"claimed": "nobody"},
    {"parked": "false", "kind": "approval"},
    {"rule": "tool"},
)
PREVIEW = "".join(f"-    old line {number}\n+    new line {number}\n" for number in range(25))


async def measure(client: Client, databases: dict[str, Database], scale: Scale) -> list[Figure]:
    """Five lines per database."""
    return [figure for name, database in databases.items() for figure in await _figures(name, client, database, scale)]


async def _figures(name: str, client: Client, database: Database, scale: Scale) -> list[Figure]:
    async with database.write() as conn:
        await seed(conn, scale.pending)
    async with database.glance() as conn:
        # PostgreSQL does so by itself within a minute after such an import.
        await conn.execute(text("ANALYZE" if database.url.startswith("sqlite") else "VACUUM ANALYZE"))
    app = create_app(database=database, gateway=Gateway(client), settings=ApiSettings())
    headers = await token_for(database, "bench", "requests:read")
    cookies = await session_for(database, "bench-operator")
    items, page = f"API page of {PAGE} among {scale.pending} pending", "the inbox in HTML"
    busy = f"while {2 * ROUNDS_PER_SECOND} a second end"
    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as program,
        httpx.AsyncClient(base_url=url, cookies=cookies, trust_env=False) as browser,
    ):
        gc.freeze()  # as `turngate up` does once it serves
        figures = [
            figure_of(f"{items}, {name}", await pages(program, scale.pages)),
            figure_of(f"{page}, {name}", await html_pages(browser, scale.pages)),
        ]
        async with _traffic(database) as ended:
            figures += [
                figure_of(f"{items} {busy}, {name}", await pages(program, scale.pages)),
                figure_of(f"{page} {busy}, {name}", await html_pages(browser, scale.pages)),
                figure_of(f"counts under {len(FILTERS)} filters {busy}, {name}", await counts(program, scale.pages)),
            ]
        if not ended:
            raise MeasurementError("nothing ended while the inbox was measured")
    return figures


def figure_of(name: str, samples: list[float]) -> Figure:
    """Judge samples, in seconds, by the goal of the inbox."""
    return Figure(
        name=name,
        ours=milliseconds(samples),
        goal=f"p50 <= {GOAL_SECONDS * 1000:.0f} ms",
        reached=percentile(samples, 0.5) <= GOAL_SECONDS,
        samples={"ours_seconds": samples},
    )


async def pages(http: httpx.AsyncClient, wanted: int, **filters: str) -> list[float]:
    """Ask for the first page, ``wanted`` times."""
    samples: list[float] = []
    for _ in range(WARM_UP + wanted):
        seconds, answer = await _timed(http, "/api/v1/requests", {"limit": PAGE, **filters})
        if len(answer.json()["items"]) != PAGE:
            raise MeasurementError(f"a page of {PAGE} has {len(answer.json()['items'])} requests")
        samples.append(seconds)
    return samples[WARM_UP:]


async def html_pages(http: httpx.AsyncClient, wanted: int) -> list[float]:
    """Open the inbox as a browser does, without its style sheets."""
    samples: list[float] = []
    for _ in range(WARM_UP + wanted):
        seconds, answer = await _timed(http, "/", {})
        if answer.text.count('<li class="row"') != PAGE:
            raise MeasurementError("a page of the inbox has not its rows")
        samples.append(seconds)
    return samples[WARM_UP:]


async def counts(http: httpx.AsyncClient, wanted: int) -> list[float]:
    """Count under each filter in turn."""
    samples: list[float] = []
    for number in range(WARM_UP + wanted):
        seconds, answer = await _timed(http, "/api/v1/requests/count", FILTERS[number % len(FILTERS)])
        if answer.json()["count"] < 1:
            raise MeasurementError(f"nothing is counted under {FILTERS[number % len(FILTERS)]}")
        samples.append(seconds)
    return samples[WARM_UP:]


async def _timed(http: httpx.AsyncClient, path: str, params: Mapping[str, str | int]) -> tuple[float, httpx.Response]:
    began = time.perf_counter()
    answer = await http.get(path, params=params)
    seconds = time.perf_counter() - began
    if answer.status_code != 200:
        raise MeasurementError(f"the inbox answered {answer.status_code}: {answer.text[:200]}")
    return seconds, answer


@asynccontextmanager
async def _traffic(database: Database) -> AsyncIterator[list[str]]:
    """Let operators and clocks work meanwhile, and models open what takes the place of what ended; yields what ended."""
    ended: list[str] = []
    task = asyncio.create_task(_beat(database, ended))
    try:
        yield ended
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _beat(database: Database, ended: list[str]) -> None:
    async with database.read() as conn:
        waiting = iter(await requests.page(conn, limit=TRAFFIC))
    manifest = edit_file.manifest.model_dump_json()
    while True:
        async with database.write() as conn:
            decided, expired = next(waiting), next(waiting)
            word = requests.new_decision(
                DecisionOrder(verb="approve", digest=decided.digest),
                decision_id=f"dec_{secrets.token_hex(12)}",
                request_id=decided.id,
                by="operator",
            )
            await requests.add_decision(conn, word)
            await requests.settle(
                conn,
                decided.id,
                requests.Ending(status="approved", at=now(), decision_id=word.id, verb="approve", by="operator"),
            )
            await requests.settle(conn, expired.id, requests.Ending(status="expired", at=now()))
            await open_requests(
                conn, [_request(decided.run_id, TRAFFIC + len(ended) + number, manifest) for number in range(2)]
            )
            ended.extend([decided.id, expired.id])
        await asyncio.sleep(1 / ROUNDS_PER_SECOND)


async def seed(conn: Connection, pending: int) -> None:
    """Store pending requests as large as real ones: a tool's whole manifest, a diff of some 1 KiB, the agent's words."""
    manifest = edit_file.manifest.model_dump_json()
    for first in range(0, pending, PER_RUN):
        run_id = f"run_{secrets.token_hex(12)}"
        await live_run(conn, run_id, task="Tidy the invoices.")
        await runs.advance(conn, run_id, step=1)
        await open_requests(
            conn, [_request(run_id, number, manifest) for number in range(first, min(first + PER_RUN, pending))]
        )


def _request(run_id: str, number: int, manifest: str) -> requests.Request:
    created_at = now() - timedelta(seconds=20_000 - number)
    return requests.Request(
        id=f"rq_{secrets.token_hex(12)}",
        run_id=run_id,
        tool_call_id=f"call_{number}",
        kind="approval",
        status="pending",
        agent="agent",
        tool_name="edit_file",
        manifest=manifest,
        input='{"path": "invoices/2024.csv", "old": "total", "new": "sum"}',
        digest=secrets.token_hex(32),
        rule="tool",
        reason="The tool asks.",
        risk="medium",
        agent_words="The column is named differently in the ledger, so I will rename it here. " * 2,
        preview_kind="diff",
        preview=PREVIEW,
        not_by=None,
        expires_at=None,
        created_at=as_text(created_at),
        urgent_at=as_text(urgent_at(created_at, None, "medium")),
    )
