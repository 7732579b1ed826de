"""Schedules on Temporal's own clock: what fires, what is skipped, and what happens while something is down."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.engine.changed_turn import BrokenStart
from support.engine.stack import STARTER, Script, Stack, call, person, says, stack, until, with_past_instants
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import worker as composition
from turngate.approvals_api import health
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.gateway.schedules import TemporalSchedules, WantedSchedule
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
from turngate.wire.health import HealthCheck
from turngate.wire.orders import ScheduleOrder
from turngate.wire.schedules import ScheduleDetail

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


async def brought(engine: Stack, schedule: ScheduleDetail, **fields: Any) -> Callable[[], Awaitable[str | None]]:
    """Bring a fire as Temporal does; returns what waits for the id of the run that it opens."""
    start = ScheduledStartInput(schedule_id=schedule.id, heartbeat_timeout_seconds=2, **fields)
    workflow_id = f"{schedule.id}-{secrets.token_hex(4)}"
    handle = await engine.client.start_workflow("ScheduledStart", start, id=workflow_id, task_queue=engine.task_queue)
    return handle.result


async def test_i5_a_fire_that_cannot_start_its_run_is_named_and_starts_it_with_the_right_code(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health names the schedule, and explain says the same of the schedule's and the fire's id: there is no run to explain."""
    async with stack(client, sqlite, bench.pay, **gated(bench), working=False) as engine:
        engine.services = replace(engine.services, gateway=Gateway(client))
        schedule = await create_schedule(engine)
        with monkeypatch.context() as patch:
            patch.setattr(composition, "ScheduledStart", BrokenStart)
            broken = engine.worker()

        async def failing() -> list[HealthCheck]:
            return [each for each in (await health.examine(engine.services)).checks if each.name == "schedules"]

        async with broken:
            [check] = await until(failing, "fire that fails")
        assert (check.state, check.href) == ("wrong", f"/schedules/{schedule.id}")
        assert f"schedule '{schedule.name}' can't start its run" in check.says
        assert f"no such field: jitter of {schedule.id}" in check.says
        with pytest.raises(NotFoundError, match="no such field: jitter"):
            await explain(engine.services, person("ada"), schedule.id)
        async with engine.worker():
            await fired(engine, schedule, "opened")


async def stopped(engine: Stack, fire: Fire) -> None:
    """Interrupt the run of a fire, once it has got to its gate: before its workflow is there, nothing can."""
    run = await run_of(engine, fire)
    await engine.request(run)
    await engine.interrupt(run)


def gated(bench: Bench) -> dict[str, Any]:
    return {"model": Script(says(call("pay", '{"cents": 1}')), says("Done."))}


