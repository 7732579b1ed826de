"""Schedules on Temporal's own clock: what fires, what is skipped, and what happens while something is down."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.engine.changed_turn import BrokenStart
from support.engine.stack import STARTER, Clock, Script, Stack, call, person, says, stack, until, with_past_instants
from support.engine.tools import Bench
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.worker import Worker

from turngate.approvals_api import health
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.gateway.schedules import TemporalSchedules, WantedSchedule
from turngate.approvals_api.gateway.workflow_status import FIRED_BY
from turngate.approvals_api.runs.explain import explain
from turngate.approvals_api.schedules import service as schedule_service
from turngate.approvals_api.schedules.sync import agree, agree_on_all, start_opened
from turngate.domain.agents.schedules import Timetable
from turngate.domain.contract import ScheduledStartInput
from turngate.domain.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter
from turngate.store import evidence, tables
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import runs
from turngate.store.schedules import schedule_fires, schedules
from turngate.store.schedules.schedule_fires import AgentAtFire, Fire
from turngate.store.schedules.schedules import Schedule
from turngate.testing.harness import TIME_SKIPPING
from turngate.wire.health import HealthCheck
from turngate.wire.orders import ScheduleOrder
from turngate.wire.schedules import ScheduleDetail
from turngate.worker import SANDBOX

EACH_SECOND = Timetable(every_seconds=1)
SELDOM = Timetable(cron="0 0 29 feb *")


async def create_schedule(engine: Stack, timetable: Timetable = EACH_SECOND, **changes: Any) -> ScheduleDetail:
    wanted = {
        "name": f"each-{secrets.token_hex(3)}",
        "agent": "agent",
        "input": "go",
        "timetable": timetable,
        **changes,
    }
    return await schedule_service.create(engine.services, STARTER, ScheduleOrder(**wanted))


async def fires(engine: Stack, schedule: ScheduleDetail) -> list[Fire]:
    """Every fire that was brought so far, oldest first."""
    async with engine.database.read() as conn:
        return (await schedule_fires.newest(conn, schedule.id, limit=1_000))[::-1]


async def fired(engine: Stack, schedule: ScheduleDetail, *outcomes: str) -> list[Fire]:
    """The fires, once the first of them have these outcomes."""

    async def look() -> list[Fire] | None:
        rows = await fires(engine, schedule)
        return rows if [each.outcome for each in rows[: len(outcomes)]] == [*outcomes] else None

    return await until(look, f"fires {outcomes}")


async def run_of(engine: Stack, fire: Fire) -> runs.Run:
    assert fire.run_id is not None
    async with engine.database.read() as conn:
        run = await runs.get(conn, fire.run_id)
    assert run is not None
    return run


async def brought(
    engine: Stack, schedule: ScheduleDetail, task_timeout: timedelta | None = None, **fields: Any
) -> WorkflowHandle[Any, str | None]:
    """Bring a fire as Temporal does. The workflow's result is the id of the run that it opens."""
    start = ScheduledStartInput(schedule_id=schedule.id, heartbeat_timeout_seconds=2, **fields)
    return await engine.client.start_workflow(
        "ScheduledStart",
        start,
        id=f"{schedule.id}-{secrets.token_hex(4)}",
        task_queue=engine.task_queue,
        task_timeout=task_timeout,
        search_attributes=TypedSearchAttributes([SearchAttributePair(FIRED_BY, schedule.id)]),
        result_type=str,
    )


async def stopped(engine: Stack, fire: Fire) -> None:
    """Interrupt the run of a fire, once it has got to its gate: before its workflow is there, nothing can."""
    run = await run_of(engine, fire)
    await engine.request(run)
    await engine.interrupt(run)


def gated(bench: Bench) -> dict[str, Any]:
    return {"model": Script(says(call("pay", '{"cents": 1}')), says("Done."))}


