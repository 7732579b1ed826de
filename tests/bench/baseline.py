"""The yardstick: the hand-written version of model, wait for a signal, tool, model.

No store, no digest, no heartbeats, no exactly-once: three trivial activities and one signal. It shares client, converter,
sandbox and worker settings with Turngate.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

with workflow.unsafe.imports_passed_through():
    from bench.sides import TURN_SECONDS, Ask, Side

    from turngate.runtime.worker_group import WorkerGroup

BRIEF = timedelta(seconds=60)


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True)


class ModelCall(_Wire):
    turn_id: str
    step: int


class ToolCall(_Wire):
    turn_id: str
    cents: int


class Answer(_Wire):
    tool: ToolCall | None = None
    text: str = ""


class Approval(_Wire):
    by: str


@workflow.defn(name="MinimalTurn")
class MinimalTurn:
    @workflow.init
    def __init__(self, turn_id: str) -> None:
        self._approval: Approval | None = None

    @workflow.run
    async def run(self, turn_id: str) -> str:
        answer: Answer = await workflow.execute_activity(
            "minimal_model", ModelCall(turn_id=turn_id, step=1), result_type=Answer, start_to_close_timeout=BRIEF
        )
        await workflow.wait_condition(lambda: self._approval is not None)
        await workflow.execute_activity("minimal_tool", answer.tool, start_to_close_timeout=BRIEF)
        await workflow.execute_activity(
            "minimal_model", ModelCall(turn_id=turn_id, step=2), result_type=Answer, start_to_close_timeout=BRIEF
        )
        return "completed"

    @workflow.signal
    def approve(self, approval: Approval) -> None:
        self._approval = approval


class Baseline(Side):
    """The hand-written turn. Its first activity tells the decider, in memory, that the turn is about to wait."""

    def __init__(self, client: Client, *, task_queue: str | None = None) -> None:
        super().__init__("baseline", client)
        self._task_queue = task_queue or f"baseline-{secrets.token_hex(4)}"

    @activity.defn
    async def minimal_model(self, call: ModelCall) -> Answer:
        if call.step > 1:
            return Answer(text="Done.")
        self.tell(Ask(turn_id=call.turn_id))
        return Answer(tool=ToolCall(turn_id=call.turn_id, cents=5))

    @activity.defn
    async def minimal_tool(self, call: ToolCall) -> dict[str, int]:
        self.handlers.note(call.turn_id)
        return {"paid": call.cents}

    def worker(self, like: WorkerGroup) -> Worker:
        """Return the baseline's worker, with every setting of ``like``, Turngate's, but its lanes: it has one queue."""
        settings: dict[str, Any] = like.workers[0].config()
        runner = settings["workflow_runner"]
        assert isinstance(runner, SandboxedWorkflowRunner)
        # Like Turngate's own modules, this one is shared instead of imported again for every run.
        shared = runner.restrictions.with_passthrough_modules("bench")
        settings.update(
            task_queue=self._task_queue,
            workflows=[MinimalTurn],
            activities=[self.minimal_model, self.minimal_tool],
            workflow_runner=replace(runner, restrictions=shared),
            interceptors=[],
        )
        return Worker(**settings)

    async def start(self, conversation_id: str | None = None) -> str:
        del conversation_id  # a conversation is what it does not have
        turn_id = f"run_{secrets.token_hex(12)}"
        await self.client.start_workflow("MinimalTurn", turn_id, id=turn_id, task_queue=self._task_queue)
        return turn_id

    async def decide(self, ask: Ask) -> None:
        async with asyncio.timeout(TURN_SECONDS):
            await self.workflow(ask.turn_id).signal("approve", Approval(by="operator"))
