"""What encryption at rest costs: gated turns per second and processor time, encrypted against plain, in interleaved rounds."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from bench import throughput
from bench.figures import Figure
from bench.scale import Scale
from bench.turngate_side import fresh_sqlite, turngate
from support.stores.encryption import encrypted
from temporalio.client import Client

GOAL = 0.95


async def measure(client: Client, directory: Path, scale: Scale, *, server_pid: int) -> list[Figure]:
    """Return the two lines of :func:`bench.throughput.measure`, with an unencrypted Turngate as the baseline."""
    async with AsyncExitStack() as stack:
        sides = []
        for name in ("encrypted", "plain"):
            database = await fresh_sqlite(directory, f"encryption-{name}")
            stack.push_async_callback(database.close)
            if name == "encrypted":
                await encrypted(database)
            sides.append(await stack.enter_async_context(turngate(name, client, database)))
        rate, processor = await throughput.measure(sides[:1], sides[1], scale, server_pid=server_pid)
        reached = rate.ratio is not None and rate.ratio.median >= GOAL
        return [replace(rate, goal=f">= {GOAL} x", reached=reached), processor]
