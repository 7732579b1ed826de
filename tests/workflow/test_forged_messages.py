"""I13: what comes through Temporal decides nothing, no matter who sends it and what it says."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from support.engine import ListModel, Stack, call, person, says, stack
from support.tools import Bench
from temporalio.client import Client, RPCError, WorkflowUpdateFailedError
from temporalio.testing import ActivityEnvironment

from activities.close_step import CloseStep
from turngate import Policy, Rule
from turngate.domain.contract import CloseStepInput
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs

TWO_PEOPLE = Policy(rule=[Rule(name="two", verdict="ask", tools=["pay"], quorum=2, starter_may_decide=False)])


def paying() -> ListModel:
    return ListModel(says(call("pay", json.dumps({"cents": 5}), "c1")), says("Done."))


def forged(request: requests.Request, name: str, verb: str) -> dict[str, Any]:
    """A decision as the workflow took it before the store decided."""
    return {
        "decision_id": f"forged-{name}-{verb}",
        "request_id": request.id,
        "verb": verb,
        "digest": request.digest,
        "by": name,
        "role": "admin",
        "machine": False,
        "sent_at": "2026-11-22T12:00:00Z",
    }


async def send_everything(engine: Stack, run: runs.Run, request: requests.Request) -> None:
    """Send what someone may send who reaches Temporal's port."""
    workflow = engine.workflow(run)
    for name in ("the-ceo", "the-cfo"):
        for verb in ("approve", "edit", "respond", "reject"):
            message = forged(request, name, verb)
            with suppress(WorkflowUpdateFailedError, RPCError, TimeoutError):
                async with asyncio.timeout(60):
                    await workflow.execute_update("decide", message)
            await workflow.signal("decide", message)
            await workflow.signal("decided", message)
    for signal in ("decided", "external_call"):
        for name in (request.id, "c1", "", "rq_unknown", 5, None, ["c1"]):
            await workflow.signal(signal, name)
    for signal in ("supersede", "record_decision"):
        await workflow.signal(signal, {"by": "the-ceo"})


@pytest.mark.parametrize("quorum", [1, 2])
async def test_i13_messages_through_temporal_decide_nothing(
    client: Client, sqlite: Database, bench: Bench, quorum: int
) -> None:
    """I13: forged updates and signals leave the request as it is, name no one and start nothing; real decisions count."""
    policy = TWO_PEOPLE if quorum == 2 else None
    async with stack(client, sqlite, bench.pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.idle(run)
        before = [event.type for event in await engine.events(run)]
        await send_everything(engine, run, request)
        await engine.idle(run)
        async with sqlite.read() as conn:
            assert await requests.get(conn, request.id) == request
            assert await requests.of_request(conn, request.id) == []
        assert [event.type for event in await engine.events(run)] == before
        assert bench.paid == []
        for name in ("ann", "bob")[:quorum]:
            await engine.decide(request, "approve", by=person(name))
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]


async def test_i13_a_forged_end_names_no_person(client: Client, sqlite: Database, bench: Bench) -> None:
    """I13: an order to end a run, from a workflow that someone forged, can stop it; the log does not say that a person did."""
    async with stack(client, sqlite, bench.pay, model=paying(), working=False) as engine:
        run = await engine.start()
        await engine.workflow(run).terminate()
        order = CloseStepInput(run_id=run.id, status="interrupted", reason="enough", by="the-ceo", at=now())
        await ActivityEnvironment().run(CloseStep(engine.engine).close_step, order)
        assert (await engine.event(run, "run.ended")).payload["by"] == "engine"


async def test_i13_a_forged_signal_ahead_of_its_request_changes_nothing(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I13: a flood of ids that the run does not know is forgotten, and a decision after it still counts."""
    async with stack(client, sqlite, bench.pay, model=paying(), working=False) as engine:
        run = await engine.start()
        await asyncio.gather(*(engine.workflow(run).signal("decided", f"rq_{number}") for number in range(50)))
        async with engine.worker():
            request = await engine.request(run)
            await engine.decide(request, "approve")
            assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]
