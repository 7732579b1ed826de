"""Safe thaw: many runs that wake at once are done a few at a time, and those that have waited longest go first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from support.engine.stack import Script, Stack, call, says, stack
from support.engine.tools import Amount, Bench
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import Client

from turngate import Policy, Rule, ToolContext, tool
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.policy.arguments import ArgumentMatcher
from turngate.domain.tools.tool import Tool
from turngate.models.port import ModelRequest
from turngate.store.database import Database
from turngate.store.runs import runs

PARKED = 36
TOOLS_AT_ONCE, MODELS_AT_ONCE = 4, 2


@dataclass
class Ledger:
    """What tools or models recorded: who started, and how many of them ran at once at most.

    The first ones wait for each other, until all ``places`` are taken.
    """

    places: int
    full: asyncio.Event = field(default_factory=asyncio.Event)
    started: list[str] = field(default_factory=list)
    now: int = 0
    most: int = 0

    @asynccontextmanager
    async def running(self, who: str) -> AsyncIterator[None]:
        self.started.append(who)
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self.places:
            self.full.set()
        try:
            await self.full.wait()
            await asyncio.sleep(0.01)
            yield
        finally:
            self.now -= 1


def paying(ledger: Ledger) -> Tool:
    @tool(effect="once", ask=True)
    async def pay(params: Amount, ctx: ToolContext) -> dict[str, int]:
        """Pay."""
        async with ledger.running(ctx.run_id):
            return {"paid": params.cents}

    return pay


async def decide_without_a_worker(engine: Stack, parked: list[runs.Run]) -> None:
    """Approve each run's request, the oldest first, and wait until Temporal has the signal.

    Tasks for a worker that has only just gone wait two seconds for it, and come after those of other runs then. These
    runs' worker has been gone for longer.
    """
    service = engine.client.workflow_service
    for run in parked:
        execution = WorkflowExecution(workflow_id=run.id)
        await service.reset_sticky_task_queue(ResetStickyTaskQueueRequest(namespace="default", execution=execution))
    pending = {run.id: (await engine.requests_of(run))[0] for run in parked}
    for run in parked:
        await engine.decide(pending[run.id], "approve")
        await engine.services.gateway.tell_decided_again(run.id, pending[run.id].id)


def out_of_order(started: list[str], waited: list[str]) -> float:
    """The share of pairs that changed places on the way: 0 none, 0.5 as by chance (Kendall's distance)."""
    places = [waited.index(each) for each in started]
    pairs = [(first, second) for at, second in enumerate(places) for first in places[:at]]
    return sum(first > second for first, second in pairs) / len(pairs)


async def test_i5_parked_runs_thaw_a_few_at_a_time_and_oldest_first(client: Client, sqlite: Database) -> None:
    """I5: all of them end, with at most so many tools and model requests at once, nearly in the order of their approvals."""
    tools, models = Ledger(TOOLS_AT_ONCE), Ledger(MODELS_AT_ONCE)

    async def done(request: ModelRequest) -> ModelResponse:
        async with models.running(""):
            return says("Done.")

    model = Script(says("I pay.", call("pay", '{"cents": 5}', "p")), done)
    async with stack(client, sqlite, paying(tools), model=model, working=False) as engine:
        async with engine.worker(max_cached_workflows=PARKED):
            parked = [await engine.start() for _ in range(PARKED)]
            for run in parked:
                await engine.request(run)
                await engine.idle(run)
        await decide_without_a_worker(engine, parked)
        assert tools.started == []
        bounds = {"tool_calls_at_once": TOOLS_AT_ONCE, "model_requests_at_once": MODELS_AT_ONCE}
        async with engine.worker(max_cached_workflows=PARKED, **bounds):
            for run in parked:
                assert (await engine.ended(run, seconds=60)).status == "completed"
    waited = [run.id for run in parked]
    assert sorted(tools.started) == sorted(waited)
    assert (tools.most, models.most) == (TOOLS_AT_ONCE, MODELS_AT_ONCE)
    # Runs that are done at once overtake each other, on a busy machine more. It is 0.33 where a queue has four partitions.
    assert out_of_order(tools.started, waited) < 0.22


@pytest.mark.exhaustive
async def test_a_lane_that_is_full_holds_up_no_other(client: Client, sqlite: Database, bench: Bench) -> None:
    """A tool that takes long in the only place for tools holds up no model and no expiry; a slow model holds up no tool."""
    impatient = ArgumentMatcher(at="/cents", op="eq", value=1)
    policy = Policy(rule=[Rule(name="brief", verdict="ask", tools=["pay"], args=[impatient], expires_after_seconds=1)])
    thinking, thought = asyncio.Event(), asyncio.Event()

    async def asks(request: ModelRequest) -> ModelResponse:
        text = request.messages[-1].text
        if text == "think":
            thinking.set()
            await thought.wait()
            return says("Thought.")
        return says(call("slow", "{}", "s") if text == "slow" else call("pay", f'{{"cents": {text}}}', "p"))

    model = Script(asks, says("Done."))
    async with (
        stack(client, sqlite, bench.slow, bench.pay, model=model, policy=policy, working=False) as engine,
        engine.worker(max_cached_workflows=10, tool_calls_at_once=1, model_requests_at_once=1),
    ):
        slow = await engine.start("slow")
        await bench.started.wait()
        expired = await engine.start("1")
        assert (await engine.ended(expired)).status == "completed"
        assert (await engine.results(expired))["p"].kind == "expired"
        assert bench.running == 1
        bench.release.set()
        await engine.ended(slow)

        approved = await engine.start("5")
        request = await engine.request(approved)
        thinks = await engine.start("think")
        await thinking.wait()
        await engine.decide(request, "approve")
        assert (await engine.event(approved, "execution.finished")).payload["ok"]
        thought.set()
        for run in (thinks, approved):
            assert (await engine.ended(run)).status == "completed"
