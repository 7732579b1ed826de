"""Progress rows: numbered within their call, bounded, never after the result; and what a watcher reads of them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest
from sqlalchemy import update

from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.live import progress, watch
from turngate.store.live.progress import NewProgress
from turngate.store.live.watch import Follower, StreamItem
from turngate.store.runs import executions, runs
from turngate.store.sequences import Numbered
from turngate.store.tables import progress as progress_table
from turngate.store.tables import runs as runs_table


async def begin(database: Database, run: runs.Run, call: str = "c1") -> None:
    """Let the call's handler start, with its event."""
    async with database.write() as conn:
        await executions.begin(
            conn,
            executions.NewExecution(
                run_id=run.id, tool_call_id=call, digest="d", decision_id=None, idempotency_key="k"
            ),
        )
        await events.append(conn, run.id, [("execution.started", {"tool_call_id": call})])


async def finish(database: Database, run: runs.Run, call: str = "c1") -> None:
    async with database.write() as conn:
        await executions.finish(conn, run_id=run.id, tool_call_id=call, state="succeeded")
        await events.append(conn, run.id, [("execution.finished", {"tool_call_id": call})])


async def say(database: Database, run: runs.Run, *texts: object, call: str = "c1") -> bool:
    async with database.write() as conn:
        return await progress.append(conn, run.id, call, [NewProgress(json.dumps(text), 0) for text in texts])


async def read_all(database: Database, follower: Follower) -> list[StreamItem]:
    items: list[StreamItem] = []
    while True:
        async with database.read() as conn:
            batch = await follower.read(conn, await watch.newest(conn))
        if not batch:
            return items
        items += batch


def story(items: list[StreamItem]) -> list[object]:
    return [each.type if isinstance(each, Event) else each.payload for each in items]


async def adopt(database: Database, child: runs.Run, parent: runs.Run) -> None:
    async with database.write() as conn:
        await conn.execute(update(runs_table).where(runs_table.c.id == child.id).values(parent_run_id=parent.id))


async def test_numbers_continue_over_attempts_and_only_the_newest_rows_stay(database: Database, run: runs.Run) -> None:
    """``n`` counts from 1 within a call, for all its writers; past 500 rows that call's oldest are deleted."""
    await begin(database, run)
    await begin(database, run, "c2")
    await say(database, run, "other", call="c2")
    await say(database, run, "first")
    await say(database, run, *range(400))
    await say(database, run, *range(400, 700))
    async with database.read() as conn:
        rows = await progress.after(conn, 0, finished_from=0, limit=9_999)
    mine = [row for row in rows if row.tool_call_id == "c1"]
    assert [row.n for row in mine] == list(range(202, 702))
    assert [row.payload for row in mine] == list(range(200, 700))
    assert [row.id for row in mine] == sorted(row.id for row in mine)
    assert [row.n for row in rows if row.tool_call_id == "c2"] == [1]


async def test_two_writers_of_one_call_never_give_the_same_number(database: Database, run: runs.Run) -> None:
    """A worker that was thought lost and the next attempt may both write: numbers stay unique and in order."""
    await begin(database, run)
    await asyncio.gather(*(say(database, run, number, number) for number in range(20)))
    async with database.read() as conn:
        rows = await progress.after(conn, 0, finished_from=0)
    assert [row.n for row in rows] == list(range(1, 41))


async def test_nothing_is_added_to_a_call_that_does_not_execute(database: Database, run: runs.Run) -> None:
    """There is no progress before the handler may start, nor after the result is stored."""
    assert not await say(database, run, "early")
    await begin(database, run)
    assert await say(database, run, "in time")
    await finish(database, run)
    assert not await say(database, run, "late")
    async with database.read() as conn:
        assert [row.payload for row in await progress.after(conn, 0, finished_from=0)] == ["in time"]


@pytest.mark.parametrize(
    ("age", "ended", "stays"),
    [
        (timedelta(minutes=59), True, True),
        (timedelta(minutes=61), True, False),
        (timedelta(hours=23), False, True),
        (timedelta(hours=25), False, False),
    ],
)
async def test_old_progress_is_swept_away(
    database: Database, run: runs.Run, age: timedelta, *, ended: bool, stays: bool
) -> None:
    """An hour after the call's end, or after a day, rows are deleted; a used number is never used again."""
    await begin(database, run)
    await say(database, run, "old", "old too")
    async with database.write() as conn:
        await conn.execute(update(progress_table).values(created_at=as_text(now() - age)))
    if ended:
        await finish(database, run)
    await begin(database, run, "c2")
    async with database.write() as conn:
        await progress.sweep(conn)
    await say(database, run, "new", call="c2")
    async with database.read() as conn:
        left = [row.payload for row in await progress.after(conn, 0, finished_from=0)]
        assert left == (["old", "old too", "new"] if stays else ["new"])
        assert (await watch.newest(conn))[Numbered.PROGRESS] == 3


