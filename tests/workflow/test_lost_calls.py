"""Calls whose worker is lost more than once, or comes back changed: an unknown outcome is never reported as known."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel
from support.engine.stack import ListModel, OneModel, Stack, call, killed, person, says, stack, until
from support.engine.tools import Bench
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Agent, App, ToolContext, Toolkit, tool
from turngate import worker as composition
from turngate.activities.engine.engine import OrderLocks
from turngate.activities.execution.door import Door
from turngate.activities.execution.lost_calls import ask_resolution
from turngate.activities.run_tool import RunTool
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.runs import explain
from turngate.domain.contract import RunToolInput
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Effect, ProcessConfinement, Tool
from turngate.runtime.app_loader import check_app
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs


class Amount(BaseModel):
    """What is paid."""

    cents: int = 5


def lost_tool(bench: Bench, effect: Effect, *, ask: bool, description: str = "Pay.") -> Tool:
    """A tool that counts its starts and never ends by itself."""

    @tool(effect=effect, ask=ask, description=description)
    async def pay() -> int:
        bench.paid.append(1)
        await asyncio.sleep(3600)
        return 1

    return pay


def held_tool(bench: Bench) -> Tool:
    """A tool that counts its starts, and ends when it is released."""

    @tool(effect="once", ask=False)
    async def pay() -> int:
        bench.paid.append(1)
        await bench.release.wait()
        return 1

    return pay


def model() -> ListModel:
    return ListModel(says(call("pay", "{}", "c1")), says("Done."))


async def started(bench: Bench, times: int) -> None:
    async def look() -> bool:
        return len(bench.paid) >= times

    await until(look, f"start {times} of the handler")


async def lost_twice(engine: Stack, bench: Bench, edit: str | None = None) -> tuple[runs.Run, requests.Request]:
    """An approved call was lost, and once more after a person said that it did not happen: its run, and what they were asked.

    ``edit``: the arguments that they put in place of the model's.
    """
    async with engine.worker(graceful_shutdown_seconds=0):
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve" if edit is None else "edit", args=edit)
        await started(bench, 1)
    async with engine.worker(graceful_shutdown_seconds=0):
        first = await engine.request(run, kind="outcome")
        await engine.decide(first, "respond", outcome="did_not_happen")
        await started(bench, 2)
    return run, first


def deploy_another(engine: Stack, database: Database, *tools: Tool) -> None:
    agent = Agent(name="agent", instructions="", toolkit=Toolkit.of(*tools), model="scripted:test")
    app = check_app(App(agents=[agent]), base=Path.cwd())
    engine.engine = composition.build_engine(app, database, OneModel(ListModel(says("Done."))))


@pytest.mark.parametrize("edited", [False, True])
async def test_i3_i6_a_call_that_is_lost_again_asks_again_and_starts_only_as_it_was_shown(
    client: Client, sqlite: Database, bench: Bench, *, edited: bool
) -> None:
    """I3: each lost start of a ``once`` call opens an ``outcome`` request of its own, and each repeat is a person's word.

    I6: it starts with what it was approved with, edited or not, and never on a worker that confines it otherwise.
    """
    ways, seen = ["confined"], list[tuple[int, str | None]]()

    @tool(effect="once", ask=True, precondition=lambda: "etag-1")
    async def pay(params: Amount, ctx: ToolContext) -> int:
        seen.append((params.cents, ctx.precondition))
        bench.paid.append(1)
        await asyncio.sleep(3600)
        return 1

    pay = replace(pay, confinement=lambda _: ProcessConfinement(confined=len(ways) == 1, text=ways[-1]))
    async with stack(client, sqlite, pay, model=model(), working=False) as engine:
        run, first = await lost_twice(engine, bench, edit='{"cents": 4}' if edited else None)
        async with engine.worker():
            second = await engine.request(run, kind="outcome")
            assert second.id != first.id
            assert second.process_confinement is not None
            ways.append("unconfined")
            await engine.decide(second, "respond", outcome="did_not_happen")
            assert (await engine.ended(run)).status == "completed"
        assert seen == [(4 if edited else 5, '"etag-1"')] * 2
        assert (await engine.executions(run))["c1"].attempts == 2
        assert "confines it otherwise" in str((await engine.results(run))["c1"])


@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_i14_a_tool_that_loses_its_worker_twice_is_named_and_ends(
    client: Client, sqlite: Database, bench: Bench, effect: Effect
) -> None:
    """I14: the first loss may be anyone's; after the second, people see the tool's name, and no third worker is lost to it."""
    async with stack(client, sqlite, lost_tool(bench, effect, ask=False), model=model(), working=False) as engine:

        async def named() -> list[tuple[str, str | None, int]]:
            noted = (await explain.explain(engine.services, person("ada"), run.id)).errors
            return [
                (each.about, each.tool_call_id, each.attempt) for each in noted if "may kill it" in (each.message or "")
            ]

        for start in (1, 2):
            async with engine.worker(graceful_shutdown_seconds=0):
                if start == 1:
                    run = await engine.start()
                elif effect == "once":
                    await engine.decide(await engine.request(run, kind="outcome"), "respond", outcome="did_not_happen")
                await started(bench, start)
                assert await named() == []
            await killed(engine)
        async with engine.worker():
            await until(named, "the tool's name")
            assert await named() == [("pay", "c1", 2)]
            if effect == "once":
                await engine.request(run, kind="outcome")
                await engine.interrupt(run)
            assert (await engine.ended(run)).status == ("interrupted" if effect == "once" else "completed")
        assert len(bench.paid) == 2
        if effect == "idempotent":
            result = (await engine.results(run))["c1"]
            assert isinstance(result, Failure)
            assert "its worker was lost 2 times" in result.reason


async def test_i5_deploys_do_not_end_a_call(client: Client, sqlite: Database, bench: Bench) -> None:
    """I5: a worker that stops in order says so, and its calls start again as often as it takes."""
    async with stack(client, sqlite, lost_tool(bench, "idempotent", ask=False), model=model(), working=False) as engine:
        for start in (1, 2, 3):
            async with engine.worker(graceful_shutdown_seconds=0):
                if start == 1:
                    run = await engine.start()
                await started(bench, start)
                await engine.hurry(run)
        async with engine.worker():
            await started(bench, 4)
            await engine.interrupt(run)
            await engine.ended(run)


async def test_i1_i3_an_attempt_that_comes_back_cannot_close_a_call_that_is_asked_about(
    client: Client, database: Database, bench: Bench
) -> None:
    """I1, I3: an earlier attempt, thought lost, asks about the start of a later one: the person's answer is the result."""
    async with stack(client, database, held_tool(bench), model=model()) as engine:
        run = await engine.start()
        await started(bench, 1)
        earlier = RunToolInput(run_id=run.id, call="c1")  # Temporal no longer listens to it
        elsewhere = replace(engine.engine, order_locks=OrderLocks())  # in another process
        assert (await ActivityEnvironment().run(RunTool(elsewhere).run_tool, earlier)).state == "asks"
        bench.release.set()
        await engine.event(run, "execution.late")
        outcome = await engine.request(run, kind="outcome")
        await engine.decide(outcome, "respond", outcome="happened", args="1")
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.results(run))["c1"] == Ok(value={"value": 1})
        assert len(bench.paid) == 1


