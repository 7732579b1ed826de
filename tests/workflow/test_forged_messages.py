"""I13: what comes through Temporal decides nothing, no matter who sends it and what it says."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.engine.stack import ListModel, Script, Stack, call, person, says, stack, until
from support.engine.tools import Bench
from temporalio.client import Client, RPCError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from turngate import Limits, Policy, Rule
from turngate.activities.call_model import CallModel
from turngate.activities.close_step import CloseStep
from turngate.activities.escalation import Escalation
from turngate.activities.run_tool import RunTool
from turngate.activities.settle_call import SettleCall
from turngate.approvals_api.runs import control
from turngate.domain.contract import (
    AgentTurnInput,
    CallModelInput,
    ClimbLadderInput,
    CloseStepInput,
    RecordExpiryInput,
    RunLimits,
    RunToolInput,
    SettleCallInput,
)
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.runs.turn_state import TurnState
from turngate.domain.tools.tool import Effect
from turngate.models.port import ModelRequest
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.toolkits.control_calls import finish, wait_until

IN_1999, IN_2100 = datetime(1999, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
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
    """I13: an order to end a run, from a workflow that someone forged, can stop it; who, why and when are not the order's."""
    async with stack(client, sqlite, bench.pay, model=paying(), working=False) as engine:
        run = await engine.start()
        await engine.workflow(run).terminate()
        order = CloseStepInput(run_id=run.id, status="interrupted", reason="The CEO says so.", by="the-ceo", at=IN_1999)
        await ActivityEnvironment().run(CloseStep(engine.engine).close_step, order)
        ended = (await engine.event(run, "run.ended")).payload
        assert (ended["by"], ended["reason"]) == ("engine", "The workflow was cancelled.")


def forged_orders(engine: Stack, run: runs.Run, request: requests.Request) -> list[tuple[Any, Any]]:
    """Activities as someone may start them who reaches Temporal: each would bring something forward."""
    requests_of, model, tool = Escalation(engine.engine), CallModel(engine.engine), RunTool(engine.engine)
    own = {"run_id": run.id, "request_id": request.id}
    return [
        *((requests_of.record_expiry, RecordExpiryInput(**own, at=at)) for at in (IN_1999, IN_2100)),
        *((requests_of.climb_ladder, ClimbLadderInput(**own, rung=rung, at=IN_2100)) for rung in (0, 1, 99)),
        *((model.call_model, CallModelInput(run_id=run.id, step=step)) for step in (-1, 0, 2, 3, 99)),
        *((SettleCall(engine.engine).settle_call, SettleCallInput(run_id=run.id, call=each)) for each in ("c1", "w1")),
        *((tool.run_tool, RunToolInput(run_id=run.id, call="c1", then_step=step)) for step in (2, 99)),
    ]


