"""Labels on a real server: runs are found by them, and what was decided starts first. Where the server has none, runs run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel
from support.engine.stack import (
    OPERATOR,
    STARTER,
    Cast,
    Line,
    Script,
    Stack,
    call,
    says,
    stack,
    until,
    with_past_instants,
)
from support.engine.tools import Bench
from temporalio.api.common.v1 import Priority
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.client import Client

from turngate import Agent, Toolkit, sub_agent, tool
from turngate.approvals_api import health
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.gateway.labels import LabelSettings, values_of
from turngate.approvals_api.runs import send_message
from turngate.approvals_api.schedules import service as schedule_service
from turngate.approvals_api.schedules.sync import agree
from turngate.domain.agents.schedules import Timetable
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.runs.labels import ATTENDED, ATTRIBUTES, DECIDED, UNATTENDED, pseudonym
from turngate.models.port import ModelRequest
from turngate.runtime import search_attributes
from turngate.store.database import Database
from turngate.store.events import traces
from turngate.store.runs import runs
from turngate.store.schedules import schedules
from turngate.wire.orders import MessageOrder, ScheduleOrder

STARTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
PAY = call("pay", '{"cents": 5}', "p")


async def labelled(engine: Stack, run_id: str) -> dict[str, str]:
    """Our search attributes that a run's workflow has."""
    described = await engine.client.get_workflow_handle(run_id).describe()
    return values_of(described.typed_search_attributes)


async def history_events(engine: Stack, run_id: str) -> list[HistoryEvent]:
    return list((await engine.client.get_workflow_handle(run_id).fetch_history()).events)


async def priority_of(engine: Stack, run_id: str) -> Priority:
    """Priority and fairness key of a run's workflow, as its history has them."""
    (first, *_) = await history_events(engine, run_id)
    assert first.event_type == STARTED
    return first.workflow_execution_started_event_attributes.priority


async def priorities_of(engine: Stack, run_id: str, activity: str) -> list[int]:
    """Of each activity of this name, the priority that the workflow asked for; 0: the run's own."""
    scheduled = [each.activity_task_scheduled_event_attributes for each in await history_events(engine, run_id)]
    return [each.priority.priority_key for each in scheduled if each.activity_type.name == activity]


async def salt(engine: Stack) -> str:
    async with engine.database.read() as conn:
        stored = await traces.salt(conn)
    assert stored is not None
    return stored


async def listed(client: Client, query: str, many: int = 1) -> list[str]:
    """The ids of the workflows that a query lists, once there are so many."""

    async def look() -> list[str] | None:
        ids = [each.id async for each in client.list_workflows(query)]
        return ids if len(ids) >= many else None

    return await until(look, f"{many} workflows of {query}")


def gateway(engine: Stack, **settings: Any) -> None:
    """Let the API start runs with these settings from now on."""
    own = Gateway(engine.client, eager=True, labels=LabelSettings(**settings))
    engine.services = replace(engine.services, gateway=own)


async def test_i13_a_run_is_found_by_its_labels(client: Client, sqlite: Database, bench: Bench) -> None:
    """Temporal lists it by agent, source and starter, who is a pseudonym. Its history has priority and fairness key.

    I13: nothing in its history and description has the name of who started it: Temporal keeps both beyond an erasure.
    """
    starter = replace(STARTER, name="zelda.fitzgerald")
    async with stack(client, sqlite, bench.pay, model=Script(says("I pay.", PAY), says("Done."))) as engine:
        run = await engine.start(by=starter)
        known = pseudonym(await salt(engine), starter.name)
        assert await labelled(engine, run.id) == {"agent": "agent", "source": "start", "starter": known}
        query = f"agent = 'agent' AND source = 'start' AND starter = '{known}' AND WorkflowId = '{run.id}'"
        assert await listed(client, query) == [run.id]
        assert await priority_of(engine, run.id) == Priority(priority_key=ATTENDED, fairness_key="agent")
        await engine.decide(await engine.request(run), "approve")
        assert (await engine.ended(run)).status == "completed"
        assert await priorities_of(engine, run.id, "run_tool") == [DECIDED]
        assert set(await priorities_of(engine, run.id, "call_model")) == {0}
        async with engine.database.read() as conn:
            assert await traces.export(conn) is None  # the salt alone begins no export
        described = (await engine.workflow(run).describe()).raw_description.SerializeToString()
        whole = described + b"".join(each.SerializeToString() for each in await history_events(engine, run.id))
        assert b"zelda" not in whole.lower()
        assert b"person-" in whole
        await switched_off_each_alone(engine)


