"""Figure 8: from a provider's chunk to the line of server-sent events that shows it, with runs that stream at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from bench.figures import Figure, MeasurementError, milliseconds, percentile
from bench.scale import Scale
from httpx_sse import aconnect_sse
from support.api.api_server import reader
from support.engine.stack import Stack, stack
from temporalio.client import Client

from turngate import worker as composition
from turngate.models import OpenAICompatibleModel
from turngate.store.database import Database

GOAL_SECONDS = 0.15
CHUNK_SECONDS = 0.02
RUNS_AT_ONCE = (1, 4)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


async def measure(client: Client, databases: dict[str, Database], scale: Scale) -> list[Figure]:
    """One line per database and number of runs."""
    return [
        await _figure(name, client, database, runs, scale)
        for name, database in databases.items()
        for runs in RUNS_AT_ONCE
    ]


async def _figure(name: str, client: Client, database: Database, runs: int, scale: Scale) -> Figure:
    async with _provider(scale.chunks) as base_url:
        model = OpenAICompatibleModel(base_url, None, "clock", timeout=30)
        async with (
            stack(client, database, model=model, working=False) as engine,
            composition.build_worker(engine.client, engine.engine, task_queue=engine.task_queue),
            reader(client, database) as http,
        ):
            await _watched(engine, http)  # the first of everything is slower
            watched = await asyncio.gather(*(_watched(engine, http) for _ in range(runs)))
        await model.aclose()
    samples = [seconds for each in watched for seconds in each]
    if len(samples) < runs * scale.chunks * 0.9:  # the last ones come with the stored message, in place of deltas
        raise MeasurementError(f"{name}: of {runs * scale.chunks} chunks only {len(samples)} were shown")
    return Figure(
        name=f"chunk -> SSE line, {name}, {runs} run{'' if runs == 1 else 's'} at once",
        ours=milliseconds(samples),
        goal=f"p95 <= {GOAL_SECONDS * 1000:.0f} ms",
        reached=percentile(samples, 0.95) <= GOAL_SECONDS,
        samples={"ours_seconds": samples},
    )


async def _watched(engine: Stack, http: httpx.AsyncClient) -> list[float]:
    """Watch one run from its start; returns the age of every word when its line came."""
    run = await engine.start()
    ages: list[float] = []
    async with aconnect_sse(http, "GET", f"/api/v1/runs/{run.id}/events") as source:
        async for sent in source.aiter_sse():
            if sent.event == "delta":
                now = time.perf_counter()
                words = "".join(delta["text"] for delta in json.loads(sent.data)["deltas"])
                ages += [now - float(word) for word in words.split()]
    return ages


@asynccontextmanager
async def _provider(chunks: int) -> AsyncIterator[str]:
    """A server that streams chunks with the time at which each was sent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(HEAD)
        for _ in range(chunks):
            delta = {"content": f"{time.perf_counter():.6f} "}
            writer.write(b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n")
            await writer.drain()
            await asyncio.sleep(CHUNK_SECONDS)
        writer.write(b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
