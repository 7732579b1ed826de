"""The two contestants' common face: a gated turn that can be started, seen waiting, decided and awaited."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowHandle

from bench.figures import BenchFailure

TURN_SECONDS = 60.0
"""A turn that takes longer has not completed, and the run fails."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A turn that waits for a decision. ``request``: whatever the side needs to decide it."""

    turn_id: str
    request: Any = None


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
    """One contestant. ``asks``: turns that wait for a decision, each once, in the order they were seen."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.asks: asyncio.Queue[Ask] = asyncio.Queue()
        self.handlers = Handlers()

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
        """Wait for the turn's end; raises BenchFailure unless it completed and its tool ran exactly once."""
        try:
            result = await self.workflow(turn_id).result(rpc_timeout=timedelta(seconds=TURN_SECONDS))
        except Exception as error:
            raise BenchFailure(f"{self.name}: turn {turn_id} did not complete: {error!r}") from error
        status = result["status"] if isinstance(result, dict) else result
        if status != "completed":
            raise BenchFailure(f"{self.name}: turn {turn_id} ended as {result!r}")
        if self.handlers.starts[turn_id] != 1:
            raise BenchFailure(f"{self.name}: the tool of {turn_id} ran {self.handlers.starts[turn_id]} times")

    async def next_ask(self) -> Ask:
        """The next turn that waits; raises BenchFailure when none comes."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                return await self.asks.get()
        except TimeoutError:
            raise BenchFailure(f"{self.name}: a turn never asked for its decision") from None

    async def idle(self, turn_id: str) -> None:
        """Return once the workflow does nothing but wait: no activity and no workflow task pending."""
        async with asyncio.timeout(TURN_SECONDS):
            while True:
                about = (await self.workflow(turn_id).describe()).raw_description
                if not about.pending_activities and not about.HasField("pending_workflow_task"):
                    return
                await asyncio.sleep(0.002)


async def run_turns(side: Side, count: int, concurrency: int) -> float:
    """Run gated turns, ``concurrency`` at a time, decided by one central decider; returns turns per second."""
    left = iter(range(count))

    async def one_after_another() -> None:
        for _ in left:
            await side.complete(await side.start())

    async def decider() -> None:
        async with asyncio.TaskGroup() as deciding:
            for _ in range(count):
                ask = await side.next_ask()
                deciding.create_task(side.decide(ask))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        group.create_task(decider())
        for _ in range(concurrency):
            group.create_task(one_after_another())
    return count / (time.perf_counter() - began)
