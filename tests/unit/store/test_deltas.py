"""Delta rows: of one attempt at a time, bounded, never after the response; and what a watcher reads of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import insert, update

from turngate.domain.contract import StepPlan
from turngate.domain.conversation.messages import Delta, Message, ModelResponse, TextPart
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.live import deltas, watch
from turngate.store.live.deltas import LOST, Attempt, DeltaBatch, Deltas
from turngate.store.live.watch import EVERY_RUN, Follower, StreamItem
from turngate.store.runs import runs, steps
from turngate.store.sequences import Numbered
from turngate.store.tables import deltas as deltas_table
from turngate.store.tables import event_counter


def words(text: str) -> DeltaBatch:
    return DeltaBatch([Delta(kind="text", part=0, text=text)])


async def begin(database: Database, run: runs.Run, text: str, step: int = 1) -> Attempt | None:
    async with database.write() as conn:
        return await deltas.begin(conn, run.id, step, words(text))


async def say(database: Database, run: runs.Run, attempt: Attempt, n: int, text: str) -> bool:
    async with database.write() as conn:
        return await deltas.append(conn, attempt, n, words(text))


async def respond(database: Database, run: runs.Run, step: int = 1) -> None:
    """Store a final response and its event, as ``call_model`` does."""
    message = Message(role="assistant", parts=(TextPart(text="Done."),))
    response = ModelResponse(message=message, finish_reason="stop", model="m")
    async with database.write() as conn:
        await steps.record_response(conn, run, steps.NewStep(number=step, response=response, plan=StepPlan(final=True)))
        await deltas.forget(conn, run.id, step)
        await events.append(conn, run.id, [("step.responded", {"step": step})])


async def stored_deltas(database: Database, run: runs.Run) -> list[tuple[str | None, str]]:
    async with database.read() as conn:
        rows = await deltas.after(conn, 0, ended_from=0, run_ids=[run.id], limit=9_999)
    return [(row.reset, "".join(each.text for each in row.deltas)) for row in rows]


async def read_all(database: Database, follower: Follower) -> list[str]:
    items: list[StreamItem] = []
    while True:
        async with database.read() as conn:
            batch = await follower.read(conn, await watch.newest(conn))
        if not batch:
            return story(items)
        items += batch


def story(items: Sequence[StreamItem]) -> list[str]:
    return [
        each.type if isinstance(each, Event) else "".join(delta.text for delta in each.deltas) or f"reset: {each.reset}"
        for each in items
        if isinstance(each, Event | Deltas)
    ]


async def test_numbers_of_deltas_go_beyond_32_bits(database: Database, run: runs.Run) -> None:
    """A million runs a day stream some two hundred million rows a day."""
    async with database.write() as conn:
        await conn.execute(insert(event_counter).values(id=Numbered.DELTAS.value, last_seq=2**31 - 1))
    attempt = await begin(database, run, "one")
    assert attempt is not None
    assert attempt.number == 2**31
    assert await say(database, run, attempt, 2, "two")
    async with database.read() as conn:
        rows = await deltas.after(conn, 2**31, ended_from=2**40)
    assert [row.id for row in rows] == [2**31 + 1]


async def test_attempts_never_mix(database: Database, run: runs.Run) -> None:
    """A new attempt replaces the one before and says that it was lost; later deltas of that one are refused."""
    first = await begin(database, run, "a")
    assert first is not None
    assert await say(database, run, first, 2, "b")
    second = await begin(database, run, "c")
    assert second is not None
    assert second > first
    assert not await say(database, run, first, 3, "late")
    async with database.write() as conn:
        await deltas.give_up(conn, first, 3, "late, too")
    assert await stored_deltas(database, run) == [(LOST, "c")]
    async with database.write() as conn:
        await deltas.give_up(conn, second, 2, "it broke off")
    assert await stored_deltas(database, run) == [("it broke off", "")]
    await begin(database, run, "d")
    # Without the end of the attempt before, which watchers got already.
    assert await stored_deltas(database, run) == [(None, "d")]


async def test_nothing_comes_after_the_response(database: Database, run: runs.Run) -> None:
    """The response deletes all its deltas; a late delta and a late attempt are refused."""
    attempt = await begin(database, run, "a")
    assert attempt is not None
    await respond(database, run)
    assert not await say(database, run, attempt, 2, "late")
    assert await begin(database, run, "later") is None
    assert await stored_deltas(database, run) == []


async def test_two_attempts_at_once_leave_one(database: Database, run: runs.Run) -> None:
    """Only the one that began last writes; the other's deltas are deleted and stay so."""
    attempts = [each for each in await asyncio.gather(*(begin(database, run, f"{n}.") for n in range(6))) if each]
    assert len(set(attempts)) == 6
    done = await asyncio.gather(*(say(database, run, attempt, 2, "more") for attempt in attempts))
    assert [attempt for attempt, is_accepted in zip(attempts, done, strict=True) if is_accepted] == [max(attempts)]
    assert [text for _reset, text in await stored_deltas(database, run)][1:] == ["more"]


