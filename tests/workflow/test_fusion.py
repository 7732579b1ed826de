"""The activity that settles the last open call of a step takes the next one, too, where nothing else comes first (ADR 0033)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from support.engine.stack import ListModel, Script, Stack, call, person, says, stack, until
from support.engine.tools import Bench
from support.stores.database_faults import Fault, Faults
from support.stores.sql_census import SqlCensus
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Hooks, Limits, ToolFailure, sub_agent, tool
from turngate import worker as composition
from turngate.activities.call_model import CallModel
from turngate.activities.engine.heartbeats import INTERVAL_SECONDS, heartbeating
from turngate.activities.run_tool import RunTool
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.recovery import recover
from turngate.approvals_api.runs import control, explain, send_message
from turngate.domain.agents.app import Agent
from turngate.domain.contract import MODEL_REQUEST_SECONDS, CallModelInput, RunToolInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ModelError, UnavailableError
from turngate.domain.tools.results import Ok
from turngate.domain.tools.toolkit import Toolkit
from turngate.models import ModelRequest
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.runs import calls, orders, runs
from turngate.toolkits import control_calls
from turngate.wire.orders import MessageOrder

PERSON = person("ada")
PAY = call("pay", '{"cents": 5}', "p")
SLOW = call("slow", "{}", "s")
LOOK = call("look", '{"name": "x"}', "l")
FUSED = ["call_model", "run_tool"]
APART = ["call_model", "run_tool", "call_model"]


async def activities(engine: Stack, run: runs.Run) -> list[str]:
    """The activities of the run's workflow, in order."""
    history = await engine.workflow(run).fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def completed(engine: Stack, run: runs.Run) -> list[str]:
    """Wait until the run is completed and its workflow is over; returns its activities."""
    assert (await engine.ended(run)).status == "completed"
    await engine.closed(run)
    assert is_reconciled(await engine.history(run))
    return await activities(engine, run)


async def approved(engine: Stack, **options: Any) -> runs.Run:
    run = await engine.start(**options)
    await engine.decide(await engine.request(run), "approve")
    return run


class HeldModel(Script):
    """A script whose second response waits for a word."""

    def __init__(self, first: ModelResponse, second: ModelResponse) -> None:
        self.request_came = asyncio.Event()
        self.go = asyncio.Event()
        self.stopped = False

        async def hold(_request: ModelRequest) -> ModelResponse:
            self.request_came.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.stopped = True
                raise
            return second

        super().__init__(first, hold)


async def test_i8_a_gated_turn_takes_two_activities_and_21_events(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I8: the call's activity asks the model, so a gated turn leaves 21 events and at most 5 KiB, its expiry's timer apart.

    A call that was rejected has its result before its activity starts; the model reads it in the same activity.
    """
    limits = Limits(request_expiry=None)
    async with stack(client, sqlite, bench.pay, model=Script(says(PAY), says("Done.")), limits=limits) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.idle(run)
        await engine.decide(request, "approve")
        assert await completed(engine, run) == FUSED
        events = (await engine.workflow(run).fetch_history()).events
        assert len(events) == 21
        assert sum(event.ByteSize() for event in events) <= 5 * 1024
        assert (await engine.workflow(run).result())["steps"] == 2
        rejected = await engine.start()
        await engine.decide(await engine.request(rejected), "reject")
        assert await completed(engine, rejected) == FUSED
        assert bench.paid == [5]


async def test_of_calls_that_settle_at_once_one_asks_the_model(client: Client, sqlite: Database, bench: Bench) -> None:
    """Six calls of one step that end together: the model is asked once for the next step, by one of their activities."""
    model = Script(says(*(call("slow", "{}", f"s{number}") for number in range(6))), says("Done."))
    async with stack(client, sqlite, bench.slow, model=model, limits=Limits(concurrency=6)) as engine:
        run = await engine.start()
        await until(lambda: asyncio.sleep(0, bench.running == 6), "six running calls")
        bench.release.set()
        assert await completed(engine, run) == ["call_model", *["run_tool"] * 6]
        assert len(model.seen) == 2


async def test_a_long_run_continues_step_by_step(client: Client, sqlite: Database, bench: Bench) -> None:
    """Each step's call takes the next step: one activity for each, gated or not, and the limit of steps counts as before."""
    model = ListModel(*(says(call("look", f'{{"name": "{n}"}}')) for n in range(5)), says("Done."))
    async with stack(client, sqlite, bench.look, model=model, limits=Limits(steps=6)) as engine:
        assert await completed(engine, await engine.start()) == ["call_model", *["run_tool"] * 5]
        assert bench.looked == ["0", "1", "2", "3", "4"]
    capped = ListModel(says(LOOK), says(call("look", '{"name": "y"}')), says("Too late."))
    async with stack(client, sqlite, bench.look, model=capped, limits=Limits(steps=2)) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class, len(capped.seen)) == ("failed", "step_cap", 2)


