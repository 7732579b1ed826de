"""The two contestants' common face: a gated turn that can be started, seen waiting, decided and awaited."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from bench.figures import MeasurementError
from bench.scale import Scale
from temporalio.client import Client, WorkflowHandle

TURN_SECONDS = 60.0
"""A turn that takes longer has not completed, and the run fails."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A turn that waits for a decision. ``request_id``, ``digest``: Turngate's; the baseline has neither."""

    turn_id: str
    request_id: str = ""
    digest: str = ""


@dataclass
class Handlers:
    """What the gated tool did. ``started_at``: turn id → ``time.perf_counter()`` at the handler's first line."""

    started_at: dict[str, float] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)

    def note(self, turn_id: str) -> None:
        """Say that the handler has started; its first line."""
        self.started_at.setdefault(turn_id, time.perf_counter())
        self.starts[turn_id] += 1


class Side(ABC):
    """One contestant."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.handlers = Handlers()
        self._asks: defaultdict[str, asyncio.Future[Ask]] = defaultdict(asyncio.Future)

    @abstractmethod
    async def start(self, conversation_id: str | None = None) -> str:
        """Start one gated turn; returns its id, which is its workflow's id."""

    @abstractmethod
    async def decide(self, ask: Ask) -> None:
        """Approve the waiting call."""

    def workflow(self, turn_id: str) -> WorkflowHandle[Any, Any]:
        """The turn's workflow."""
        return self.client.get_workflow_handle(turn_id)

    async def complete(self, turn_id: str) -> None:
        """Wait for the turn's end; raises MeasurementError unless it completed and its tool ran exactly once."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                result = await self.workflow(turn_id).result()
        except Exception as error:
            raise MeasurementError(f"{self.name}: turn {turn_id} did not complete: {error!r}") from error
        status = result["status"] if isinstance(result, dict) else result
        if status != "completed":
            raise MeasurementError(f"{self.name}: turn {turn_id} ended as {result!r}")
        if self.handlers.starts[turn_id] != 1:
            raise MeasurementError(f"{self.name}: the tool of {turn_id} ran {self.handlers.starts[turn_id]} times")

    def tell(self, ask: Ask) -> None:
        """Announce that a turn waits. Safe to repeat."""
        answer = self._asks[ask.turn_id]
        if not answer.done():
            answer.set_result(ask)

    async def ask_of(self, turn_id: str) -> Ask:
        """What the turn waits for, once it does; raises MeasurementError when that never comes."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                return await self._asks[turn_id]
        except TimeoutError:
            raise MeasurementError(f"{self.name}: turn {turn_id} never asked for its decision") from None

    async def idle(self, turn_id: str) -> None:
        """Return once the workflow does nothing but wait: no activity and no workflow task pending."""
        async with asyncio.timeout(TURN_SECONDS):
            while True:
                about = (await self.workflow(turn_id).describe()).raw_description
                if not about.pending_activities and not about.HasField("pending_workflow_task"):
                    return
                await asyncio.sleep(0.002)


async def run_turns(side: Side, count: int, scale: Scale) -> float:
    """Run gated turns and decide them; returns turns per second.

    ``scale.concurrency`` turns are at work at any time; those that wait for their person do not count. The person thinks
    for a moment: a decision that overtakes the news that the turn waits reaches the workflow together with it, as one
    task, which is a gate at which no one ever waited, and costs a fifth less.
    """
    left = iter(range(count))
    at_work = asyncio.Semaphore(scale.concurrency)

    async def one_after_another() -> None:
        for _ in left:
            async with at_work:
                turn_id = await side.start()
                ask = await side.ask_of(turn_id)
            await asyncio.sleep(scale.think_seconds)
            async with at_work:
                await side.decide(ask)
                await side.complete(turn_id)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(2 * scale.concurrency):
            group.create_task(one_after_another())
    return count / (time.perf_counter() - began)
