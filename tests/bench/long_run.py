"""Figures of one very long run: the time of a step, memory and history bytes, early and late.

Every step is one response with a call that runs and, every so often, one that a person approves. The agent sends its
model the newest messages only, as any agent must whose run is longer than a model's window.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench import cpu
from bench.figures import Figure, MeasurementError, Ratio
from bench.scale import Scale
from bench.turngate_side import PENDING, fresh_sqlite
from pydantic import BaseModel
from support.engine.stack import OPERATOR, Stack, call, says, stack
from temporalio.client import Client

from turngate import ToolContext, tool
from turngate import worker as composition
from turngate.approvals_api.requests import decide
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.agents.app import Limits
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.tools.tool import Tool
from turngate.models.port import ModelRequest
from turngate.store.clock import from_text
from turngate.store.runs import runs, steps
from turngate.toolkits.context import KeepRecent
from turngate.wire.orders import DecisionOrder

KEPT_MESSAGES = 40
AROUND = 50
"""Steps on each side of the one that is timed."""
GATED_EVERY = 100
CPU_STEPS = 500
"""Steps over which processor time is counted, early and late; half of the run when it is short."""
STILL_SECONDS = 120.0
"""A run that takes no step for this long is stalled, and the measurement fails."""
PAGE = os.sysconf("SC_PAGE_SIZE")


class Number(BaseModel):
    number: int


class Counting:
    """Asks for one more call in each step, and answers at the end."""

    name = "scripted:bench"

    def __init__(self, length: int) -> None:
        self.requests = 0
        self.most_messages = 0
        self._length = length

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.requests += 1
        self.most_messages = max(self.most_messages, len(request.messages))
        if self.requests >= self._length:
            return says("Done.")
        name = "pay" if self.requests % GATED_EVERY == 0 else "look"
        return says("Next.", call(name, f'{{"number": {self.requests}}}', f"c{self.requests}"))

    async def aclose(self) -> None:
        return None


async def measure(client: Client, directory: Path, scale: Scale, *, server_pid: int) -> list[Figure]:
    """Run one run of ``scale.long_run_steps`` steps and compare its step 100 with its last ones."""
    database = await fresh_sqlite(directory, "long-run")
    model = Counting(scale.long_run_steps)
    paid: list[int] = []
    limits = Limits(steps=scale.long_run_steps + 1)
    tools = [_look(), _pay(paid)]
    keep = KeepRecent(KEPT_MESSAGES)
    async with stack(client, database, *tools, model=model, limits=limits, hooks=[keep], working=False) as engine:
        engine.services = replace(engine.services, settings=ApiSettings())
        built = composition.build_worker(engine.client, engine.engine, task_queue=engine.task_queue)
        approving = asyncio.create_task(_approve(engine))
        try:
            async with built:
                run = await engine.start()
                seen = await _watch(engine, run.id, scale, server_pid)
                await engine.closed(run)
        finally:
            approving.cancel()
            with suppress(asyncio.CancelledError):
                await approving
        async with database.read() as conn:
            ended = await runs.get(conn, run.id)
            taken = await steps.of_run(conn, run.id)
        if ended is None or ended.status != "completed" or len(taken) != scale.long_run_steps:
            raise MeasurementError(f"the long run ended as {ended} after {len(taken)} steps")
        if len(paid) != len(set(paid)) or len(paid) != (scale.long_run_steps - 1) // GATED_EVERY:
            raise MeasurementError(f"{len(paid)} payments, {len(set(paid))} of them different")
        executions = [each async for each in client.list_workflows(f"WorkflowId = '{run.id}'")]
        sizes = [
            (await client.get_workflow_handle(run.id, run_id=each.run_id).describe()).raw_description
            for each in executions
        ]
    await database.close()
    at = [from_text(step.created_at).timestamp() for step in taken]
    return [
        _step_time(at, scale.long_run_steps),
        *_processor_time(seen, scale.long_run_steps),
        *_memory(seen, scale.long_run_steps),
        _history([each.workflow_execution_info.history_size_bytes for each in sizes], scale.long_run_steps),
        Figure(name="messages that the model was sent at most", ours=str(model.most_messages)),
    ]


async def _approve(engine: Stack) -> None:
    """Approve every request, until cancelled."""
    while True:
        async with engine.database.read() as conn:
            pending = list(await conn.execute(PENDING))
        for request_id, _run, digest in pending:
            await decide.submit(engine.services, OPERATOR, request_id, DecisionOrder(verb="approve", digest=digest))
        await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Seen:
    """What two processes had used when the run reached a step: resident bytes and processor seconds; the server's last."""

    step: int
    resident: tuple[int, int]
    processor: tuple[float, float]

    @classmethod
    def now(cls, step: int, *pids: int) -> Seen:
        (ours, server) = pids
        return cls(step, (_resident(ours), _resident(server)), (cpu.of_process(ours), cpu.of_process(server)))