async def test_a_sub_agents_answer_comes_by_its_own_steps(client: Client, sqlite: Database, bench: Bench) -> None:
    """A sub-agent's run takes its steps in the same way; its parent's step is closed by the model's own activity."""
    helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(bench.look), model="scripted:test")
    script = ListModel(says(call("helper", '{"task": "Look."}', "d")), says(LOOK), says("Seen."), says("Done."))
    async with stack(client, sqlite, sub_agent(helper), model=script) as engine:
        run = await engine.start()
        child = await engine.child(run, "d")
        assert await completed(engine, run) == ["call_model", "run_tool", "settle_call", "call_model"]
        assert await completed(engine, child) == FUSED


@pytest.mark.parametrize("eager", [True, False])
async def test_a_run_begins_with_the_worker_of_its_own_process(
    client: Client, sqlite: Database, bench: Bench, *, eager: bool
) -> None:
    """A gateway beside a worker of its client gets a run's first task with the answer to its start; no other does."""
    async with stack(client, sqlite, bench.look, model=ListModel(says(LOOK), says("Done."))) as engine:
        engine.services = replace(engine.services, gateway=Gateway(client, eager=eager))
        run = await engine.start()
        assert await completed(engine, run) == FUSED
        first, *_more = (await engine.workflow(run).fetch_history()).events
        assert first.workflow_execution_started_event_attributes.eager_execution_accepted is eager


# Not where something else comes first


class AsksOnce(ListModel):
    """Calls a tool until one has answered."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.seen.append(request)
        return says("Done.") if any(message.role == "tool" for message in request.messages) else says(SLOW)


async def test_not_where_a_person_intervened_meanwhile(client: Client, sqlite: Database, bench: Bench) -> None:
    """A pause, an interrupt or a message that came while the call ran: its activity ends with the call, and asks no model.

    The store has the pause and the interrupt, and the workflow does not know of them.
    """
    model = AsksOnce()
    async with stack(client, sqlite, bench.slow, model=model) as engine:
        started = [await engine.start() for _ in range(4)]
        paused, interrupted, *messaged = started
        await until(lambda: asyncio.sleep(0, bench.running == 4), "four running calls")
        async with sqlite.write() as conn:
            assert await runs.pause(conn, paused.id, by="ada", reason="", at=now())
            await orders.interrupt(conn, [interrupted.id], by="ada", reason="enough")
        for run, while_running in zip(messaged, ("inject", "supersede"), strict=True):
            order = MessageOrder.model_validate({"input": "The other one.", "while_running": while_running})
            await send_message.send(engine.services, PERSON, run.id, order)
        bench.release.set()
        for run in messaged:
            assert await completed(engine, run) == APART
            assert [message.role for message in await engine.history(run)] == [
                "user", "assistant", "tool", "user", "assistant",
            ]  # fmt: skip
        assert (await engine.ended(interrupted)).status == "interrupted"
        assert (await engine.results(interrupted))["s"] == Ok(value={"value": "whole"})
        await engine.event(paused, "execution.finished")
        await engine.idle(paused)
        assert await activities(engine, paused) == [*APART, "read_control"]
        assert len(model.seen) == 4 + len(messaged), "the model was asked for a paused or an interrupted run"
        await control.resume(engine.services, PERSON, paused.id)
        await completed(engine, paused)
        assert len(model.seen) == 4 + len(messaged) + 1


async def test_not_where_the_tool_has_a_queue_of_its_own(client: Client, sqlite: Database, bench: Bench) -> None:
    """The worker of a tool's queue may know no model: the run's own worker asks it."""
    elsewhere = replace(bench.look, task_queue="elsewhere")
    async with stack(client, sqlite, elsewhere, model=ListModel(says(LOOK), says("Done."))) as engine:
        run = await engine.start()
        async with composition.build_worker(engine.client, engine.engine, "elsewhere"):
            assert await completed(engine, run) == APART


async def test_not_where_model_requests_have_places_of_their_own(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """A worker that keeps places for model requests asks no model in a tool's place."""
    model = ListModel(says(LOOK), says("Done."))
    async with (
        stack(client, sqlite, bench.look, model=model, working=False) as engine,
        engine.worker(model_requests_at_once=3),
    ):
        assert await completed(engine, await engine.start()) == APART


