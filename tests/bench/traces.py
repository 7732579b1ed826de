"""What traces cost: gated turns with them on, against the same turns without, in interleaved rounds of one run.

The collector is a process of its own on loopback, which reads and discards. A round with traces ends when the collector has
all of its spans, so that their cost is the round's own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from bench.figures import Figure, Ratio
from bench.scale import Scale
from bench.sides import run_turns
from bench.turngate_side import Turngate, fresh_sqlite, turngate
from temporalio.client import Client

from turngate.runtime.traces.current import CurrentSpans
from turngate.runtime.traces.export import keep_tracing
from turngate.runtime.traces.spans import TraceSampler, provider
from turngate.runtime.traces.switch import TraceSettings
from turngate.store.database import Database
from turngate.store.events import events, traces

GOAL = 0.95
DISCARDING = """
import http.server
class Discard(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Discard)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


async def measure(client: Client, directory: Path, scale: Scale) -> list[Figure]:
    """One line for the rate and one for the processor time of this process, on SQLite."""
    async with AsyncExitStack() as stack:
        stack.enter_context(_discarding())
        databases = {name: await fresh_sqlite(directory, name) for name in ("plain", "traced")}
        for database in databases.values():
            stack.push_async_callback(database.close)
        without = await stack.enter_async_context(turngate("without traces", client, databases["plain"]))
        current = CurrentSpans(TraceSampler(provider().sampler))
        traced = await stack.enter_async_context(turngate("with traces", client, databases["traced"], tracing=current))
        exporting = asyncio.create_task(keep_tracing(databases["traced"], TraceSettings()))
        try:
            return await _rounds(without, traced, databases, scale)
        finally:
            exporting.cancel()
            with suppress(asyncio.CancelledError):
                await exporting


async def _rounds(without: Turngate, traced: Turngate, databases: Mapping[str, Database], scale: Scale) -> list[Figure]:
    rates: dict[str, list[float]] = {"plain": [], "traced": []}
    costs: dict[str, list[float]] = {"plain": [], "traced": []}
    for number in range(scale.rounds + 1):  # the first one warms up
        for name, side in (("plain", without), ("traced", traced)):
            used = time.process_time()
            rate = await run_turns(side, scale.turns, scale)
            if name == "traced":
                await _exported(databases[name])
            if number:
                rates[name].append(rate)
                costs[name].append((time.process_time() - used) / scale.turns)
    rate, cost = Ratio.of(rates["traced"], rates["plain"]), Ratio.of(costs["traced"], costs["plain"])
    return [
        Figure(
            name="gated turns per second with traces, SQLite",
            ours=f"{_middle(rates['traced']):.1f}/s",
            baseline=f"{_middle(rates['plain']):.1f}/s",
            ratio=rate,
            goal=f">= {GOAL} x",
            reached=rate.median >= GOAL,
            samples={f"{name}_per_second": values for name, values in rates.items()},
        ),
        Figure(
            name="CPU time of a gated turn with traces, SQLite",
            ours=f"{_middle(costs['traced']) * 1000:.1f} ms",
            baseline=f"{_middle(costs['plain']) * 1000:.1f} ms",
            ratio=cost,
            samples={f"{name}_seconds": values for name, values in costs.items()},
        ),
    ]


async def _exported(database: Database) -> None:
    """Wait until the collector has the spans of all that has happened."""
    while True:
        async with database.read() as conn:
            place, last = await traces.export(conn), await events.last_seq(conn)
        if place is not None and place.last_seq >= last:
            return
        await asyncio.sleep(0.05)


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@contextmanager
def _discarding() -> Iterator[None]:
    """Run the collector, and name it to the exporter."""
    collector = subprocess.Popen([sys.executable, "-c", DISCARDING], stdout=subprocess.PIPE, text=True)
    try:
        assert collector.stdout is not None
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{int(collector.stdout.readline())}"
        yield
    finally:
        os.environ.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
        collector.kill()
        collector.wait()