async def test_i5_no_one_is_asked_about_a_call_that_has_its_result_by_now(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: an attempt that looked at a lost call just before its result was stored opens no request: it could not be decided."""
    async with stack(client, sqlite, held_tool(bench), model=model()) as engine:
        run = await engine.start()
        await started(bench, 1)
        async with sqlite.read() as conn:
            seen = await Door.at(engine.engine, conn, RunToolInput(run_id=run.id, call="c1"))
        assert seen.execution is not None
        bench.release.set()
        await engine.event(run, "execution.finished")
        with pytest.raises(LookupError, match="moved this execution on"):
            async with sqlite.write() as conn:
                await ask_resolution(replace(seen, conn=conn))
        assert (await engine.ended(run)).status == "completed"
        async with sqlite.read() as conn:
            assert await requests.of_run(conn, run.id) == []


@pytest.mark.parametrize("after", ["changed", "gone"])
async def test_i3_a_lost_once_call_asks_although_its_tool_changed(
    client: Client, sqlite: Database, bench: Bench, after: str
) -> None:
    """I3, I6: a deploy between the loss and the restart does not turn "unknown" into "it did not run".

    The request can be shown although no one was asked for an approval; another attempt does not run the changed call.
    """
    pay = lost_tool(bench, "once", ask=False)
    async with stack(client, sqlite, pay, model=model(), working=False) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await started(bench, 1)
        changed = lost_tool(bench, "once", ask=False, description="Pay twice.")
        deploy_another(engine, sqlite, *([changed] if after == "changed" else []))
        async with engine.worker():
            request = await engine.request(run, kind="outcome")
            async with sqlite.read() as conn:
                detail = await request_detail(conn, request.id)
            assert (detail.manifest.name, detail.execution) == ("pay", "unknown")
            await engine.decide(request, "respond", outcome="did_not_happen")
            assert (await engine.ended(run)).status == "completed"
        assert len(bench.paid) == 1
        result = (await engine.results(run))["c1"]
        assert isinstance(result, Failure)
        assert (result.kind, "did not run" in result.reason) == ("execution_error", True)
        async with sqlite.read() as conn:
            assert len(await requests.of_run(conn, run.id)) == 1


@pytest.mark.exhaustive
async def test_a_lost_read_whose_tool_changed_is_reported_as_unknown(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I6: a call that was started, and cannot start again unchanged, is never reported as not run."""
    async with stack(client, sqlite, lost_tool(bench, "read", ask=False), model=model(), working=False) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await started(bench, 1)
        deploy_another(engine, sqlite, lost_tool(bench, "read", ask=False, description="Pay twice."))
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert len(bench.paid) == 1
        result = (await engine.results(run))["c1"]
        assert isinstance(result, Failure)
        assert result.kind == "unknown"
        assert (await engine.executions(run))["c1"].state == "unknown"