@pytest.mark.exhaustive
async def test_it_fires_each_second_and_skips_while_its_run_lives(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """No API is needed. A run whose question is parked holds up the next fires, and each says so; after its end one opens."""
    async with stack(client, sqlite, bench.pay, **gated(bench)) as engine:
        schedule = await create_schedule(engine)
        assert (schedule.in_force, len(schedule.next_fires)) == (True, 5)
        first, second, *_more = await fired(engine, schedule, "opened", "skipped", "skipped")
        run = await run_of(engine, first)
        assert (run.attended, run.unattended_asks, run.started_by) == (False, "park", "starter")
        assert second.reason == f"run {run.id} was still live"
        with pytest.raises(ConflictError, match=run.id):
            await schedule_service.fire_now(engine.services, STARTER, schedule.id)
        await engine.decide(await engine.request(run), "approve")
        assert (await engine.ended(run)).status == "completed"

        async def another() -> Fire | None:
            return next((each for each in await fires(engine, schedule) if each.run_id not in {None, run.id}), None)

        following = await until(another, "second run")
        gone = await schedule_service.delete(engine.services, STARTER, schedule.name)
        assert (gone.in_force, gone.next_fires, gone.opened, gone.skipped >= 2) == (True, [], 2, True)
        assert await TemporalSchedules(client).look(schedule.id) is None
        await stopped(engine, following)
        assert bench.paid == [1]


async def test_i5_a_fire_without_a_worker_opens_one_run_when_it_is_back(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: Temporal keeps the fire; later fires do not pile up after it, and are counted."""
    async with stack(client, sqlite, bench.pay, **gated(bench), working=False) as engine:
        schedule = await create_schedule(engine)

        async def passed_over() -> bool:
            look = await TemporalSchedules(client).look(schedule.id)
            return look is not None and look.passed_over >= 2

        await until(passed_over, "fires that find no worker")
        assert await fires(engine, schedule) == []
        async with engine.worker():
            (first, *_more) = await fired(engine, schedule, "opened")
            run = await run_of(engine, first)
            await engine.request(run)
            paused = await schedule_service.pause(engine.services, STARTER, schedule.id, reason="enough")
            assert (paused.opened, paused.paused_by, paused.next_fires) == (1, "starter", [])
            assert paused.skipped >= 2
            await engine.interrupt(run)
            await engine.ended(run)
            held_at = now()
            await until(lambda: asyncio.sleep(0, now() > held_at + timedelta(seconds=2.5)), "two fires that are held")
            assert len([each for each in await fires(engine, schedule) if each.fire_at > as_text(held_at)]) == 0
            on_at = now()
            await schedule_service.resume(engine.services, STARTER, schedule.id)

            async def again() -> Fire | None:
                return next((each for each in await fires(engine, schedule) if each.fire_at > as_text(held_at)), None)

            following = await until(again, "fire after the resume")
            assert following.fire_at > as_text(on_at - timedelta(seconds=1)), "nothing is made up for"
            await schedule_service.delete(engine.services, STARTER, schedule.id)
            await stopped(engine, following)


async def test_a_fire_that_is_brought_twice_is_one_run(client: Client, sqlite: Database, bench: Bench) -> None:
    """Two workflows at once for one instant: both name the same run, which answers once."""
    model = Script(says("Done."))
    async with stack(client, sqlite, model=model) as engine:
        schedule = await create_schedule(engine, SELDOM)
        at = await with_past_instants(sqlite, schedule.id)
        both = [await brought(engine, schedule, fire_at=at) for _ in range(2)]
        names = {await result() for result in both}
        (fire,) = await fires(engine, schedule)
        assert names == {fire.run_id}
        assert (await engine.ended(await run_of(engine, fire))).status == "completed"
        assert len(model.seen) == 1


async def test_i13_a_forged_fire_opens_no_run(client: Client, sqlite: Database) -> None:
    """I13: workflows that someone started name instants that the stored timetable has not, or has in years: nothing runs."""
    async with stack(client, sqlite, model=Script(says("Done."))) as engine:
        schedule = await create_schedule(engine, SELDOM)
        forged = [
            await brought(engine, schedule, fire_at=datetime(year, 6, 1, tzinfo=UTC)) for year in (1999, 2026, 2031)
        ]
        forged.append(await brought(engine, schedule))  # and one that brings none
        assert [await result() for result in forged] == [None] * 4
        leap_day = datetime(2028, 2, 29, tzinfo=UTC)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for((await brought(engine, schedule, fire_at=leap_day))(), 2)
        assert await fires(engine, schedule) == []
        async with engine.database.read() as conn:
            assert [each async for each in evidence.batches(conn)] == []


@pytest.mark.exhaustive
async def test_a_fire_that_is_buffered_opens_when_the_run_has_ended(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """It continues in the same conversation, and reads what was said there before."""
    async with stack(client, sqlite, bench.pay, **gated(bench)) as engine:
        schedule = await create_schedule(engine, SELDOM, conversation="continue", overlap="buffer_one")
        first = await schedule_service.fire_now(engine.services, STARTER, schedule.id)
        at = await with_past_instants(sqlite, schedule.id)
        result = await brought(engine, schedule, fire_at=at + timedelta(seconds=11))
        await fired(engine, schedule, "opened", "waiting")
        (run,) = [await run_of(engine, each) for each in await fires(engine, schedule) if each.run_id]
        assert run.id == first.id
        await engine.interrupt(run)
        second_id = await result()
        assert second_id not in {None, run.id}
        (_first, second) = await fires(engine, schedule)
        run = await run_of(engine, second)
        assert (second.outcome, run.conversation_id) == ("opened", first.conversation_id)
        await engine.request(run)
        assert [message.text for message in await engine.history(run) if message.role == "user"] == ["go", "go"]
        await engine.interrupt(run)


async def test_i8_a_fire_that_waits_for_weeks_keeps_its_history_short(
    sqlite: Database, bench: Bench, tmp_path: Path
) -> None:
    """I8: it continues as new when Temporal suggests it, and stays the same fire."""
    switches = ["limit.historyCount.suggestContinueAsNew=8"]
    async with EmbeddedTemporal(tmp_path, switches=switches) as server:
        client = await Client.connect(server.address, data_converter=data_converter())
        async with stack(client, sqlite, bench.pay, **gated(bench)) as engine:
            schedule = await create_schedule(engine, SELDOM, overlap="buffer_one")
            first = await schedule_service.fire_now(engine.services, STARTER, schedule.id)
            at = await with_past_instants(sqlite, schedule.id)
            result = await brought(engine, schedule, fire_at=at + timedelta(seconds=11))
            (opened, fire) = await fired(engine, schedule, "opened", "waiting")

            async def again() -> bool:
                executions = client.list_workflows(
                    "WorkflowType = 'ScheduledStart' AND ExecutionStatus = 'ContinuedAsNew'"
                )
                return [each async for each in executions] != []

            await until(again, "second execution")
            assert [each.fire_at for each in await fires(engine, schedule)][1:] == [fire.fire_at]
            await stopped(engine, opened)
            (_first, second) = await fired(engine, schedule, "opened", "opened")
            assert (second.fire_at, second.run_id) == (fire.fire_at, await result())
            assert second.run_id != first.id


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


async def test_i5_a_run_that_was_recorded_only_is_started(client: Client, sqlite: Database) -> None:
    """I5: the process that recorded it died before it started the workflow; a moment later the sweep starts it."""
    async with stack(client, sqlite, model=Script(says("Done."))) as engine:
        schedule = await create_schedule(engine, SELDOM)
        at = await with_past_instants(sqlite, schedule.id)
        async with sqlite.write() as conn:
            await schedule_fires.settle(conn, schedule.id, at, AgentAtFire(version="v", model="scripted:test"))
        assert await start_opened(engine.services) == 0  # it is a moment old
        (fire,) = await fires(engine, schedule)
        await engine.change(tables.runs, {"id": fire.run_id}, created_at=as_text(now() - timedelta(minutes=1)))
        assert await start_opened(engine.services) == 1
        assert (await engine.ended(await run_of(engine, fire))).status == "completed"


@pytest.mark.parametrize(
    ("pointer", "changes"),
    [
        ("/name", {"name": "sched_1"}),
        ("/input", {"input": "  "}),
        ("/agent", {"agent": "missing"}),
        ("/conversation_id", {"conversation_id": "c"}),
        ("/conversation_id", {"conversation": "continue", "conversation_id": "c"}),
        ("/overlap", {"conversation": "continue", "overlap": "allow"}),
        ("/timetable/time_zone", {"timetable": Timetable(cron="0 8 * * *", time_zone="Europe/Berlim")}),
        ("/timetable/time_zone", {"timetable": Timetable(cron="0 8 * * *", time_zone="Europe")}),
        ("/timetable/ends_at", {"timetable": Timetable(every_seconds=5, ends_at=now())}),
        ("/model", {"model": "gpt"}),
    ],
)
async def test_invalid_input_is_refused_before_anything_is_stored(
    client: Client, sqlite: Database, pointer: str, changes: dict[str, Any]
) -> None:
    """By the pointer of what does not fit."""
    async with stack(client, sqlite, model=Script(), working=False) as engine:
        with pytest.raises(InvalidInputError) as refused:
            await create_schedule(engine, **changes)
        assert [each["pointer"] for each in refused.value.details["errors"]] == [pointer]
        async with sqlite.read() as conn:
            assert await events.last_seq(conn) == 0


async def test_whose_schedule_it_is_may_not_decide_where_the_starter_may_not(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Its runs are its author's, also when someone else fires it by hand."""
    async with stack(client, sqlite, bench.pay, **gated(bench)) as engine:
        schedule = await create_schedule(engine, SELDOM)
        run = await schedule_service.fire_now(engine.services, person("bob"), schedule.name)
        assert (run.started_by, run.schedule_id) == ("starter", schedule.id)
        async with engine.database.read() as conn:
            (noted,) = await events.newest(conn, events.SYSTEM, "schedule.fired", limit=9)
        assert (noted.payload["by"], noted.payload["run_id"]) == ("bob", run.id)
        async with engine.database.read() as conn:
            stored = await runs.get(conn, run.id)
        assert stored is not None
        await engine.interrupt(stored)
