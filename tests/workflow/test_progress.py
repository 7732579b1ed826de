"""Tools' progress: delivered in order, never at the tool's cost, never in the workflow's history."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from sqlalchemy import text
from support.engine.stack import ListModel, Stack, call, says, stack, until
from temporalio.client import Client

from turngate import ToolContext, tool
from turngate.activities.engine import bounded_flush
from turngate.activities.execution.progress import reporting
from turngate.domain.tools.results import Ok
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.live import progress, watch
from turngate.store.live.watch import StreamItem
from turngate.store.runs import executions, runs
from turngate.store.sequences import Numbered
from turngate.store.sqlite import WRITE_LOCK_SECONDS

SECRET = "a word that is nowhere else 7f3a"


def talking() -> ListModel:
    return ListModel(says(call("talk", "{}", "c1")), says("Done."))


async def stored_progress(database: Database) -> list[progress.Progress]:
    async with database.read() as conn:
        return await progress.after(conn, 0, finished_from=0, limit=9_999)


async def whole_story(engine: Stack, run: runs.Run) -> list[StreamItem]:
    """Follow a run to its end, as a stream does."""
    items: list[StreamItem] = []
    async with asyncio.timeout(60):
        async for item in engine.services.feed.follow(0, run.id):
            items.append(item)
            if isinstance(item, Event) and item.type == "run.ended":
                break
    return items


async def test_progress_comes_live_and_before_the_result(client: Client, database: Database) -> None:
    """A watcher hears the first words while the tool still waits, and the last ones before the call's end."""
    received = asyncio.Event()

    @tool(effect="read", ask=False)
    async def talk(ctx: ToolContext) -> str:
        """Emit something, and wait until a watcher received it."""
        ctx.emit("first")
        await asyncio.wait_for(received.wait(), 60)
        for number in range(20):
            ctx.emit({"done": number})
        return "ok"

    async with stack(client, database, talk, model=talking()) as engine:
        run = await engine.start()
        watched: list[object] = []
        async with asyncio.timeout(60):
            async for item in engine.services.feed.follow(0, run.id):
                watched.append(item.type if isinstance(item, Event) else item.payload)
                if watched[-1] == "first":
                    received.set()
                if watched[-1] == "run.ended":
                    break
    words = ["first", *({"done": number} for number in range(20))]
    at = watched.index("execution.started") + 1
    assert watched[at : at + 22] == [*words, "execution.finished"]
    assert [row.n for row in await stored_progress(database)] == list(range(1, 22))


@pytest.mark.exhaustive
async def test_a_hundred_thousand_events_neither_block_nor_flood(client: Client, sqlite: Database) -> None:
    """A handler that emits in a tight loop is done as soon as the loop is; watchers get the newest and the number missing."""
    took: list[float] = []

    @tool(effect="once", ask=False)
    async def talk(ctx: ToolContext) -> str:
        """Emit without ever giving way."""
        began = time.monotonic()
        for number in range(100_000):
            ctx.emit({"number": number})
        took.append(time.monotonic() - began)
        return "ok"

    async with stack(client, sqlite, talk, model=talking()) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.results(run))["c1"] == Ok(value={"value": "ok"})
    rows = await stored_progress(sqlite)
    assert len(rows) + sum(row.dropped for row in rows) == 100_000
    assert rows[-1].payload == {"number": 99_999}
    assert len(rows) <= progress.MAX_ROWS_PER_CALL
    assert took[0] < 10, "a tool must not wait for its progress"


async def test_a_thread_may_emit(client: Client, sqlite: Database) -> None:
    """From any thread, faster than the store takes it: in order, and what is missing is counted.

    No event of the workflow's history contains any of it, payloads decoded or not; nor does the conversation, nor the log.
    """

    @tool(effect="once", ask=False)
    async def talk(ctx: ToolContext) -> str:
        """Emit from another thread."""

        def work() -> None:
            for number in range(300):
                ctx.emit(number)
            time.sleep(0.25)  # longer than two batches: a time of silence, not a wait for something
            ctx.emit({"nested": [SECRET]})

        await asyncio.to_thread(work)
        return "ok"

    async with stack(client, sqlite, talk, model=talking()) as engine:
        run = await engine.start()
        await engine.ended(run)
        history = await engine.workflow(run).fetch_history()
        wire = b"".join(event.SerializeToString() for event in history.events)
        assert b"run_tool" in wire
        assert SECRET.encode() not in wire
        assert SECRET not in history.to_json()
        assert SECRET not in str(await engine.history(run))
        assert SECRET not in json.dumps([event.payload for event in await engine.events(run)])
    rows = await stored_progress(sqlite)
    numbers = [row.payload for row in rows[:-1]]
    assert numbers == sorted(numbers)
    assert len(rows) + sum(row.dropped for row in rows) == 301
    assert rows[-1].payload == {"nested": [SECRET]}