async def switched_off_each_alone(engine: Stack) -> None:
    """Start runs without search attributes, priority or fairness: only that is missing, also of what a person decided."""
    gateway(engine, search_attributes=False, priority=False)
    run = await engine.start()
    assert await labelled(engine, run.id) == {}
    assert await priority_of(engine, run.id) == Priority(fairness_key="agent")
    await engine.decide(await engine.request(run), "approve")
    assert (await engine.ended(run)).status == "completed"
    assert await priorities_of(engine, run.id, "run_tool") == [0]
    gateway(engine, fairness=False)
    run = await engine.start()
    assert (await labelled(engine, run.id))["agent"] == "agent"
    assert await priority_of(engine, run.id) == Priority(priority_key=ATTENDED)
    await engine.interrupt(run)
    assert (await engine.ended(run)).status == "interrupted"
    assert await priorities_of(engine, run.id, "read_control") == [DECIDED]


async def test_a_sub_agent_inherits_and_tells_what_differs(client: Client, sqlite: Database, bench: Bench) -> None:
    """Its run is found by its own agent and by the person above; its places are those of the agent that delegates."""
    helper = Agent(name="helper", instructions="Pay.", toolkit=Toolkit.of(bench.look), model="scripted:helper")
    model = Cast(
        test=Script(says("I delegate.", call("helper", '{"task": "Look."}', "d")), says("Done.")),
        helper=Script(says("Looked.")),
    )
    async with stack(client, sqlite, sub_agent(helper), model=model) as engine:
        run = await engine.start(unattended="park")
        child = await engine.child(run, "d")
        assert (await engine.ended(run)).status == "completed"
        above = await labelled(engine, run.id)
        assert await labelled(engine, child.id) == {**above, "agent": "helper", "source": "sub-agent"}
        assert await priority_of(engine, child.id) == await priority_of(engine, run.id)
        assert (await priority_of(engine, child.id)).priority_key == UNATTENDED


async def test_the_next_run_is_of_the_sender_of_its_message(client: Client, sqlite: Database, bench: Bench) -> None:
    """The run that answers a message has the pseudonym of its sender, and how it came about."""
    model = Script(says("I work.", call("slow", "{}", "s")), says("Done."))
    async with stack(client, sqlite, bench.slow, model=model) as engine:
        run = await engine.start()
        await asyncio.wait_for(bench.started.wait(), 30)
        message = MessageOrder(input="And then?", while_running="queue")
        sent = await send_message.send(engine.services, OPERATOR, run.id, message)
        assert sent.run.id == run.id
        bench.release.set()
        await engine.ended(run)

        async def look() -> runs.Run | None:
            async with engine.database.read() as conn:
                siblings = [
                    each for each in await runs.page(conn, limit=9) if each.conversation_id == run.conversation_id
                ]
            return next((each for each in siblings if each.id != run.id), None)

        following = await until(look, "next run")
        await engine.ended(following)
        known = pseudonym(await salt(engine), OPERATOR.name)
        assert await labelled(engine, following.id) == {"agent": "agent", "source": "message", "starter": known}


async def test_a_fire_hands_its_labels_on(client: Client, sqlite: Database, bench: Bench) -> None:
    """A schedule's runs are found by the schedule and are unattended; a schedule that was made without labels gets them."""
    async with stack(client, sqlite, bench.look, model=Script(says("Done."))) as engine:
        gateway(engine, search_attributes=False)
        wanted = ScheduleOrder(
            name="nightly", agent="agent", input="go", timetable=Timetable(cron="0 0 29 feb *"), overlap="skip"
        )
        schedule = await schedule_service.create(engine.services, STARTER, wanted)
        gateway(engine)
        async with sqlite.read() as conn:
            stored = await schedules.get(conn, schedule.id)
        assert stored is not None
        assert await agree(engine.services, stored)
        assert not await agree(engine.services, stored)
        await with_past_instants(sqlite, schedule.id)
        await client.get_schedule_handle(schedule.id).trigger()
        query = f"schedule = '{schedule.id}' AND WorkflowType = 'AgentTurn'"
        (run_id,) = await listed(client, query)
        known = pseudonym(await salt(engine), STARTER.name)
        assert await labelled(engine, run_id) == {
            "agent": "agent", "source": "schedule", "starter": known, "schedule": schedule.id,
        }  # fmt: skip
        assert await priority_of(engine, run_id) == Priority(priority_key=UNATTENDED, fairness_key="agent")
        async with sqlite.read() as conn:
            run = await runs.get(conn, run_id)
        assert run is not None
        await engine.ended(run)