async def test_i5_a_fire_that_cannot_start_its_run_is_named_and_starts_it_with_the_right_code(
    client: Client, sqlite: Database
) -> None:
    """Health names the schedule, and explain says the same of the schedule's and the fire's id: there is no run to explain."""
    async with stack(client, sqlite, model=Script(says("Done.")), working=False) as engine:
        engine.services = replace(engine.services, gateway=Gateway(client))
        schedule = await create_schedule(engine, SELDOM)
        at = await with_past_instants(sqlite, schedule.id)
        # A task that the first worker took with it when it stopped is given to the next one after this time.
        fire = await brought(engine, schedule, timedelta(seconds=1), fire_at=at)

        async def failing() -> list[HealthCheck]:
            return [each for each in (await health.examine(engine.services)).checks if each.name == "schedules"]

        broken = Worker(client, task_queue=engine.task_queue, workflows=[BrokenStart], workflow_runner=SANDBOX)
        async with broken:
            [check] = await until(failing, "fire that fails")
        assert (check.state, check.href) == ("wrong", f"/schedules/{schedule.id}")
        assert f"schedule '{schedule.name}' can't start its run" in check.says
        assert f"no such field: jitter of {schedule.id}" in check.says
        for about in (schedule.id, fire.id):
            with pytest.raises(NotFoundError, match="no such field: jitter"):
                await explain(engine.services, person("ada"), about)
        async with engine.worker():
            await fired(engine, schedule, "opened")
            await fire.result()


