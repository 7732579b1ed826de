"""Runs: one live run per conversation, one run per idempotency key, one ending."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from turngate.domain.runs.run_filter import RunFilter
from turngate.store.database import Database
from turngate.store.runs import messages, runs
from turngate.store.runs import new_run as opening
from turngate.store.tables import runs as runs_table


async def test_of_many_runs_started_at_once_in_a_conversation_one_lives(database: Database, new_run) -> None:
    """The database itself enforces it: of twelve starts in a conversation one is stored, and eleven leave nothing."""
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
    started = await asyncio.gather(*(new_run("conv") for _ in range(12)), return_exceptions=True)
    live = [each for each in started if isinstance(each, runs.Run)]
    assert len(live) == 1
    assert [type(each) for each in started if each not in live] == [IntegrityError] * 11
    async with database.read() as conn:
        assert await runs.live_of_conversation(conn, "conv") == live[0]
        assert await runs.page(conn, limit=50) == live
        assert len(await messages.path_to(conn, live[0].head_message_id)) == 1


async def test_a_conversation_is_free_again_once_its_run_has_ended(database: Database, new_run) -> None:
    """Ended runs do not count, however many there are."""
    first = await new_run()
    async with database.write() as conn:
        await runs.end(conn, first.id, runs.Ending(status="interrupted"))
    second = await new_run(first.conversation_id, after=first.head_message_id)
    async with database.write() as conn:
        await runs.end(conn, second.id, runs.Ending(status="failed"))
    third = await new_run(first.conversation_id, after=second.head_message_id)
    async with database.read() as conn:
        assert await runs.live_of_conversation(conn, first.conversation_id) == third


async def test_of_many_runs_with_one_key_one_is_stored(database: Database, new_run) -> None:
    """An idempotency key names one run even if it is sent eight times at once; runs without a key do not collide."""
    started = await asyncio.gather(*(new_run(idempotency_key="key-1") for _ in range(8)), return_exceptions=True)
    stored = [each for each in started if isinstance(each, runs.Run)]
    assert len(stored) == 1
    async with database.read() as conn:
        assert await runs.by_idempotency_key(conn, "key-1") == stored[0]
        assert await runs.by_idempotency_key(conn, "key-2") is None
    assert (await new_run()).id != (await new_run()).id


async def test_the_first_ending_counts(database: Database, run: runs.Run) -> None:
    """A run ends once: a second ending changes neither status nor reason."""
    async with database.write() as conn:
        assert await runs.end(conn, run.id, runs.Ending(status="failed", reason="first", error_class="bug"))
        assert not await runs.end(conn, run.id, runs.Ending(status="interrupted", reason="second"))
        assert not await runs.end(conn, "no_such_run", runs.Ending(status="failed"))
    async with database.read() as conn:
        ended = await runs.get(conn, run.id)
    assert ended is not None
    assert (ended.status, ended.reason, ended.error_class) == ("failed", "first", "bug")
    assert ended.ended_at is not None


async def test_pages_are_newest_first_and_skip_nothing_with_equal_times(database: Database, new_run) -> None:
    """Runs from the same microsecond are sorted by id, so paging shows each once."""
    new = [await new_run() for _ in range(5)]
    async with database.write() as conn:
        await conn.execute(update(runs_table).values(created_at="2026-01-01T00:00:00.000000+00:00"))
        await runs.end(conn, new[0].id, runs.Ending(status="failed"))
    seen: list[str] = []
    before = None
    async with database.read() as conn:
        while page := await runs.page(conn, limit=2, before=before):
            seen.extend(run.id for run in page)
            before = (page[-1].created_at, page[-1].id)
        failed = await runs.page(conn, RunFilter(status="failed"), limit=9)
    assert seen == sorted((run.id for run in new), reverse=True)
    assert [run.id for run in failed] == [new[0].id]


async def test_only_a_run_without_steps_can_be_removed(database: Database, new_run) -> None:
    """Removing deletes the run and its input; a run at work stays whole."""
    idle, busy = await new_run(), await new_run()
    async with database.write() as conn:
        await runs.advance(conn, busy.id, step=1)
        for run in (idle, busy):
            await opening.remove_unstarted(conn, run.id)
    async with database.read() as conn:
        assert await runs.get(conn, idle.id) is None
        assert await messages.path_to(conn, idle.input_message_id) == []
        assert await runs.get(conn, busy.id) is not None
        assert len(await messages.path_to(conn, busy.input_message_id)) == 1


async def test_a_long_task_is_shortened_for_lists(database: Database) -> None:
    """The row has 500 characters of the task; the message has all."""
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
        await opening.insert_run(
            conn,
            opening.NewRun(
                id="r",
                conversation_id="conv",
                agent="agent",
                agent_version="v",
                model="m",
                task="é" * 600,
                input_message_id="m",
                started_by="ann",
            ),
        )
        run = await runs.get(conn, "r")
    assert run is not None
    assert run.task == "é" * 500
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await messages.create_conversation(conn, "conv")