async def test_not_after_a_control_call(client: Client, sqlite: Database, bench: Bench) -> None:
    """A call beside ``finish`` that ends last asks no model: the run ends with its step."""
    model = ListModel(says(SLOW, call("finish", '{"answer": "Paid."}', "f")), says("Never."))
    async with stack(client, sqlite, bench.slow, control_calls.finish, model=model) as engine:
        run = await engine.start()
        await asyncio.wait_for(bench.started.wait(), 60)
        await until(lambda: has_result(engine, run, "f"), "result of finish")
        bench.release.set()
        assert await completed(engine, run) == ["call_model", "run_tool", "run_tool", "close_step"]
        assert len(model.seen) == 1


async def has_result(engine: Stack, run: runs.Run, call_id: str) -> bool:
    return (await engine.results(run)).get(call_id) is not None


class Broken(ToolFailure):
    reason: str


class NoParams(BaseModel):
    pass


async def test_not_where_a_result_ends_the_run(client: Client, database: Database, bench: Bench) -> None:
    """A call beside one whose failure ends the run asks no model, even where no one knows of that failure yet."""

    @tool(effect="read", failures=[Broken], failure_mode="raise", ask=False)
    async def breaks(params: NoParams) -> int:
        raise Broken(reason="broken")

    model = ListModel(says(call("breaks", "{}", "b"), SLOW), says("Never."))
    async with stack(client, database, breaks, bench.slow, model=model, working=False) as engine:
        run = await engine.start()
        planned = await ActivityEnvironment().run(CallModel(engine.engine).call_model, first_step(run))
        assert len(planned.calls) == 2
        with pytest.raises(Exception, match="broken"):
            await ActivityEnvironment().run(RunTool(engine.engine).run_tool, RunToolInput(run_id=run.id, call="b"))
        bench.release.set()
        last = RunToolInput(run_id=run.id, call="s", then_step=2)
        result = await roomy().run(RunTool(engine.engine, CallModel(engine.engine)).run_tool, last)
        assert (result.state, result.next, len(model.seen)) == ("settled", None, 1)
        await engine.workflow(run).terminate()


def first_step(run: runs.Run) -> CallModelInput:
    return CallModelInput(run_id=run.id, step=1)


def roomy(seconds: float = 2.0 * MODEL_REQUEST_SECONDS) -> ActivityEnvironment:
    """An activity's environment with so much time left."""
    environment = ActivityEnvironment()
    environment.info = replace(
        environment.info, started_time=datetime.now(UTC), start_to_close_timeout=timedelta(seconds=seconds)
    )
    return environment


async def test_not_where_too_little_time_is_left(client: Client, sqlite: Database, bench: Bench) -> None:
    """An activity that has less time left than an attempt to ask the model has leaves the next step alone."""
    model = Script(says(LOOK), says("Done."))
    async with stack(client, sqlite, bench.look, model=model, working=False) as engine:
        for seconds, continues in ((MODEL_REQUEST_SECONDS + 30, True), (MODEL_REQUEST_SECONDS - 1, False)):
            run = await engine.start()
            await ActivityEnvironment().run(CallModel(engine.engine).call_model, first_step(run))
            order = RunToolInput(run_id=run.id, call="l", then_step=2)
            result = await roomy(seconds).run(RunTool(engine.engine, CallModel(engine.engine)).run_tool, order)
            assert (result.state, result.next is not None) == ("settled", continues)
            await engine.workflow(run).terminate()
        assert len(model.seen) == 3