async def test_i5_a_fire_without_a_worker_opens_one_run_when_it_is_back(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: Temporal keeps the fire; later fires do not pile up after it, and are counted.

    While the run lives, no other is opened, by hand neither. Nothing makes up for the fires of a pause.
    """
    async with stack(client, sqlite, bench.pay, **gated(bench), working=False) as engine:
        schedule = await create_schedule(engine)

        async def passed_over() -> bool:
            look = await TemporalSchedules(client).look(schedule.id)
            return look is not None and look.passed_over >= 1

        await until(passed_over, "fire that finds the one before it waiting for a worker")
        assert await fires(engine, schedule) == []
        async with engine.worker():
            (first, *_more) = await fired(engine, schedule, "opened")
            run = await run_of(engine, first)
            assert (run.attended, run.unattended_asks, run.started_by) == (False, "park", "starter")
            request = await engine.request(run)
            with pytest.raises(ConflictError, match=run.id):
                await schedule_service.fire_now(engine.services, STARTER, schedule.id)
            paused = await schedule_service.pause(engine.services, STARTER, schedule.id, reason="enough")
            assert (paused.opened, paused.paused_by, paused.next_fires) == (1, "starter", [])
            assert paused.skipped >= 1
            await engine.decide(request, "approve")
            assert (await engine.ended(run)).status == "completed"
            held_at = now()
            await until(lambda: asyncio.sleep(0, now() > held_at + timedelta(seconds=1)), "an instant that is held")
            on_at = now()
            await schedule_service.resume(engine.services, STARTER, schedule.id)

            async def again() -> Fire | None:
                return next((each for each in await fires(engine, schedule) if each.fire_at > as_text(held_at)), None)

            following = await until(again, "fire after the resume")
            assert following.fire_at > as_text(on_at - timedelta(seconds=1)), "nothing is made up for"
            gone = await schedule_service.delete(engine.services, STARTER, schedule.id)
            assert (gone.in_force, gone.next_fires, gone.opened) == (True, [], 2)
            assert await TemporalSchedules(client).look(schedule.id) is None
            await stopped(engine, following)
            assert bench.paid == [1]


async def test_i5_i13_an_instant_of_the_timetable_opens_one_run_and_no_other_instant_does(
    client: Client, sqlite: Database
) -> None:
    """I13: workflows that someone started name instants that the stored timetable has not, or has in years: nothing runs.

    Two workflows at once for one instant name the same run, which answers once. I5: a run that was recorded by a process
    that died before it started the workflow is started by the sweep a moment later.
    """
    model = Script(says("Done."))
    async with stack(client, sqlite, model=model) as engine:
        schedule = await create_schedule(engine, SELDOM)
        forged = [
            await brought(engine, schedule, fire_at=datetime(year, 6, 1, tzinfo=UTC)) for year in (1999, 2026, 2031)
        ]
        forged.append(await brought(engine, schedule))  # and one that brings none
        assert [await each.result() for each in forged] == [None] * 4
        early = await brought(engine, schedule, fire_at=datetime(2028, 2, 29, tzinfo=UTC))

        async def put_off() -> bool:
            return any([each.HasField("timer_started_event_attributes") async for each in early.fetch_history_events()])

        await until(put_off, "pause before a fire whose time hasn't come")
        await early.terminate()
        assert await fires(engine, schedule) == []
        async with sqlite.read() as conn:
            assert [each async for each in evidence.batches(conn)] == []

        at = await with_past_instants(sqlite, schedule.id)
        both = [await brought(engine, schedule, fire_at=at) for _ in range(2)]
        names = {await each.result() for each in both}
        (fire,) = await fires(engine, schedule)
        assert names == {fire.run_id}
        assert (await engine.ended(await run_of(engine, fire))).status == "completed"
        assert len(model.seen) == 1, "one run answers"

        async with sqlite.write() as conn:
            later = at + timedelta(seconds=1)
            await schedule_fires.settle(conn, schedule.id, later, AgentAtFire(version="v", model="scripted:test"))
        assert await start_opened(engine.services) == 0, "it is a moment old"
        (_fire, recorded) = await fires(engine, schedule)
        await engine.change(tables.runs, {"id": recorded.run_id}, created_at=as_text(now() - timedelta(minutes=1)))
        assert await start_opened(engine.services) == 1
        assert (await engine.ended(await run_of(engine, recorded))).status == "completed"


async def test_i8_a_fire_that_waits_for_weeks_keeps_its_history_short(
    sqlite: Database, bench: Bench, tmp_path: Path
) -> None:
    """I8: it continues as new when Temporal suggests it, and stays the same fire.

    When the run before it has ended, it continues in the same conversation, and reads what was said there. Runs are the
    schedule's author's, also when someone else fires it by hand.
    """
    switches = ["limit.historyCount.suggestContinueAsNew=8", *TIME_SKIPPING]
    async with EmbeddedTemporal(tmp_path, switches=switches, lasting=False) as server:
        clock = Clock(await Client.connect(server.address, data_converter=data_converter()))
        async with stack(clock, sqlite, bench.pay, **gated(bench)) as engine:
            schedule = await create_schedule(engine, SELDOM, conversation="continue", overlap="buffer_one")
            first = await schedule_service.fire_now(engine.services, person("bob"), schedule.id)
            assert (first.started_by, first.schedule_id) == ("starter", schedule.id)
            async with sqlite.read() as conn:
                (noted,) = await events.newest(conn, events.SYSTEM, "schedule.fired", limit=9)
            assert (noted.payload["by"], noted.payload["run_id"]) == ("bob", first.id)

            at = await with_past_instants(sqlite, schedule.id)
            start = await brought(engine, schedule, fire_at=at + timedelta(seconds=11))
            (opened, fire) = await fired(engine, schedule, "opened", "waiting")

            async def continued() -> bool:
                newest = await engine.client.get_workflow_handle(start.id).describe()
                return newest.run_id != start.first_execution_run_id

            await until(continued, "second execution")
            assert [each.fire_at for each in await fires(engine, schedule)][1:] == [fire.fire_at]
            await stopped(engine, opened)
            (_first, second) = await fired(engine, schedule, "opened", "opened")
            assert (second.fire_at, second.run_id) == (fire.fire_at, await start.result())
            run = await run_of(engine, second)
            assert (run.id == first.id, run.conversation_id) == (False, first.conversation_id)
            await engine.request(run)
            assert [message.text for message in await engine.history(run) if message.role == "user"] == ["go", "go"]
            await engine.interrupt(run)


async def test_temporal_is_made_to_agree_with_the_store(client: Client, sqlite: Database) -> None:
    """A schedule that Temporal lost, or that was changed there, is corrected, even if Temporal was unreachable before.

    A sweep may look before a change and write after it: Temporal keeps the newer revision.
    """
    async with stack(client, sqlite, model=Script(says("Done."))) as engine:
        paused, lost, gone = [await create_schedule(engine, SELDOM) for _ in range(3)]
        assert await agree_on_all(engine.services) == 0
        await client.get_schedule_handle(lost.id).delete()
        await client.get_schedule_handle(paused.id).pause()
        nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
        cut_off = replace(engine.services, gateway=Gateway(nowhere))
        with pytest.raises(UnavailableError):
            await agree_on_all(cut_off)
        deleted = await schedule_service.delete(cut_off, STARTER, gone.id)
        unsent = await schedule_service.create(
            cut_off, STARTER, ScheduleOrder(name="unsent", agent="agent", input="go", timetable=SELDOM)
        )
        assert (deleted.in_force, unsent.in_force, unsent.next_fires) == (None, None, [])
        assert await agree_on_all(engine.services) == 4
        looks = [await TemporalSchedules(client).look(each.id) for each in (paused, lost, gone, unsent)]
        assert [look and (look.paused, len(look.next_fires) > 0) for look in looks] == [
            *[(False, True)] * 2,
            None,
            (False, True),
        ]
        assert await agree_on_all(engine.services) == 0
        await schedule_service.pause(engine.services, STARTER, paused.id)
        older = WantedSchedule(
            id=paused.id,
            revision=1,
            timetable=SELDOM,
            overlap="skip",
            catch_up=timedelta(minutes=1),
            paused=False,
            task_queue=engine.task_queue,
            heartbeat_timeout_seconds=2,
        )
        await TemporalSchedules(client).change(older)
        look = await TemporalSchedules(client).look(paused.id)
        assert look is not None
        assert (look.revision, look.paused) == (2, True)


@pytest.mark.exhaustive
async def test_a_sweep_never_takes_a_change_back(client: Client, sqlite: Database) -> None:
    """A sweep that read the store before a change, and acts in Temporal during or after it, leaves what is newest there."""
    async with stack(client, sqlite, model=Script(says("Done."))) as engine:
        temporal = TemporalSchedules(client)

        async def stored(schedule: ScheduleDetail) -> Schedule:
            async with sqlite.read() as conn:
                row = await schedules.get(conn, schedule.id)
            assert row is not None
            return row

        for _ in range(5):
            schedule = await create_schedule(engine, SELDOM)
            before = await stored(schedule)
            await schedule_service.pause(engine.services, STARTER, schedule.id)
            after = await stored(schedule)
            await client.get_schedule_handle(schedule.id).delete()
            # Neither finds anything in Temporal, so both create it; the older one asks first.
            await asyncio.gather(*(agree(engine.services, each) for each in (before, after)))
            look = await temporal.look(schedule.id)
            assert look is not None
            assert (look.revision, look.paused) == (2, True)

        schedule = await create_schedule(engine, SELDOM)
        before = await stored(schedule)
        await schedule_service.delete(engine.services, STARTER, schedule.id)
        assert await agree(engine.services, before)
        assert await temporal.look(schedule.id) is None


async def test_invalid_input_is_refused_before_anything_is_stored(client: Client, sqlite: Database) -> None:
    """By the pointer of what does not fit."""
    refused: list[tuple[str, dict[str, Any]]] = [
        ("/name", {"name": "sched_1"}),
        ("/input", {"input": "  "}),
        ("/conversation_id", {"conversation_id": "c"}),
        ("/conversation_id", {"conversation": "continue", "conversation_id": "c"}),
        ("/timetable/time_zone", {"timetable": Timetable(cron="0 8 * * *", time_zone="Europe/Berlim")}),
        ("/timetable/time_zone", {"timetable": Timetable(cron="0 8 * * *", time_zone="Europe")}),
        ("/timetable/ends_at", {"timetable": Timetable(every_seconds=5, ends_at=now())}),
        ("/model", {"model": "gpt"}),
    ]
    async with stack(client, sqlite, model=Script(), working=False) as engine:
        for pointer, changes in refused:
            with pytest.raises(InvalidInputError) as error:
                await create_schedule(engine, **changes)
            assert [each["pointer"] for each in error.value.details["errors"]] == [pointer], changes
        async with sqlite.read() as conn:
            assert await events.last_seq(conn) == 0
