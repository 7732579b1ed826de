"""I11: a run stays replayable although Temporal divides its history into other tasks on replay."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from support.engine import ListModel, Stack, call, says, stack, until
from support.tools import Amount
from temporalio.client import Client, WorkflowUpdateFailedError

from turngate import tool
from turngate.domain.contract import DecideInput, ResumeInput
from turngate.domain.requests import Resolution, Verb
from turngate.runtime import workflow_code
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs
from workflows.agent_turn import AgentTurn


def decision(request: requests.Request, name: str, verb: Verb, outcome: Resolution | None = None) -> DecideInput:
    return DecideInput(
        decision_id=name,
        request_id=request.id,
        verb=verb,
        digest=request.digest,
        by="ann",
        sent_at=now(),
        outcome=outcome,
    )


async def send_without_a_worker(engine: Stack, run: runs.Run, update: DecideInput, *signals: DecideInput) -> None:
    """Send an update and then signals, so that history has the workflow task before what came with it.

    The update alone leaves no event; the first signal makes its workflow task a real one, which is written before the signal
    and so directly after the last one (temporalio/sdk-rust#1146).
    """
    workflow = engine.workflow(run)
    waiting = asyncio.create_task(workflow.execute_update("decide", update, id=update.decision_id))
    try:
        await asyncio.sleep(0.5)  # admitted: nothing says so
        for signal in signals:
            await workflow.signal("decide", signal)
        async with engine.worker():
            await engine.ended(run)
            with suppress(WorkflowUpdateFailedError):
                await waiting
    finally:
        waiting.cancel()


async def test_i11_a_gate_that_opened_in_a_quiet_workflow_task_is_found_by_the_next_task(
    client: Client, sqlite: Database
) -> None:
    """I11, I5: decisions count in the order of arrival, even if a new worker reads the tasks as one.

    The outcome request is opened by an activity's result, no command since the last workflow task; then its decision and
    another come together with an update, to a worker that has to read the history from its start.
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
        answer = decision(outcome, "ann-outcome", "respond", "did_not_happen")
        await send_without_a_worker(engine, run, answer, answer, decision(second, "ann-approves", "approve"))
        assert paid == [1, 1, 2]
        history = await engine.workflow(run).fetch_history()
    replayed = await workflow_code.build_replayer(AgentTurn).replay_workflow(history, raise_on_replay_failure=False)
    assert replayed.replay_failure is None


async def quiet_task(engine: Stack, run: runs.Run) -> None:
    """Let the run have a workflow task without a command: it is not paused, so resuming changes nothing."""
    await engine.workflow(run).signal("resume", ResumeInput(by="ann"))

    async def done() -> bool:
        return not (await engine.workflow(run).describe()).raw_description.HasField("pending_workflow_task")

    await until(done, "rest of the workflow")


async def pending(engine: Stack, run: runs.Run, count: int) -> list[requests.Request]:
    """The run's pending requests in the order of their calls, once there are so many."""

    async def look() -> list[requests.Request] | None:
        async with engine.database.read() as conn:
            rows = [each for each in await requests.of_run(conn, run.id) if each.status == "pending"]
        return rows if len(rows) == count else None

    rows = await until(look, f"{count} pending requests")
    return sorted(rows, key=lambda request: request.tool_call_id)