async def test_a_handler_that_does_not_end_loses_its_heartbeat() -> None:
    """Time for the model is no time for the tool: beyond its own, the activity's heartbeat stops, as if its worker were lost."""
    beats: list[float] = []

    async def hangs() -> None:
        began = time.monotonic()
        async with heartbeating(seconds=3600) as heartbeat:
            assert heartbeat.until is not None
            assert began + 3600 <= heartbeat.until <= time.monotonic() + 3600
            await until(lambda: asyncio.sleep(0, beats), "heartbeat")
            heartbeat.until, seen = time.monotonic(), len(beats)
            await asyncio.sleep(2 * INTERVAL_SECONDS)
            assert len(beats) == seen

    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *_details: beats.append(time.monotonic())
    await environment.run(hangs)


async def test_i5_a_call_that_waits_for_its_signal_hears_that_its_step_is_closed(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: a rejection whose signal was lost, beside a call that closes the step: the run continues without a second signal."""
    model = ListModel(says(SLOW, PAY), says("Done."))
    async with stack(client, sqlite, bench.slow, bench.pay, model=model) as engine:
        run = await engine.start()
        await asyncio.wait_for(bench.started.wait(), 60)
        await engine.record(await engine.request(run), "reject", decision_id="unsaid")
        bench.release.set()
        assert await completed(engine, run) == ["call_model", "run_tool", "run_tool"]
        assert len(model.seen) == 2


# The model


async def test_an_interrupt_stops_the_request_to_the_model(client: Client, sqlite: Database, bench: Bench) -> None:
    """While the call's activity asks the model, the run waits for the model, since the call has its result.

    An interrupt cancels the request; the call keeps its result (I1).
    """
    model = HeldModel(says(PAY), says("Never."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await approved(engine)
        await asyncio.wait_for(model.request_came.wait(), 60)
        [wait] = (await explain.explain(engine.services, PERSON, run.id)).waits_for
        async with sqlite.read() as conn:
            settled = await calls.get(conn, run.id, "p")
        assert settled is not None
        assert (wait.kind, wait.since) == ("model", settled.settled_at)
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        assert model.stopped
        await engine.closed(run)
        assert await activities(engine, run) == [*FUSED, "read_control", "close_step"]
        assert (await engine.results(run))["p"] == Ok(value={"paid": 5})
        assert is_reconciled(await engine.history(run))


async def test_a_model_that_fails_is_asked_again_by_its_own_activity(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The failed request counts as the first attempt: watchers read so, and the provider's Retry-After is kept.

    An error that no repeat would change is the run's, with its class, as from the model's own activity; it is asked once.
    """
    limited = ModelError("slow down", error_class="rate_limited", retryable=True, retry_after_seconds=0.3)
    refused = ModelError("no such model", error_class="not_found", retryable=False)
    model = ListModel(says(PAY), limited, limited, says("Done."), says(PAY), refused, says("Never."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await approved(engine)
        assert await completed(engine, run) == APART
        retries = [event for event in await engine.events(run) if event.type == "model.retrying"]
        assert [(event.payload["attempt"], event.payload["retry_in_seconds"]) for event in retries] == [
            (1, 0.3),
            (2, 0.3),
        ]
        answered = [event for event in await engine.events(run) if event.type == "run.ended"]
        waited = datetime.fromisoformat(answered[0].created_at) - datetime.fromisoformat(retries[0].created_at)
        assert waited >= timedelta(seconds=0.6)
        assert (bench.paid, len(model.seen)) == ([5], 4)
        run = await engine.ended(await approved(engine))
        assert (run.status, run.error_class, run.reason) == ("failed", "not_found", "no such model")
        assert len(model.seen) == 6
        assert (await engine.results(run))["p"] == Ok(value={"paid": 5})


# Lost workers

APART_WITH = {"hooks": [Hooks()]}
"""With hooks a result is stored alone, and its step closed after it."""
INSTANTS: dict[str, tuple[Fault, dict[str, Any]]] = {
    "recorded and closed, not asked": (Fault("pass_on_with"), {}),
    "recorded, not closed": (Fault("_record_once"), APART_WITH),
    "closed, not asked": (Fault("_close"), APART_WITH),
    "answered, not planned": (Fault("_store"), APART_WITH),
    "planned, not reported": (Fault("_plan", kind="write"), APART_WITH),
    "answered and planned, not reported": (Fault("_store"), {}),
    "completed, not reported": (Fault("_finish"), {}),
}
"""The transaction of a step that is taken so after which the worker does nothing more, and what its agent has.

An agent with hooks also has a tool whose own code has a say when its calls are planned, so they are planned after the answer is
stored.
"""


@pytest.mark.parametrize("instant", INSTANTS)
async def test_i3_i5_a_lost_worker_leaves_the_rest_to_the_next(
    client: Client, database: Database, bench: Bench, instant: str
) -> None:
    """I3, I5: wherever its worker is lost after the result, the handler is not started again and no answer is paid for twice."""
    at, options = INSTANTS[instant]
    fault = replace(at, activity="run_tool", reached=asyncio.Event())
    look = replace(bench.look, ask=lambda _params: False) if options else bench.look
    model = ListModel(says(PAY), says(LOOK), says("Done."))
    async with stack(client, database, bench.pay, look, model=model, working=False, **options) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            with Faults(database, fault):
                run = await approved(engine)
                await asyncio.wait_for(fault.reached.wait(), 60)
        async with engine.worker():
            await completed(engine, run)
        assert (bench.paid, bench.looked, len(model.seen)) == ([5], ["x"], 3)
        assert [message.role for message in await engine.history(run)] == [
            "user", "assistant", "tool", "assistant", "tool", "assistant",
        ]  # fmt: skip


@pytest.mark.parametrize("problem", [UnavailableError("the database is away"), ValueError("a bug")])
async def test_i5_a_result_is_stored_whatever_keeps_its_step_open(
    client: Client, database: Database, bench: Bench, problem: Exception
) -> None:
    """I5: a result that can't be stored together with the step's close is stored alone, or when the store is back.

    A store that is away when the step is to be closed after it fails nothing, and starts no handler again.
    """
    script = Script(says(PAY), says("Done."))
    async with stack(client, database, bench.pay, model=script) as engine:
        with Faults(database, Fault("pass_on_with", problem)):
            assert await completed(engine, await approved(engine)) == FUSED
        assert bench.paid == [5]
    async with stack(client, database, bench.pay, model=script, **APART_WITH) as engine:
        with Faults(database, Fault("_close", problem)):
            assert await completed(engine, await approved(engine)) == APART
        assert bench.paid == [5, 5]


async def test_the_last_of_several_closes_its_step_with_its_result(
    client: Client, database: Database, bench: Bench
) -> None:
    """Calls that are decided one after the other: the last result and the close of the step are one transaction."""
    model = ListModel(says(PAY, LOOK), says("Done."))
    async with stack(client, database, bench.pay, bench.look, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await until(lambda: has_result(engine, run, "l"), "result of look")
        with SqlCensus(database) as census:
            await engine.decide(request, "approve")
            assert await completed(engine, run) == ["call_model", "run_tool", "run_tool"]
        owners = [each.owner for each in census.of_product if each.kind == "write"]
        assert [owner.rsplit(":")[-1] for owner in owners] == ["_take", "_redeem", "pass_on_with", "_finish"]


async def test_a_recovered_run_continues_with_the_step_that_was_being_taken(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """A workflow that is lost while its call's activity asks the model continues after the step that was closed."""
    model = HeldModel(says(PAY), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await approved(engine)
        await asyncio.wait_for(model.request_came.wait(), 60)
        await engine.workflow(run).terminate()
        await until(lambda: asyncio.sleep(0, model.stopped), "end of the request")
        model.go.set()
        [report] = await recover.recover(engine.services, [run.id], by="cli:me")
        assert (report.outcome, report.step) == ("recovered", 2)
        assert await completed(engine, run) == ["call_model"]
        assert bench.paid == [5]
