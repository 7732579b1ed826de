"""Fires of schedules: each instant has one outcome, and no run overlaps another where it must not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from turngate.domain.agents.schedules import Timetable
from turngate.store import tables
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import messages, runs
from turngate.store.schedules import schedule_fires, schedules
from turngate.store.schedules.schedule_fires import AgentAtFire, Fire
from turngate.store.schedules.schedules import Schedule

AGENT = AgentAtFire(version="v2", model="scripted:own")
BASE = Schedule(
    id="sched_1",
    name="nightly",
    agent="agent",
    input="Write the report.",
    workspace="/w",
    model=None,
    conversation_id=None,
    unattended_asks="deny",
    timetable=Timetable(every_seconds=1).model_dump_json(),
    overlap="skip",
    catch_up_seconds=600,
    notes="",
    created_by="ann",
)


HOUR_AGO = as_text(now() - timedelta(hours=1))


def due() -> datetime:
    """An instant of the timetable that is past, as the next ten are."""
    return now().replace(microsecond=0) - timedelta(seconds=10)


class Desk:
    """One schedule, and what happens to its fires."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def plant(self, **changes: Any) -> Schedule:
        async with self.database.write() as conn:
            if changes.get("conversation_id"):
                await messages.create_conversation(conn, changes["conversation_id"])
            created = await schedules.create(conn, replace(BASE, **changes))
            since = {"created_at": HOUR_AGO, "fires_after": HOUR_AGO}
            await conn.execute(update(tables.schedules).where(tables.schedules.c.id == created.id).values(since))
            return replace(created, **since)

    async def fire(self, at: datetime, agent: AgentAtFire | None = AGENT, **options: Any) -> Fire | None:
        async with self.database.write() as conn:
            return await schedule_fires.settle(conn, "sched_1", at, agent, **options)

    async def end(self, fire: Fire | None) -> runs.Run:
        assert fire is not None
        assert fire.run_id is not None
        async with self.database.write() as conn:
            await runs.end(conn, fire.run_id, runs.Ending(status="completed"))
            stored = await runs.get(conn, fire.run_id)
        assert stored is not None
        return stored

    async def change(self, **values: Any) -> None:
        async with self.database.write() as conn:
            schedule = await schedules.get(conn, "sched_1", hold=True)
            assert schedule is not None
            await schedules.change(conn, schedule, **values)

    async def event_types(self) -> list[str]:
        async with self.database.read() as conn:
            assert await events.chain_break(conn, events.SYSTEM) is None
            return [each.type for each in await events.after(conn, 0, run_id=events.SYSTEM)]


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database)


def outcome(fire: Fire | None) -> str | None:
    return None if fire is None else fire.outcome


async def test_a_fire_that_comes_twice_opens_one_run(desk: Desk) -> None:
    """Its run is unattended, in the schedule's author's name, in a new conversation that begins with the input."""
    await desk.plant()
    at = due()
    first, again = await desk.fire(at), await desk.fire(at)
    assert first == again
    run = await desk.end(first)
    assert (run.agent_version, run.model, run.workspace, run.started_by) == ("v2", "scripted:own", "/w", "ann")
    assert (run.attended, run.unattended_asks, run.schedule_id) == (False, "deny", "sched_1")
    async with desk.database.read() as conn:
        assert [each.message.text for each in await messages.path_to(conn, run.head_message_id)] == [BASE.input]
        assert await messages.head_of(conn, run.conversation_id) == run.head_message_id
        started = await events.after(conn, 0, run_id=run.id)
        assert [each.type for each in started] == ["run.started"]
        assert started[0].payload["schedule_id"] == "sched_1"
        assert await schedule_fires.counts(conn, "sched_1") == {"opened": 1}
    assert outcome(await desk.fire(at)) == "opened"  # also after its end
    second = await desk.end(await desk.fire(at + timedelta(seconds=1)))
    assert second.conversation_id != run.conversation_id
    assert await desk.event_types() == ["schedule.fired"] * 2


