"""I14: a run whose calls kill or freeze each worker that judges them fails with a reason, and takes no other run with it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine.stack import ListModel, Stack, call, says, stack
from support.programs.poisoned_worker import Payment, losses
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment

from turngate import tool
from turngate.activities.engine.error_log import Where, note
from turngate.activities.engine.lost_workers import LOST_WORKER, judging
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs.runs import Run

WORKER = Path(__file__).parents[1] / "support" / "programs" / "poisoned_worker.py"
SECONDS = 300.0


@tool(effect="once")
async def pay(params: Payment) -> int:
    return params.cents


def engine_of(client: Client, database: Database) -> AbstractAsyncContextManager[Stack]:
    return stack(client, database, pay, model=ListModel(says(call("pay", "{}"))), working=False)


@asynccontextmanager
async def supervised(
    temporal: EmbeddedTemporal, database: Database, directory: Path, *engines: Stack
) -> AsyncIterator[None]:
    """A worker for each engine works inside the block: a process of its own, which is started again whenever it is gone.

    Runs that start later go to the queue that the process published for itself, where no one works.
    """
    queues = [engine.task_queue for engine in engines]
    arguments = [temporal.address, database.url, str(directory), *queues]
    process = await asyncio.create_subprocess_exec(sys.executable, str(WORKER), *arguments)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def assert_given_up(run: Run, place: str) -> None:
    assert (run.status, run.error_class) == ("failed", "worker_lost"), run.reason
    assert place in run.reason


async def kills(engine: Stack, directory: Path, killer: Run, others: Sequence[Run]) -> None:
    """A call that kills every worker that plans it ends its run; runs that were planned beside it continue."""
    await engine.hurry_next(killer)
    for other in others:
        with suppress(RPCError):  # it was planned before the first worker was lost
            await engine.hurry(other, heartbeat_seconds=2)
    assert_given_up(await engine.ended(killer, SECONDS), "the plan of step 1")
    assert 0 < losses(directory, "kill") <= 5, "a worker that was lost before it judged counts, too"
    repeated = [event for event in await engine.events(killer) if event.type == "attempt.repeated"]
    assert [event.payload["alone"] for event in repeated] == [False, True, True, True]
    for other in others:
        await engine.decide(await engine.request(other), "approve")
    assert {(await engine.ended(other)).status for other in others} == {"completed"}


async def freezes(engine: Stack, directory: Path, run: Run) -> None:
    """An approved call that freezes every worker that redeems it ends its run; its handler never starts."""
    request = await engine.request(run)
    (directory / "freeze").touch()
    await engine.decide(request, "approve")
    await engine.hurry_next(run, retry_ms=700)  # by then the frozen one is gone, or it would take the next attempt
    ended = await engine.ended(run, SECONDS)
    assert_given_up(ended, "the start of call")
    assert f"of the tool {request.tool_name!r}" in ended.reason
    assert 0 < losses(directory, "freeze") <= 5, "a worker that was lost before it judged counts, too"
    assert await engine.executions(run) == {}


async def test_i14_a_call_that_kills_or_freezes_its_worker_ends_its_run_alone(
    temporal: EmbeddedTemporal, client: Client, sqlite: Database, tmp_path: Path
) -> None:
    """I14: a call that kills the worker that plans it, or freezes the one that starts it, ends its run and no other."""
    (tmp_path / "kill").touch()
    async with engine_of(client, sqlite) as killed, engine_of(client, sqlite) as frozen:
        before, killer, after = [await killed.start(task) for task in ("go", "kill", "go")]
        freezer = await frozen.start("freeze")
        async with supervised(temporal, sqlite, tmp_path, killed, frozen):
            await asyncio.gather(kills(killed, tmp_path, killer, [before, after]), freezes(frozen, tmp_path, freezer))


async def test_only_attempts_that_did_not_end_count(client: Client, sqlite: Database) -> None:
    """Attempts that failed by themselves are repeated as often as ever; a first one appends nothing, and each order is apart."""
    place = "the plan of step 1"
    async with stack(client, sqlite, model=ListModel(says("Done.")), working=False) as engine:
        run = await engine.start()

        async def attempt(number: int, order: str) -> None:
            environment = ActivityEnvironment()
            environment.info = replace(environment.info, attempt=number, activity_id=order)

            async def judge() -> None:
                async with judging(engine.engine, run.id, place):
                    raise ValueError(number)

            with pytest.raises(ValueError, match=str(number)):
                await environment.run(judge)

        for number in range(1, 8):
            await attempt(number, "1")
        recorded = [event for event in await engine.events(run) if event.type.startswith("attempt.")]
        assert [event.type for event in recorded] == ["attempt.repeated", "attempt.ended"] * 6
        lost = {**recorded[0].payload, "attempt": 8}
        async with sqlite.write() as conn:
            for alone in (False, True, True, True):
                lost |= {"attempt": lost["attempt"] + 1, "alone": alone}
                await events.append(conn, run.id, [("attempt.repeated", dict(lost))])
        await attempt(13, "2")
        with pytest.raises(ApplicationError, match="4 workers in a row were killed or froze") as given_up:
            await attempt(13, "1")
        assert (given_up.value.type, given_up.value.non_retryable) == ("worker_lost", True)
        async with sqlite.write() as conn:
            await events.append(conn, run.id, [("attempt.ended", dict(lost))])
        await attempt(13, "1")


async def test_i14_workers_that_others_lose_elsewhere_excuse_a_run(client: Client, sqlite: Database) -> None:
    """I5 and I14: three lost workers end a run, unless another run lost one that this run was not on; then six do."""
    place = "the plan of step 1"
    async with stack(client, sqlite, model=ListModel(says("Done.")), working=False) as engine:
        run, other = await engine.start(), await engine.start()
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, attempt=20, activity_id="1")

        async def is_given_up() -> bool:
            async def judge() -> None:
                async with judging(engine.engine, run.id, place):
                    raise ValueError

            with pytest.raises((ApplicationError, ValueError)) as ended:
                await environment.run(judge)
            return ended.type is ApplicationError

        order = f"{environment.info.workflow_run_id}/1"

        async def lose(attempt: int) -> None:
            mark = {"place": place, "order": order, "attempt": attempt, "worker": "7@here", "alone": True}
            async with sqlite.write() as conn:
                await events.append(conn, run.id, [("attempt.repeated", mark)])

        async def other_lost(worker: str) -> None:
            async with sqlite.write() as conn:
                where = Where(run_id=other.id, step=1, tool_call_id=worker, attempt=1)
                await note(conn, engine.engine, LOST_WORKER, "", where, process=(worker, "b"))

        for attempt in (2, 3, 4):
            await lose(attempt)
        await other_lost("7@here")
        assert await is_given_up()  # that one it may have killed itself
        await other_lost("8@there")
        assert not await is_given_up()
        for attempt in range(21, 27):
            await lose(attempt)
        assert await is_given_up()