async def test_only_the_newest_rows_are_kept(
    database: Database, run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response that never ends keeps a bounded number of rows; another step's rows are counted separately."""
    monkeypatch.setattr(deltas, "MAX_ROWS_PER_STEP", 3)
    other = await begin(database, run, "other", step=2)
    attempt = await begin(database, run, "1")
    assert other is not None
    assert attempt is not None
    for n in range(2, 8):
        await say(database, run, attempt, n, str(n))
    assert [text for _reset, text in await stored_deltas(database, run)] == ["other", "5", "6", "7"]


async def test_a_late_watcher_gets_the_response_in_progress(database: Database, run: runs.Run, new_run) -> None:
    """A response in progress is sent whole; of a stored one nothing is sent, however its deltas were left over."""
    early = Follower(0, run_id=run.id, deltas_of=EVERY_RUN)
    attempt = await begin(database, run, "a")
    assert attempt is not None
    assert (await read_all(database, early))[-1:] == ["a"]
    await say(database, run, attempt, 2, "b")
    async with database.read() as conn:
        last = await events.last_seq(conn)
    stranger = await new_run()
    await begin(database, stranger, "of another run")
    assert await read_all(database, Follower(last, run_id=run.id, deltas_of=EVERY_RUN)) == ["a", "b"]
    assert await read_all(database, Follower(last, deltas_of=run.id)) == ["a", "b"]
    assert await read_all(database, Follower(last, deltas_of=EVERY_RUN)) == ["a", "b", "of another run"]
    assert await read_all(database, Follower(last, run_id=run.id)) == []
    assert await read_all(database, early) == ["b"]
    await respond(database, run)
    assert await read_all(database, early) == ["step.responded"]
    # As a worker that died in between would leave it:
    async with database.write() as conn:
        await conn.execute(update(deltas_table).values(run_id=run.id))
    assert await read_all(database, Follower(last, run_id=run.id, deltas_of=EVERY_RUN)) == ["step.responded"]


@pytest.mark.parametrize(
    ("age", "ended", "stays"),
    [
        (timedelta(minutes=9), True, True),
        (timedelta(minutes=11), True, False),
        (timedelta(hours=23), False, True),
        (timedelta(hours=25), False, False),
    ],
)
async def test_left_over_deltas_are_swept_away(
    database: Database, run: runs.Run, age: timedelta, *, ended: bool, stays: bool
) -> None:
    """Ten minutes after its run's end, or after a day."""
    await begin(database, run, "old")
    async with database.write() as conn:
        await conn.execute(update(deltas_table).values(created_at=as_text(now() - age)))
        if ended:
            await runs.end(conn, run.id, runs.Ending(status="failed", reason="", error_class=""))
    async with database.write() as conn:
        await deltas.sweep(conn)
    assert await stored_deltas(database, run) == ([(None, "old")] if stays else [])
    async with database.read() as conn:
        assert (await watch.newest(conn))[Numbered.DELTAS] == 1
