"""I5, I8: history stays small and constant, and continue-as-new loses nothing."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import pytest
from support.engine.stack import ListModel, Stack, call, says, stack
from support.engine.tools import Bench
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from turngate.activities.call_model import CallModel
from turngate.approvals_api.gateway.labels import typed, values_of
from turngate.domain.contract import AgentTurnInput, CallModelInput, RunLimits
from turngate.domain.conversation.messages import user_message
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import messages, runs

KIB = 1024
WORKFLOW_TASK_EVENTS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
}


async def conversation_of(database: Database, length: int) -> str:
    """Make a conversation of this many messages."""
    conversation_id = f"conv_{secrets.token_hex(8)}"
    texts = [f"message {number} " + "x" * 200 for number in range(length)]
    history = [says(text).message if number % 2 else user_message(text) for number, text in enumerate(texts)]
    async with database.write() as conn:
        await messages.create_with_past(conn, conversation_id, history)
    return conversation_id


@dataclass
class TurnBytes:
    """The size of one turn's history: all of it, and that of the events that carry something."""

    total: int
    carried: int
    kinds: list[int]


async def gated_turn_bytes(engine: Stack, conversation_id: str) -> TurnBytes:
    """Run one gated turn and measure its workflow history."""
    run = await engine.start(conversation_id=conversation_id)
    await engine.decide(await engine.request(run), "approve")
    await engine.ended(run)
    workflow = engine.workflow(run)
    await workflow.result()
    history = await workflow.fetch_history()
    # How many workflow tasks the same events are spread over is a matter of timing; what they carry is not.
    carrying = [event for event in history.events if event.event_type not in WORKFLOW_TASK_EVENTS]
    return TurnBytes(
        total=sum(event.ByteSize() for event in history.events),
        carried=sum(event.ByteSize() for event in carrying),
        kinds=[event.event_type for event in carrying],
    )