@pytest.mark.parametrize(
    ("overlap", "outcomes"),
    [("skip", ["skipped", "opened"]), ("buffer_one", ["waiting", "opened"]), ("allow", ["opened", "opened"])],
)
async def test_a_fire_finds_the_run_before_it_live(desk: Desk, overlap: Any, outcomes: list[str]) -> None:
    """It is skipped for good, waits for that run's end, or opens a run in parallel."""
    await desk.plant(overlap=overlap)
    at = due()
    first = await desk.fire(at)
    late, later = at + timedelta(seconds=1), at + timedelta(seconds=2)
    held_up = await desk.fire(late)
    assert held_up is not None
    assert held_up.outcome == outcomes[0]
    assert (first is not None and first.run_id in held_up.reason) is (overlap != "allow")
    await desk.end(first)
    assert outcome(await desk.fire(late)) == {"waiting": "opened"}.get(outcomes[0], outcomes[0])
    assert outcome(await desk.fire(later)) == ("waiting" if overlap == "buffer_one" else outcomes[1])


async def test_fires_at_the_same_moment_open_one_run(desk: Desk) -> None:
    """Six transactions bring six instants at once: with ``skip`` one opens a run, and five see it."""
    await desk.plant()
    at = due()
    fired = await asyncio.gather(*(desk.fire(at + timedelta(seconds=each)) for each in range(6)))
    assert sorted(outcome(each) or "" for each in fired) == ["opened"] + ["skipped"] * 5
    again = await asyncio.gather(*(desk.fire(at + timedelta(seconds=6)) for _ in range(6)))
    assert {outcome(each) for each in again} == {"skipped"}
    assert again == [again[0]] * 6


async def test_runs_of_one_conversation_follow_each_other(desk: Desk, new_run) -> None:
    """Each continues after the messages of the one before, and waits for any other live run in the conversation."""
    await desk.plant(conversation_id="conv_1", overlap="buffer_one")
    person = await new_run("conv_1")
    at = due()
    assert outcome(await desk.fire(at)) == "waiting"
    async with desk.database.write() as conn:
        await runs.end(conn, person.id, runs.Ending(status="completed"))
        await messages.set_head(conn, "conv_1", person.head_message_id)
    run = await desk.end(await desk.fire(at))
    assert run.conversation_id == "conv_1"
    async with desk.database.read() as conn:
        assert [each.message.text for each in await messages.path_to(conn, run.head_message_id)] == ["go", BASE.input]


async def test_a_fire_that_comes_too_late_is_missed(desk: Desk) -> None:
    """No worker took it within the window, or the worker has no such agent: no run, and the log says so.

    One that waited for a run's end is not late.
    """
    await desk.plant(overlap="buffer_one", catch_up_seconds=20)
    at = due()
    assert outcome(await desk.fire(at - timedelta(seconds=30))) == "missed"
    assert outcome(await desk.fire(at - timedelta(seconds=2), None)) == "missed"
    first = await desk.fire(at - timedelta(seconds=1))
    assert outcome(await desk.fire(at)) == "waiting"
    await desk.change(catch_up_seconds=1)  # now the fire is older than the window
    await desk.end(first)
    assert outcome(await desk.fire(at)) == "opened"
    assert await desk.event_types() == [
        *["schedule.missed"] * 2,
        *["schedule.fired", "schedule.waiting", "schedule.fired"],
    ]


@pytest.mark.parametrize("column", ["paused_at", "deleted_at"])
async def test_a_paused_or_deleted_schedule_opens_nothing(desk: Desk, column: str) -> None:
    """A fire that Temporal still sends opens nothing, nor does a waiting one. A manual fire of a paused one works."""
    await desk.plant(overlap="buffer_one")
    at = due()
    first = await desk.fire(at)
    waiting = at + timedelta(seconds=1)
    assert outcome(await desk.fire(waiting)) == "waiting"
    await desk.change(**{column: as_text(at)})
    await desk.end(first)
    assert await desk.fire(at + timedelta(seconds=2)) is None
    assert await desk.fire(waiting) is None
    assert outcome(await desk.fire(waiting)) == "skipped"
    by_hand = await desk.fire(at + timedelta(seconds=3), by="bob")
    assert outcome(by_hand) == (None if column == "deleted_at" else "opened")
    if by_hand is not None:
        assert (by_hand.fired_by, (await desk.end(by_hand)).started_by) == ("bob", "ann")
    assert await desk.fire(at, AGENT) == first