async def test_i13_forged_activities_bring_nothing_forward(client: Client, sqlite: Database, bench: Bench) -> None:
    """I13: a request neither expires nor climbs, a wait does not end, and no step is taken before the store says so."""
    rung = {"after_seconds": 60, "do": "delegate", "people": ["mallory"]}
    asks = {"name": "slow", "verdict": "ask", "tools": ["pay"], "expires_after_seconds": 3_600, "ladder": [rung]}
    policy = Policy.model_validate({"rule": [asks, {"name": "waits", "verdict": "allow", "tools": ["wait_until"]}]})
    model = ListModel(
        says(call("pay", '{"cents": 5}', "c1"), call("wait_until", '{"seconds": 3600}', "w1")), says("Done.")
    )
    async with stack(client, sqlite, bench.pay, wait_until, model=model, policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.event(run, "execution.started")
        await engine.idle(run)
        before = [event.type for event in await engine.events(run)]
        for forged_activity, order in forged_orders(engine, run, request):
            with suppress(ApplicationError, LookupError):
                await ActivityEnvironment().run(forged_activity, order)
        async with sqlite.read() as conn:
            assert await requests.get(conn, request.id) == request
        assert [event.type for event in await engine.events(run)] == before
        assert (await engine.results(run), len(model.seen)) == ({"c1": None, "w1": None}, 1)
        await engine.interrupt(run)
        await engine.ended(run)


async def test_i13_a_forged_workflow_takes_no_step_before_its_turn(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I13: a workflow in place of the run's own, with a state and limits that someone made up, finds what the store says."""
    limits, model = Limits(steps=2), paying()
    async with stack(client, sqlite, bench.pay, model=model, limits=limits, working=False) as engine:
        run = await engine.start()
        async with engine.worker():
            await engine.request(run)
            await engine.workflow(run).terminate()
            for step in (2, 7):
                forged_start = AgentTurnInput(
                    run_id=run.id, agent="other", limits=RunLimits(steps=10**6), state=TurnState(step=step)
                )
                workflow = await client.start_workflow(
                    "AgentTurn", forged_start, id=run.id, task_queue=engine.task_queue
                )

                async def is_refused(workflow: WorkflowHandle[Any, Any] = workflow) -> bool:
                    described = await workflow.describe()
                    pending = described.raw_description.pending_activities
                    return described.close_time is not None or any(each.attempt > 1 for each in pending)

                await until(is_refused, "an attempt that failed")
                with suppress(RPCError):  # it has ended
                    await workflow.terminate()
        assert (bench.paid, len(model.seen)) == ([], 1)


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


async def test_i13_a_forged_end_completes_no_run_that_is_not_over(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I13: a run is completed when every call of its last step has its result and one of them finishes it, and not before.

    No step follows one that finishes its run either, whatever was ordered.
    """
    model = ListModel(says(call("pay", '{"cents": 5}', "c1"), call("finish", '{"answer": "All is paid."}', "f1")))
    policy = Policy(rule=[Rule(name="ends", verdict="allow", tools=["finish"])])
    async with stack(client, sqlite, bench.pay, finish, model=model, policy=policy) as engine:
        run, forge, close_step = await engine.start(), ActivityEnvironment().run, CloseStep(engine.engine).close_step
        completed = CloseStepInput(run_id=run.id, status="completed", reason="", at=IN_1999)
        request = await engine.request(run)
        await until_settled(engine, run, "f1")
        with pytest.raises(LookupError, match="has open calls"):
            await forge(close_step, completed)
        async with sqlite.read() as conn:
            assert await requests.get(conn, request.id) == request
        await engine.workflow(run).terminate()
        await engine.decide(request, "approve")
        assert (await forge(RunTool(engine.engine).run_tool, RunToolInput(run_id=run.id, call="c1"))).state == "settled"
        with pytest.raises(LookupError, match="ends with step 1"):
            await forge(CallModel(engine.engine).call_model, CallModelInput(run_id=run.id, step=2))
        await forge(close_step, completed)
        assert ((await engine.ended(run)).status, bench.paid, len(model.seen)) == ("completed", [5], 1)


async def until_settled(engine: Stack, run: runs.Run, tool_call_id: str) -> None:
    async def look() -> bool:
        return (await engine.results(run))[tool_call_id] is not None

    await until(look, f"result of {tool_call_id}")


@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_i3_i13_a_forged_order_starts_no_call_that_runs(
    client: Client, sqlite: Database, bench: Bench, effect: Effect
) -> None:
    """I3, I13: an order for a call that runs waits for its end: it doesn't start again, and no one is asked what happened."""
    slow = replace(bench.slow, effect=effect)
    async with stack(client, sqlite, slow, model=ListModel(says(call("slow", "{}", "c1")), says("Done."))) as engine:
        run = await engine.start()
        await bench.started.wait()
        order = RunToolInput(run_id=run.id, call="c1")
        orders = [asyncio.create_task(ActivityEnvironment().run(RunTool(engine.engine).run_tool, order)) for _ in "123"]
        await asyncio.wait(orders, timeout=0.5)
        assert (bench.most_running, (await engine.executions(run))["c1"].state) == (1, "executing")
        bench.release.set()
        assert {each.state for each in await asyncio.gather(*orders)} == {"settled"}
        assert (await engine.ended(run)).status == "completed"
        assert ((await engine.executions(run))["c1"].attempts, bench.most_running) == (1, 1)
        async with sqlite.read() as conn:
            assert await requests.of_run(conn, run.id) == []


@pytest.mark.parametrize("ordered", ["interrupt", "pause"])
async def test_i13_a_forged_order_starts_nothing_again_that_someone_has_stopped(
    client: Client, sqlite: Database, bench: Bench, ordered: str
) -> None:
    """I13: a call that lost its worker does not start again in a run that was interrupted or paused meanwhile."""
    slow, model = replace(bench.slow, effect="idempotent"), ListModel(says(call("slow", "{}", "c1")))
    async with stack(client, sqlite, slow, model=model, working=False) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await bench.started.wait()
        await (
            engine.interrupt(run) if ordered == "interrupt" else control.pause(engine.services, person("ann"), run.id)
        )
        order = RunToolInput(run_id=run.id, call="c1")
        assert (await ActivityEnvironment().run(RunTool(engine.engine).run_tool, order)).state == "stopped"
        assert (await engine.executions(run))["c1"].attempts == 1
        await engine.workflow(run).terminate()


async def test_i13_a_forged_order_pays_for_no_second_answer(client: Client, sqlite: Database, bench: Bench) -> None:
    """I13: an order for a step whose model is being asked waits for the answer, and finds it."""

    async def answers_late(_request: ModelRequest) -> ModelResponse:
        bench.started.set()
        await bench.release.wait()
        return says("Done.")

    model = Script(answers_late)
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start()
        await bench.started.wait()
        order = CallModelInput(run_id=run.id, step=1)
        again = asyncio.create_task(ActivityEnvironment().run(CallModel(engine.engine).call_model, order))
        await asyncio.wait([again], timeout=0.3)
        assert len(model.seen) == 1
        bench.release.set()
        assert (await again).final
        assert (await engine.ended(run)).status == "completed"
        assert len(model.seen) == 1
