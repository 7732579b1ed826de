"""I11: a run stays replayable although Temporal divides its history into other tasks on replay."""

from __future__ import annotations

import asyncio

import pytest
from support.engine.stack import ListModel, Stack, call, says, stack, until
from support.engine.tools import Amount
from temporalio.client import Client

from turngate import tool
from turngate.runtime import workflow_code
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.workflows.agent_turn import AgentTurn


@pytest.mark.unencrypted  # it reads Temporal's history itself
async def test_i11_a_gate_that_opened_in_a_quiet_workflow_task_is_found_by_the_next_task(
    client: Client, sqlite: Database
) -> None:
    """I11, I5: news of decisions are found, even if a new worker reads the tasks as one.

    The outcome request is opened by an activity's result, no command since the last workflow task; then signals about it and
    about another come together, to a worker that has to read the history from its start.
    """
    paid: list[int] = []

    @tool(effect="once", ask=True)
    async def pay(params: Amount) -> int:
        """Pay, and lose the worker the first time."""
        paid.append(params.cents)
        if len(paid) == 1:
            await asyncio.Event().wait()  # until the worker below is stopped
        return params.cents

    async def started() -> bool:
        return bool(paid)

    model = ListModel(says(call("pay", '{"cents": 1}', "c1"), call("pay", '{"cents": 2}', "c2")), says("Done."))
    async with stack(client, sqlite, pay, model=model, working=False) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            first, second = await pending(engine, run, 2)
            await engine.decide(first, "approve")
            await until(started, "start of the handler")
            await quiet_task(engine, run)
        async with engine.worker():
            outcome = await engine.request(run, kind="outcome")
            await engine.idle(run)
        await engine.decide(outcome, "respond", outcome="did_not_happen")
        await engine.decide(second, "approve")
        async with engine.worker():
            await engine.ended(run)
        assert sorted(paid) == [1, 1, 2]
        history = await engine.workflow(run).fetch_history()
    replayed = await workflow_code.build_replayer(AgentTurn).replay_workflow(history, raise_on_replay_failure=False)
    assert replayed.replay_failure is None


async def quiet_task(engine: Stack, run: runs.Run) -> None:
    """Let the run have a workflow task without a command: it has no such request."""
    await engine.workflow(run).signal("decided", "rq_unknown")

    async def done() -> bool:
        return not (await engine.workflow(run).describe()).raw_description.HasField("pending_workflow_task")

    await until(done, "rest of the workflow")


async def pending(engine: Stack, run: runs.Run, count: int) -> list[requests.Request]:
    """The run's pending requests in the order of their calls, once there are so many."""

    async def look() -> list[requests.Request] | None:
        rows = [each for each in await engine.requests_of(run) if each.status == "pending"]
        return rows if len(rows) == count else None

    rows = await until(look, f"{count} pending requests")
    return sorted(rows, key=lambda request: request.tool_call_id)
