"""What metrics cost: gated turns of two engines that are alike, one of them counted and scraped, in interleaved rounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import to_thread
from bench import throughput
from bench.figures import Figure
from bench.scale import Scale
from bench.turngate_side import Turngate, fresh_sqlite, turngate
from support.project.scrapes import Port, Scrape, get, metered
from temporalio.client import Client

SCRAPE_SECONDS = 5.0
"""Three times as often as Prometheus does."""
SCRAPES = 20


async def measure(client: Client, directory: Path, scale: Scale, *, server_pid: int) -> list[Figure]:
    """Return rate and CPU time of turns with metrics, against turns without, and the time of a scrape."""
    plain_store, counted_store = await fresh_sqlite(directory, "plain"), await fresh_sqlite(directory, "counted")
    async with (
        turngate("without metrics", client, plain_store) as plain,
        metered(client, counted_store) as (own, port),
        turngate("with metrics", own, counted_store) as counted,
        _scraped(port),
    ):
        figures = await throughput.measure([counted], plain, scale, server_pid=server_pid)
        figures.append(await _scrape_time(port, counted))
    await plain_store.close()
    await counted_store.close()
    return figures


@asynccontextmanager
async def _scraped(port: Port) -> AsyncIterator[None]:
    async def scrape() -> None:
        while True:
            await asyncio.sleep(SCRAPE_SECONDS)
            await to_thread.run_sync(get, port.number)  # unread: a parser of this process would be measured, too

    scraping = asyncio.create_task(scrape())
    try:
        yield
    finally:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)


async def _scrape_time(port: Port, side: Turngate) -> Figure:
    times = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        _status, text = await to_thread.run_sync(get, port.number)
        times.append(time.perf_counter() - began)
    return Figure(
        name="one scrape",
        ours=f"p50 {sorted(times)[len(times) // 2] * 1000:.0f} ms, {len(Scrape.of(text).samples)} series",
        samples={f"{side.name}_seconds": times},
    )