async def test_only_one_fire_waits(desk: Desk) -> None:
    """One whose workflow was lost yields to the next; if Temporal sends it again after all, it stays skipped."""
    await desk.plant(overlap="buffer_one")
    at = due()
    first = await desk.fire(at)
    lost, following = at + timedelta(seconds=1), at + timedelta(seconds=2)
    assert [outcome(await desk.fire(each)) for each in (lost, lost, following)] == ["waiting"] * 3
    await desk.end(first)
    assert [outcome(await desk.fire(each)) for each in (lost, following)] == ["skipped", "opened"]
    assert await desk.event_types() == [
        f"schedule.{each}" for each in ("fired", "waiting", "skipped", "waiting", "fired")
    ]


async def test_a_manual_fire_never_waits(desk: Desk) -> None:
    """A request for a run while one is live gets that run, and nothing is recorded."""
    await desk.plant(overlap="buffer_one")
    at = due()
    first = await desk.fire(at)
    refused = await desk.fire(at + timedelta(seconds=1), by="bob")
    assert first is not None
    assert refused is not None
    assert (refused.outcome, refused.reason) == ("skipped", first.run_id)
    async with desk.database.read() as conn:
        assert await schedule_fires.newest(conn, "sched_1", limit=9) == [first]


async def test_a_name_is_free_again_after_its_schedule_is_deleted(desk: Desk) -> None:
    """Two live schedules cannot share a name; a deleted one is found by id, not listed, and must leave Temporal."""
    await desk.plant()
    with pytest.raises(IntegrityError):
        await desk.plant(id="sched_2")
    await desk.change(deleted_at=as_text(datetime.now(UTC)))
    await desk.plant(id="sched_2")
    async with desk.database.write() as conn:
        by_name = await schedules.find(conn, "nightly")
        old = await schedules.find(conn, "sched_1")
        assert (by_name and by_name.id, old and old.revision) == ("sched_2", 2)
        assert [each.id for each in await schedules.page(conn, limit=9)] == ["sched_2"]
        assert [each.id for each in await schedules.to_sync(conn)] == ["sched_1", "sched_2"]
        await schedules.note_removed(conn, "sched_1")
        await schedules.note_removed(conn, "sched_2")  # which was not deleted
        assert [each.id for each in await schedules.to_sync(conn)] == ["sched_2"]


@pytest.mark.parametrize(
    "ahead",
    [timedelta(milliseconds=1), timedelta(hours=-2), timedelta(days=400), timedelta(days=-20_000), None],
    ids=["between", "before the schedule", "next year", "in 1972", "the first instant there is"],
)
async def test_i13_only_an_instant_of_the_stored_timetable_fires(desk: Desk, ahead: timedelta | None) -> None:
    """I13: a message may bring any instant: one that the timetable does not have, or not yet, opens nothing and leaves no row."""
    await desk.plant(catch_up_seconds=30 * 86_400)
    at = datetime.min.replace(tzinfo=UTC) if ahead is None else due() + ahead
    assert outcome(await desk.fire(at)) == ("waiting" if ahead == timedelta(days=400) else None)
    async with desk.database.read() as conn:
        assert await schedule_fires.newest(conn, "sched_1", limit=9) == []
        assert await events.after(conn, 0, run_id=events.SYSTEM) == []


async def test_i13_an_instant_from_before_a_change_or_a_pause_never_fires(desk: Desk) -> None:
    """I13: after a change of the timetable, and after a resume, only what comes later counts; other changes lose no fire."""
    await desk.plant()
    at = due()
    await desk.change(notes="Ask Ann.")
    assert outcome(await desk.fire(at)) == "opened"
    await desk.change(paused_at=as_text(at))
    await desk.change(paused_at=None)
    assert await desk.fire(at + timedelta(seconds=1)) is None
    await desk.plant(id="sched_2", name="other")
    async with desk.database.write() as conn:
        other = await schedules.get(conn, "sched_2", hold=True)
        assert other is not None
        await schedules.change(conn, other, timetable=Timetable(every_seconds=2).model_dump_json())
        assert await schedule_fires.settle(conn, "sched_2", at, AGENT) is None


async def test_a_fire_that_its_jitter_put_off_is_not_late(desk: Desk) -> None:
    """Its instant on the timetable is before its start by up to the jitter, also where that is longer than the window."""
    await desk.plant(catch_up_seconds=10, timetable=Timetable(every_seconds=1, jitter_seconds=600).model_dump_json())
    assert outcome(await desk.fire(due() - timedelta(minutes=9))) == "opened"