async def test_events_and_progress_come_in_the_order_they_happened(database: Database, run: runs.Run) -> None:
    """Read at once or bit by bit: the call's start, its progress, its end; each once."""
    bit_by_bit = Follower(0, run_id=run.id)
    seen: list[StreamItem] = []
    for act in (
        begin(database, run),
        say(database, run, "a", "b"),
        begin(database, run, "c2"),
        say(database, run, "c"),
        finish(database, run),
    ):
        await act
        seen += await read_all(database, bit_by_bit)
    expected = ["execution.started", "a", "b", "execution.started", "c", "execution.finished"]
    assert story(seen) == expected
    await finish(database, run, "c2")
    at_once = Follower(0)
    at_once._cursors[Numbered.PROGRESS]._began_at = 0  # as if it had looked before any progress
    assert story(await read_all(database, at_once)) == [*expected, "execution.finished"]


async def test_order_holds_over_many_batches(database: Database, run: runs.Run) -> None:
    """More events and progress than one look takes: no row is lost, doubled or out of order."""
    await begin(database, run)
    for number in range(6):
        await say(database, run, *(f"{number}.{each}" for each in range(80)))
        async with database.write() as conn:
            await events.append(conn, run.id, [(f"event.{number}.{each}", {}) for each in range(200)])
    items = story(await read_all(database, Follower(0, run_id=run.id)))
    expected: list[object] = ["execution.started"]
    for number in range(6):
        expected += [f"{number}.{each}" for each in range(80)]
        expected += [f"event.{number}.{each}" for each in range(200)]
    assert items == expected
    # More progress than one look takes, before events that must wait for it.
    async with database.read() as conn:
        here = await events.last_seq(conn)
    await begin(database, run, "c2")
    await say(database, run, *(f"c2.{each}" for each in range(400)), call="c2")
    async with database.write() as conn:
        await events.append(conn, run.id, [("last", {})])
    items = story(await read_all(database, Follower(0, run_id=run.id)))
    assert items == [*expected, "execution.started", *(f"c2.{each}" for each in range(400)), "last"]
    words = [each for each in expected if str(each)[0].isdigit()]
    late = story(await read_all(database, Follower(here, run_id=run.id)))
    assert late == [*words, "execution.started", *(f"c2.{each}" for each in range(400)), "last"]


async def test_a_late_watcher_gets_the_progress_of_running_calls(database: Database, run: runs.Run) -> None:
    """A finished call's progress is not sent, as its result is there; a running call's is, wherever the watcher starts."""
    await begin(database, run)
    await begin(database, run, "c2")
    await say(database, run, "of the finished")
    await say(database, run, "of the running", call="c2")
    await finish(database, run)
    async with database.read() as conn:
        last = await events.last_seq(conn)
    late = Follower(last, run_id=run.id)
    assert story(await read_all(database, late)) == ["of the running"]
    await say(database, run, "more", call="c2")
    await finish(database, run, "c2")
    assert story(await read_all(database, late)) == ["more", "execution.finished"]
    assert story(await read_all(database, Follower(last, with_progress=False))) == ["execution.finished"]


async def test_a_run_is_followed_with_its_sub_agents_runs(database: Database, new_run) -> None:
    """Descendants at any depth, also those that start meanwhile; a stranger's run is not sent."""
    parent, child, grandchild, stranger = [await new_run() for _ in range(4)]
    await adopt(database, child, parent)
    follower = Follower(0, run_id=parent.id)
    for run in (parent, child, stranger):
        await begin(database, run)
        await say(database, run, run.id)
    assert [(each.run_id) for each in await read_all(database, follower)] == [parent.id] * 2 + [child.id] * 2
    await adopt(database, grandchild, child)
    await begin(database, grandchild)
    await say(database, grandchild, "deep")
    assert story(await read_all(database, follower)) == ["execution.started", "deep"]
    only = Follower(0, progress_of=child.id)
    run_ids = [each.run_id for each in await read_all(database, only) if not isinstance(each, Event)]
    assert run_ids == [child.id, grandchild.id]


async def test_the_newest_lines_of_running_calls(database: Database, run: runs.Run) -> None:
    """What a page shows: the last rows of each running call, oldest first."""
    await begin(database, run)
    await begin(database, run, "c2")
    await say(database, run, *range(30))
    await say(database, run, "x", call="c2")
    await finish(database, run, "c2")
    async with database.read() as conn:
        newest = await progress.newest_of_executing(conn, run.id, limit=20)
    assert {call: [row.payload for row in rows] for call, rows in newest.items()} == {"c1": list(range(10, 30))}