@asynccontextmanager
async def without_attributes(client: Client) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Remove the search attributes from the server for a while. Yields what removes them once more."""
    order = RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=list(ATTRIBUTES))

    async def remove() -> object:
        return await client.operator_service.remove_search_attributes(order)

    await remove()
    try:
        yield remove
    finally:
        await search_attributes.add(client)


async def test_a_server_without_the_attributes_runs_the_same(
    client: Client, sqlite: Database, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out, which one line of the log and one check of health say. Once added, new runs get them.

    Once an operator has removed them again, a start that the server refuses for them is made without them.
    """
    async with (
        without_attributes(client) as remove,
        stack(client, sqlite, bench.look, model=Script(says("Done."))) as engine,
    ):
        logger = "turngate.approvals_api.gateway.labels"
        with caplog.at_level(logging.WARNING, logger):
            first, second = await engine.start(), await engine.start()
        assert [(await engine.ended(run)).status for run in (first, second)] == ["completed", "completed"]
        assert await labelled(engine, first.id) == {}
        assert [each.name for each in caplog.records].count(logger) == 1
        (check,) = await search_attribute_checks(engine)
        assert (check.state, check.command) == ("warning", "turngate search-attributes --add")

        assert await search_attributes.add(client) == list(ATTRIBUTES)
        assert await search_attributes.add(client) == []
        (check,) = await search_attribute_checks(engine)
        assert check.state == "ok"
        third = await engine.start()
        assert (await labelled(engine, third.id))["agent"] == "agent"
        await engine.ended(third)

        await remove()
        fourth = await engine.start()
        assert (await engine.ended(fourth)).status == "completed"
        assert await labelled(engine, fourth.id) == {}


async def search_attribute_checks(engine: Stack) -> list[health.HealthCheck]:
    return [each for each in (await health.examine(engine.services)).checks if each.name == "search_attributes"]


class Order(BaseModel):
    name: str


async def test_what_was_just_decided_starts_before_a_backlog(client: Client, sqlite: Database, bench: Bench) -> None:
    """One place, which a tool holds. Unattended runs queue up, then an attended one; then a person decides: that goes first."""
    order: list[str] = []

    @tool(effect="once", ask=True)
    async def pay(params: Order) -> str:
        """Pay."""
        order.append(params.name)
        return "paid"

    def line(then: ModelResponse) -> Callable[[ModelRequest], Awaitable[ModelResponse]]:
        async def answer(request: ModelRequest) -> ModelResponse:
            text = next(part.text for part in request.messages[-1].parts if part.type == "text")
            order.append(text)
            return then

        return answer

    ends: list[Line] = [line(says("Done."))]
    model = Cast(
        test=Script(says("I pay.", call("pay", '{"name": "decided"}', "p")), says("Paid.")),
        holder=Script(says("I work.", call("slow", "{}", "s")), says("Done.")),
        queued=Script(*ends),
    )
    others = [
        Agent(name="holder", instructions="Work.", toolkit=Toolkit.of(bench.slow), model="scripted:holder"),
        Agent(name="queued", instructions="Answer.", toolkit=Toolkit.of(bench.look), model="scripted:queued"),
    ]
    async with stack(client, sqlite, pay, model=model, agents=others, working=False) as engine:
        gateway(engine)
        async with engine.worker(tool_calls_at_once=1):
            decided = await engine.start(unattended="park")
            request = await engine.request(decided)
            await engine.idle(decided)
            holder = await engine.start(agent="holder")
            await asyncio.wait_for(bench.started.wait(), 30)
            unattended = [await engine.start(f"unattended {n}", agent="queued", unattended="park") for n in range(3)]
            attended = await engine.start("attended", agent="queued")
            for run in (*unattended, attended):
                await until(lambda run=run: waits_for_place(engine, run), "a model request that waits")
            await engine.decide(request, "approve", by=OPERATOR)
            await until(lambda: waits_for_place(engine, decided), "the decided call, which waits")
            bench.release.set()
            for run in (decided, holder, *unattended, attended):
                assert (await engine.ended(run)).status == "completed"
    assert order == ["decided", "attended", "unattended 0", "unattended 1", "unattended 2"]


async def waits_for_place(engine: Stack, run: runs.Run) -> bool:
    described = (await engine.workflow(run).describe()).raw_description
    return bool(described.pending_activities)
