"""Figure: how many transactions that append an event one PostgreSQL commits in a second, by the number of writers.

All of them take one lock, that of the counter which numbers events, and hold it until their commit is on the disk. So this
bounds a deployment however many workers it has: a gated turn has six such transactions.
"""

from __future__ import annotations

import asyncio
import secrets
import time

from bench.figures import Figure
from bench.scale import Scale
from support.stores.stored_requests import live_run
from temporalio.client import Client

from turngate.store.database import Database
from turngate.store.events import events

WRITERS = (1, 4, 16)
PER_TURN = 6


async def measure(client: Client, databases: dict[str, Database], scale: Scale) -> list[Figure]:
    """One line per number of writers and database."""
    del client
    return [
        await _figure(name, database, writers, scale) for name, database in databases.items() for writers in WRITERS
    ]


async def _figure(name: str, database: Database, writers: int, scale: Scale) -> Figure:
    run_ids = [f"run_{secrets.token_hex(12)}" for _ in range(writers)]
    async with database.write() as conn:
        for run_id in run_ids:
            await live_run(conn, run_id)
    until = time.perf_counter() + scale.commit_seconds
    began, began_processor = time.perf_counter(), time.process_time()
    commits = sum(await asyncio.gather(*(_append(database, run_id, until) for run_id in run_ids)))
    seconds, processor = time.perf_counter() - began, time.process_time() - began_processor
    rate = commits / seconds
    return Figure(
        name=f"commits of an event per second, {writers} writers, {name}",
        ours=f"{rate:.0f}/s, as many as {rate / PER_TURN:.0f} turns; {processor / commits * 1000:.2f} ms of this process each",
        samples={"ours_per_second": [rate]},
    )


async def _append(database: Database, run_id: str, until: float) -> int:
    count = 0
    while time.perf_counter() < until:
        async with database.write() as conn:
            await events.append(conn, run_id, [("progress.noted", {"n": count})], last=True)
        count += 1
    return count
