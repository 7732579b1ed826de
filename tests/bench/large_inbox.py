"""Figures: the inbox and its counts with 100,000 pending requests and 5 million ended ones, on PostgreSQL.

The rows are copied inside the database from one of those that the inbox's own figure stores, each with its own id and times.
Minutes long, and some 10 GB of disk: measured only when it is asked for.
"""

from __future__ import annotations

import gc
import sys
import time

import httpx
from bench.figures import Figure
from bench.inbox import PAGE, counts, figure_of, html_pages, pages, seed
from bench.scale import Scale
from sqlalchemy import Table, TextClause, text
from support.api.api_server import serving, session_for, token_for
from temporalio.client import Client

from turngate.approvals_api.app import ApiSettings, create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.store import tables
from turngate.store.database import Database

BATCH = 250_000
PER_RUN = 50
AGO = "to_char(now() at time zone 'utc' - n * interval '1 s', 'YYYY-MM-DD\"T\"HH24:MI:SS.US') || '+00:00'"
"""The nth is n seconds old."""


async def measure(client: Client, databases: dict[str, Database], scale: Scale) -> list[Figure]:
    """Four lines, on PostgreSQL alone: SQLite is for one machine's worth of work."""
    return await _figures(client, databases["PostgreSQL"], scale) if "PostgreSQL" in databases else []


async def _figures(client: Client, database: Database, scale: Scale) -> list[Figure]:
    async with database.write() as conn:
        await seed(conn, PER_RUN)
    await _multiply(database, live=True, wanted=scale.large_pending - PER_RUN)
    await _multiply(database, live=False, wanted=scale.large_decided)
    async with database.glance() as conn:
        await conn.execute(text("VACUUM ANALYZE"))
        size = (await conn.execute(text("SELECT pg_database_size(current_database())"))).scalar_one()
    print(f"the database has {size / 2**30:.1f} GiB", file=sys.stderr)
    app = create_app(database=database, gateway=Gateway(client), settings=ApiSettings())
    headers = await token_for(database, "bench", "requests:read")
    cookies = await session_for(database, "bench-operator")
    among = f"among {scale.large_pending:,} pending and {scale.large_decided:,} ended"
    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as program,
        httpx.AsyncClient(base_url=url, cookies=cookies, trust_env=False, timeout=60) as browser,
    ):
        gc.freeze()  # as `turngate up` does once it serves
        return [
            figure_of(f"API page of {PAGE} {among}", await pages(program, scale.pages)),
            figure_of(f"the inbox in HTML {among}", await html_pages(browser, scale.pages)),
            figure_of(f"API page of {PAGE} decided {among}", await pages(program, scale.pages, status="decided")),
            figure_of(f"counts under all filters {among}", await counts(program, scale.pages)),
        ]


async def _multiply(database: Database, *, live: bool, wanted: int) -> None:
    """Copy a stored request ``wanted`` times, with times of their own, and one run for each 50 of them."""
    began = time.perf_counter()
    of = "live" if live else "past"
    run = {"id": f"'run_{of}' || n", "conversation_id": f"'conv_{of}' || n"}
    request = {
        "id": f"'rq_{of}' || n",
        "run_id": f"'run_{of}' || n / {PER_RUN}",
        "tool_call_id": "'call_' || n",
        "digest": "md5(n::text) || md5(n::text)",
        "tool_name": "CASE WHEN n % 5 = 0 THEN 'tool_' || n % 40 ELSE o.tool_name END",
        "risk": "CASE n % 10 WHEN 0 THEN 'high' WHEN 1 THEN 'low' ELSE o.risk END",
        "created_at": AGO,
        "urgent_at": AGO,
    }
    if not live:
        run |= {"status": "'completed'", "ended_at": AGO}
        ended = "CASE WHEN n % 100 = 0 THEN {} ELSE {} END"
        request |= {"status": ended.format("'expired'", "'approved'"), "verb": ended.format("NULL", "'approve'")}
        request |= {"decided_by": ended.format("NULL", "'operator'"), "decided_at": AGO}
    for first in range(0, wanted, BATCH):
        last = min(first + BATCH, wanted) - 1
        async with database.write() as conn:
            runs_of = {"first": first // PER_RUN, "last": last // PER_RUN}
            await conn.execute(_copy(tables.conversations, {"id": run["conversation_id"]}), runs_of)
            await conn.execute(_copy(tables.runs, run), runs_of)
            await conn.execute(_copy(tables.requests, request), {"first": first, "last": last})
    print(f"{wanted:,} requests in {time.perf_counter() - began:.0f} s", file=sys.stderr)


def _copy(table: Table, own: dict[str, str]) -> TextClause:
    """Return a statement that copies one row for each number. ``own``: SQL of the columns that differ, by ``n``."""
    columns = ", ".join(column.name for column in table.columns)
    values = ", ".join(own.get(column.name, f"o.{column.name}") for column in table.columns)
    numbers = "generate_series(CAST(:first AS integer), CAST(:last AS integer)) n"
    one = f"(SELECT * FROM {table.name} WHERE id !~ '_(live|past)' LIMIT 1) o"  # noqa: S608 - our own column names
    return text(f"INSERT INTO {table.name} ({columns}) SELECT {values} FROM {one}, {numbers}")  # noqa: S608 - likewise
