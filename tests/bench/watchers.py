"""Figure 11: from the commit of an event to the line of server-sent events that shows it, to ten watchers at once."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
from bench.figures import Figure, MeasurementError, milliseconds, percentile
from bench.scale import Scale
from httpx_sse import aconnect_sse
from sqlalchemy import make_url
from support.api.api_server import reader
from support.stores.stored_requests import live_run
from temporalio.client import Client

from turngate.store.database import Database
from turngate.store.events import events

GOALS = {"this": 0.015, "another": 0.03}
"""Process that commits → seconds."""
WATCHERS = 10
PAUSE_SECONDS = 0.02
LAST = "run.ended"

CommitTimes = Mapping[int, float]
"""Number of an event → ``time.monotonic()`` when its commit had returned."""


async def measure(client: Client, databases: dict[str, Database], scale: Scale) -> list[Figure]:
    """One line per database and process that commits. SQLite sends no news to other processes: they look."""
    figures = []
    for name, database in databases.items():
        figures.append(await _figure(name, client, database, "this", scale))
        if make_url(database.url).get_backend_name() != "sqlite":
            figures.append(await _figure(name, client, database, "another", scale))
    return figures


async def _figure(name: str, client: Client, database: Database, process: str, scale: Scale) -> Figure:
    run_id = f"run_of_{process}_process"
    async with database.write() as conn:
        await live_run(conn, run_id)
    async with reader(client, database) as http:
        watching = [asyncio.create_task(_watched(http, run_id)) for _ in range(WATCHERS)]
        await asyncio.sleep(1.0)  # until all are there
        if process == "this":
            committed_at = await append_events(database, run_id, scale.chunks)
        else:
            committed_at = await _elsewhere(database.url, run_id, scale.chunks)
        seen = await asyncio.gather(*watching)
    samples = [at - committed_at[n] for each in seen for n, at in each.items()]
    if len(samples) != WATCHERS * scale.chunks:
        raise MeasurementError(f"{name}: of {WATCHERS * scale.chunks} lines only {len(samples)} came")
    goal = GOALS[process]
    return Figure(
        name=f"commit in {process} process -> {WATCHERS} watchers' lines, {name}",
        ours=milliseconds(samples),
        goal=f"p95 <= {goal * 1000:.0f} ms",
        reached=percentile(samples, 0.95) <= goal,
        samples={"ours_seconds": samples},
    )


async def append_events(database: Database, run_id: str, count: int) -> CommitTimes:
    """Append numbered events, one transaction each, and one that ends the stream."""
    committed_at = {}
    for n in range(count):
        async with database.write() as conn:
            await events.append(conn, run_id, [("measured", {"n": n})])
        committed_at[n] = time.monotonic()
        await asyncio.sleep(PAUSE_SECONDS)
    async with database.write() as conn:
        await events.append(conn, run_id, [(LAST, {})])
    return committed_at


async def _elsewhere(url: str, run_id: str, count: int) -> CommitTimes:
    """Append them from a process of its own; every process of a machine has the same monotonic clock."""
    script = Path(__file__).with_name("event_writer.py")
    writer = await asyncio.create_subprocess_exec(
        sys.executable, script, url, run_id, str(count), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await writer.communicate()
    return {int(n): at for n, at in json.loads(printed).items()}


async def _watched(http: httpx.AsyncClient, run_id: str) -> dict[int, float]:
    """Watch the run to its end; returns when the line of each numbered event came."""
    seen = {}
    async with aconnect_sse(http, "GET", f"/api/v1/runs/{run_id}/events") as source:
        async for sent in source.aiter_sse():
            if sent.event == "measured":
                seen[json.loads(sent.data)["payload"]["n"]] = time.monotonic()
            elif sent.event == LAST:
                break
    return seen