async def test_i8_history_bytes_do_not_grow_with_the_conversation(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I8: a gated turn costs the same history at 10 and at 400 prior messages, at most 5 KiB."""

    class Repeating(ListModel):
        async def generate(self, request):
            self.seen.append(request)
            last = request.messages[-1]
            return says("Done.") if last.role == "tool" else says(call("pay", '{"cents": 5}'))

    async with stack(client, sqlite, bench.pay, model=Repeating()) as engine:
        short = await gated_turn_bytes(engine, await conversation_of(sqlite, 10))
        long = await gated_turn_bytes(engine, await conversation_of(sqlite, 400))
        assert len(engine.engine.models.resolve("").seen[-1].messages) > 400
        # In any order: a decision may overtake the news that its request is open.
        assert sorted(short.kinds) == sorted(long.kinds)
        # Timestamps and task ids are varints: a few bytes of difference are the clock's, not the conversation's.
        assert abs(long.carried - short.carried) <= 40, (short, long)
        assert max(short.total, long.total) <= 5 * KIB


async def test_i8_no_conversation_content_enters_history(client: Client, sqlite: Database, bench: Bench) -> None:
    """I8: arguments, messages, edits, reasons and results are nowhere in the workflow's history."""
    model = ListModel(
        says("Secret thought.", call("pay", '{"cents": 424242}', "c1"), call("pay", '{"cents": 434343}', "c2")),
        says("Secret answer."),
    )
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start("Secret task.")
        first = await engine.request(run)
        await engine.decide(first, "edit", args='{"cents": 454545}', message="Secret reason.")
        await engine.decide(await engine.request(run), "reject", message="Secret reason.")
        await engine.ended(run)
        await engine.workflow(run).result()
        events = (await engine.workflow(run).fetch_history()).events
        history = b"".join(event.SerializeToString() for event in events)
        assert run.id.encode() in history  # payloads are readable here, so what follows can fail
        for secret in (b"Secret", b"424242", b"434343", b"454545"):
            assert secret not in history


async def test_i8_continue_as_new_loses_nothing(client: Client, sqlite: Database, bench: Bench) -> None:
    """I8: with a new execution after every step, gates, counts and the conversation continue as in one."""
    model = ListModel(
        says(call("nope", "{}")),
        says(call("pay", '{"cents": 1}')),
        says(call("pay", '{"cents": 2}')),
        says(call("nope", "{}")),
        says("Done."),
    )
    async with stack(client, sqlite, bench.pay, model=model, working=False) as engine:
        run = await engine.start()
        await engine.workflow(run).terminate()
        limits = RunLimits(continue_as_new_after_steps=1)
        started = await client.start_workflow(
            "AgentTurn",
            AgentTurnInput(run_id=run.id, agent="agent", limits=limits),
            id=run.id,
            task_queue=engine.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            search_attributes=typed({"agent": "agent"}),
            priority=Priority(priority_key=2, fairness_key="agent"),
        )
        async with engine.worker():
            first = await engine.request(run)
            await engine.decide(first, "approve", decision_id="d-1")
            second = await engine.request(run)
            assert second.id != first.id
            assert (await engine.decide(first, "approve", decision_id="d-1")).status == "approved"
            await engine.decide(second, "approve")
            assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [1, 2]
        assert [message.role for message in await engine.history(run)] == ["user"] + ["assistant", "tool"] * 4 + [
            "assistant"
        ]
        last = await engine.workflow(run).describe()
        assert last.run_id != started.first_execution_run_id
        assert values_of(last.typed_search_attributes) == {"agent": "agent"}
        carried = last.raw_description.workflow_execution_info.priority
        assert (carried.priority_key, carried.fairness_key) == (2, "agent")


@pytest.mark.parametrize("when", ["before_response", "after_response"])
async def test_i5_a_retried_call_model_pays_once(client: Client, sqlite: Database, bench: Bench, when: str) -> None:
    """I5: call_model that dies after storing the response finds it again; the model is not asked twice."""
    model = ListModel(says("Pay.", call("pay", '{"cents": 5}', "c1")), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model, working=False) as engine:
        run = await engine.start()
        activity = CallModel(engine.engine)
        order = CallModelInput(run_id=run.id, step=1)
        if when == "after_response":
            planner, activity._planner = activity._planner, None
            with pytest.raises(AttributeError):
                await ActivityEnvironment().run(activity.call_model, order)
            activity._planner = planner
        first = await ActivityEnvironment().run(activity.call_model, order)
        again = await ActivityEnvironment().run(activity.call_model, order)
        assert first == again
        assert len(model.seen) == 1
        async with sqlite.read() as conn:
            stored = await runs.get(conn, run.id)
        assert stored is not None
        assert stored.step == 1
        await engine.workflow(run).terminate()


async def test_a_late_attempt_plans_nothing_for_a_run_that_ended(
    client: Client, database: Database, bench: Bench
) -> None:
    """A call_model attempt that wakes up after its run has ended opens no request: no decision could reach it."""
    model = ListModel(says("Pay.", call("pay", '{"cents": 5}', "c1")))
    async with stack(client, database, bench.pay, model=model, working=False) as engine:
        run = await engine.start()
        activity = CallModel(engine.engine)
        order = CallModelInput(run_id=run.id, step=1)
        planner, activity._planner = activity._planner, None
        with pytest.raises(AttributeError):
            await ActivityEnvironment().run(activity.call_model, order)
        activity._planner = planner
        async with database.write() as conn:
            assert await runs.end(conn, run.id, runs.Ending(status="interrupted"))
            await events.append(conn, run.id, [("run.ended", {"status": "interrupted"})])
        with pytest.raises(ApplicationError, match="has ended"):
            await ActivityEnvironment().run(activity.call_model, order)
        async with database.read() as conn:
            assert await requests.of_run(conn, run.id) == []
        await engine.workflow(run).terminate()