async def test_an_interrupted_tools_last_words_are_stored_progress(client: Client, sqlite: Database) -> None:
    """What a tool emits while it is being stopped still reaches watchers, and its partial output its closure."""

    @tool(effect="once", ask=False)
    async def talk(ctx: ToolContext) -> str:
        """Work until stopped."""
        ctx.emit("working")
        try:
            await asyncio.Event().wait()
        finally:
            ctx.emit("stopping")
            ctx.partial("half")
        return "never"

    async with stack(client, sqlite, talk, model=talking()) as engine:
        run = await engine.start()
        async with asyncio.timeout(60):
            async for item in engine.services.feed.follow(0, run.id):
                if not isinstance(item, Event):
                    break
        await engine.interrupt(run)
        await engine.ended(run)
        result = (await engine.results(run))["c1"]
    assert [row.payload for row in await stored_progress(sqlite)] == ["working", "stopping"]
    assert (result.kind, result.fields["partial_output"]) == ("interrupted", "half")


async def test_a_broken_store_of_progress_does_not_fail_the_tool(client: Client, sqlite: Database) -> None:
    """Every write of progress fails for good: the call succeeds, the run continues, and it is logged once."""

    @tool(effect="once", ask=False)
    async def talk(ctx: ToolContext) -> str:
        """Emit three times, with no watcher."""
        for number in range(3):
            ctx.emit(number)
            await asyncio.sleep(0.12)  # so that each is a batch of its own
        return "ok"

    async with sqlite.write() as conn:
        await conn.execute(text("DROP TABLE progress"))
    with structlog.testing.capture_logs() as logs:
        async with stack(client, sqlite, talk, model=talking()) as engine:
            run = await engine.start()
            assert (await engine.ended(run)).status == "completed"
            assert (await engine.results(run))["c1"] == Ok(value={"value": "ok"})
    assert len([line for line in logs if line["event"] == "progress of a call is lost"]) == 1


async def test_a_locked_store_does_not_hold_up_the_tool(
    client: Client, sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another connection holds the write lock, the handler emits and ends; its result is stored when the lock is free."""
    monkeypatch.setattr(bounded_flush, "LAST_WRITE_SECONDS", 0.1)
    ended = asyncio.Event()
    holder = sqlite3.connect(tmp_path / "turngate.db", isolation_level=None, check_same_thread=False)

    @tool(effect="once", ask=False)
    async def talk(ctx: ToolContext) -> str:
        """Emit while the store is locked."""
        holder.execute("BEGIN IMMEDIATE")
        for number in range(1_000):
            ctx.emit(number)
        ended.set()
        return "ok"

    try:
        with structlog.testing.capture_logs() as logs:
            async with stack(client, sqlite, talk, model=talking()) as engine:
                run = await engine.start()
                await asyncio.wait_for(ended.wait(), 60)

                async def gave_up() -> bool:
                    return any(line["event"] == "progress of a call is lost" for line in logs)

                await until(gave_up, "line in the log")
                holder.execute("ROLLBACK")
                assert (await engine.ended(run)).status == "completed"
                assert (await engine.results(run))["c1"] == Ok(value={"value": "ok"})
        assert await stored_progress(sqlite) == []
    finally:
        holder.close()


class CountedDatabase(Database):
    """Counts write transactions."""

    writes = 0

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Connection]:
        self.writes += 1
        async with super().write() as conn:
            yield conn


@pytest.fixture
async def executing(client: Client, sqlite: Database, tmp_path: Path) -> AsyncIterator[tuple[CountedDatabase, str]]:
    """A store where call ``c1`` of a run executes, without any worker; and the run's id."""
    async with stack(client, sqlite, model=talking(), working=False, tampered="no model planned this call") as engine:
        run = await engine.start()
        async with sqlite.write() as conn:
            await executions.begin(
                conn,
                executions.NewExecution(
                    run_id=run.id, tool_call_id="c1", digest="d", decision_id=None, idempotency_key="k"
                ),
            )
        counted = CountedDatabase(f"sqlite:///{tmp_path}/turngate.db")
        yield counted, run.id
        await counted.close()
        await engine.workflow(run).terminate()


async def test_silence_costs_nothing(executing: tuple[CountedDatabase, str]) -> None:
    """Without an event there is no task and no statement."""
    database, run_id = executing
    before = len(asyncio.all_tasks())
    async with reporting(database, run_id=run_id, tool_call_id="c1"):
        assert len(asyncio.all_tasks()) == before
    assert database.writes == 0


async def test_many_events_are_few_transactions(executing: tuple[CountedDatabase, str]) -> None:
    """The first is written at once; what comes within the next tenth of a second goes together."""
    database, run_id = executing
    async with reporting(database, run_id=run_id, tool_call_id="c1") as emit:
        emit(0)
        await asyncio.sleep(0)
        for number in range(1, 100):
            emit(number)
    assert [row.payload for row in await stored_progress(database)] == list(range(100))
    assert database.writes <= 3


async def test_leaving_is_bounded_and_late_words_are_void(
    executing: tuple[CountedDatabase, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the store locked the block is left soon and without an error; ``emit`` then does nothing."""
    monkeypatch.setattr(bounded_flush, "LAST_WRITE_SECONDS", 0.1)
    database, run_id = executing
    holder = sqlite3.connect(tmp_path / "turngate.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    async with reporting(database, run_id=run_id, tool_call_id="c1") as emit:
        emit("lost")
    assert time.monotonic() - began < WRITE_LOCK_SECONDS - 1, "not because the store gave up by itself"
    holder.close()
    emit("late")
    async with database.read() as conn:
        assert (await watch.newest(conn))[Numbered.PROGRESS] == 0
        assert await events.last_seq(conn) > 0
    assert await stored_progress(database) == []