async def _watch(engine: Stack, run_id: str, scale: Scale, server_pid: int) -> list[Seen]:
    """Return what this process and the server had used, a few times a second until the run's end."""
    seen: list[Seen] = []
    step, since = 0, asyncio.get_running_loop().time()
    while True:
        async with engine.database.read() as conn:
            run = await runs.get(conn, run_id)
        now = asyncio.get_running_loop().time()
        if run is None or now - since > STILL_SECONDS:
            raise MeasurementError(f"the long run is stalled at step {step}")
        if run.step > step:
            if run.step // 1000 > step // 1000:
                print(f"long run: step {run.step:,} of {scale.long_run_steps:,}", flush=True)
            step, since = run.step, now
            seen.append(Seen.now(step, os.getpid(), server_pid))
        if run.status != "running":
            return seen
        await asyncio.sleep(0.2)


def _at(seen: Sequence[Seen], step: int) -> Seen:
    return next((each for each in seen if each.step >= step), seen[-1])


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE


def _processor_time(seen: Sequence[Seen], length: int) -> list[Figure]:
    """Processor time of a step, which says more than its duration on a machine that has other things to do."""
    counted = min(CPU_STEPS, length // 2 - AROUND)
    spans = [(_at(seen, start), _at(seen, start + counted)) for start in (AROUND, length - counted)]
    figures = []
    for place, whose in enumerate(("API and worker", "Temporal's server")):
        early, late = (
            (after.processor[place] - before.processor[place]) / (after.step - before.step) for before, after in spans
        )
        figures.append(
            Figure(
                name=f"processor time of a step, {whose}: the last {counted} steps, and {counted} from step {AROUND}",
                ours=f"{late * 1000:.1f} ms",
                baseline=f"{early * 1000:.1f} ms",
                ratio=Ratio.of([late], [early]),
            )
        )
    return figures


def _step_time(at: Sequence[float], length: int) -> Figure:
    took = [later - earlier for earlier, later in itertools.pairwise(at)]
    early, late = took[AROUND : 3 * AROUND], took[-2 * AROUND :]
    ratio = Ratio.of([statistics.median(late)], [statistics.median(early)])
    return Figure(
        name=f"a step's time, step {2 * AROUND} and step {length:,}",
        ours=f"{statistics.median(late) * 1000:.1f} ms",
        baseline=f"{statistics.median(early) * 1000:.1f} ms",
        ratio=ratio,
        samples={"late_seconds": late, "early_seconds": early, "all_seconds": took},
    )


def _memory(seen: Sequence[Seen], length: int) -> list[Figure]:
    (early, early_server), (late, late_server) = _at(seen, 2 * AROUND).resident, seen[-1].resident
    return [
        Figure(
            name=f"resident memory of {whose}, step {2 * AROUND} and step {length:,}",
            ours=f"{after / 1e6:.0f} MB",
            baseline=f"{before / 1e6:.0f} MB",
            ratio=Ratio.of([after], [before]),
        )
        for whose, before, after in (("API and worker", early, late), ("Temporal's server", early_server, late_server))
    ]


def _history(sizes: Sequence[int], length: int) -> Figure:
    per_step = sum(sizes) / length
    return Figure(
        name=f"history of {length:,} steps: bytes a step; largest of {len(sizes)} executions",
        ours=f"{per_step:.0f} B; {max(sizes) / 1024:.0f} KiB",
        samples={"bytes": [float(size) for size in sizes]},
    )


def _look() -> Tool:
    @tool(effect="read", ask=False)
    async def look(params: Number) -> dict[str, str]:
        """Look something up."""
        return {"seen": f"number {params.number}: " + "x" * 200}

    return look


def _pay(paid: list[int]) -> Tool:
    @tool(effect="once", ask=True)
    async def pay(params: Number, ctx: ToolContext) -> dict[str, int]:
        """Pay an amount."""
        del ctx
        paid.append(params.number)
        return {"paid": params.number}

    return pay
