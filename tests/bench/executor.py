"""Figure: what redeeming, decoding and recording add to an ungated ``read`` call, against a bare activity.

One step of one run makes many calls, four at a time on both sides; the time from the first handler's start to the last
one's end, per call.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.figures import Figure, MeasurementError, Ratio
from bench.scale import Scale
from bench.turngate_side import fresh_sqlite
from pydantic import BaseModel
from support.engine.stack import Stack, call, says, stack
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from turngate import tool
from turngate import worker as composition
from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest
from turngate.runtime.worker_group import WorkerGroup

AT_ONCE = 4
"""The default of ``Limits(concurrency=…)``."""
BRIEF = timedelta(seconds=60)


class Which(BaseModel):
    number: int


@dataclass
class Stopwatch:
    """When handlers ran. Both sides note the same way."""

    times: list[float] = field(default_factory=list)

    def note(self) -> None:
        self.times.append(time.perf_counter())

    def per_call(self, calls: int) -> float:
        if len(self.times) != calls:
            raise MeasurementError(f"{len(self.times)} of {calls} reads ran")
        elapsed = max(self.times) - min(self.times)
        self.times.clear()
        return elapsed / calls


class ManyReads:
    """Asks for all reads in one response, then answers."""

    name = "scripted:bench"

    def __init__(self, calls: int) -> None:
        self.asks = says(*(call("look", f'{{"number": {number}}}', f"c{number}") for number in range(calls)))

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return says("Done.") if request.messages[-1].role == "tool" else self.asks

    async def aclose(self) -> None:
        return None


@workflow.defn(name="BareReads")
class BareReads:
    @workflow.run
    async def run(self, calls: int) -> None:
        places = asyncio.Semaphore(4)

        async def one(number: int) -> None:
            async with places:
                await workflow.execute_activity("bare_read", number, start_to_close_timeout=BRIEF)

        await asyncio.gather(*(one(number) for number in range(calls)))


async def measure(client: Client, directory: Path, scale: Scale) -> list[Figure]:
    """One line: milliseconds a call takes, on SQLite, against the bare activity in the same rounds."""
    watch = Stopwatch()
    database = await fresh_sqlite(directory, "executor")

    @tool(effect="read", ask=False)
    async def look(params: Which) -> dict[str, int]:
        """Look something up."""
        watch.note()
        return {"seen": params.number}

    @activity.defn
    async def bare_read(number: int) -> dict[str, int]:
        watch.note()
        return {"seen": number}

    try:
        async with (
            stack(client, database, look, model=ManyReads(scale.reads), working=False) as engine,
            composition.build_worker(engine.client, engine.engine, task_queue=engine.task_queue) as working,
            _bare_worker(working, client, bare_read) as bare,
        ):
            ours, baseline = await _rounds(engine, client, bare.task_queue, watch, scale)
    finally:
        await database.close()
    return [
        Figure(
            name="ungated read call, SQLite",
            ours=f"{statistics.median(ours) * 1000:.1f} ms",
            baseline=f"{statistics.median(baseline) * 1000:.1f} ms",
            ratio=Ratio.of(ours, baseline),
            samples={"ours_seconds": ours, "baseline_seconds": baseline},
        )
    ]


def _bare_worker(like: WorkerGroup, client: Client, read: Any) -> Worker:
    """Return a worker for the bare activity with every setting of Turngate's, but its lanes."""
    settings: dict[str, Any] = like.workers[0].config()
    runner = settings["workflow_runner"]
    assert isinstance(runner, SandboxedWorkflowRunner)
    shared = runner.restrictions.with_passthrough_modules("bench")
    settings.update(
        client=client,
        task_queue=f"bare-{secrets.token_hex(4)}",
        workflows=[BareReads],
        activities=[read],
        workflow_runner=replace(runner, restrictions=shared),
        interceptors=[],
    )
    return Worker(**settings)


async def _rounds(
    engine: Stack, client: Client, bare_queue: str, watch: Stopwatch, scale: Scale
) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    baseline: list[float] = []
    for number in range(scale.rounds + 1):
        run = await engine.start()
        if (await engine.ended(run, 120)).status != "completed":
            raise MeasurementError(f"run {run.id} did not complete")
        taken = watch.per_call(scale.reads)
        name = f"bare-{secrets.token_hex(6)}"
        await client.execute_workflow("BareReads", scale.reads, id=name, task_queue=bare_queue)
        bare = watch.per_call(scale.reads)
        if number > 0:  # the first round warms up
            ours.append(taken)
            baseline.append(bare)
    return ours, baseline
