"""Store and workflows compared: differences are found, and a run that missed a decision gets its signal again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.engine.stack import ListModel, Stack, call, says, stack
from support.engine.tools import Bench
from temporalio.client import Client
from typer.testing import CliRunner, Result

from turngate.approvals_api.recovery import reconcile
from turngate.approvals_api.recovery.reconcile import Finding
from turngate.cli.main import app
from turngate.domain.tools.results import Failure
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import runs

DONE = says("Done.")


def pays(*names: str) -> Any:
    return says(*(call("pay", json.dumps({"cents": place}), name) for place, name in enumerate(names, 1)))


@pytest.fixture(autouse=True)
def quick_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "SETTLING_SECONDS", 0.2)


async def off(engine: Stack, *about: runs.Run, fix: bool = False) -> list[Finding]:
    """The findings about these runs; the server also has runs of other tests, which use other stores."""
    findings = await reconcile.reconcile(engine.services, fix=fix)
    return [each for each in findings if each.run_id in {run.id for run in about}]


def kinds(findings: list[Finding]) -> set[tuple[str, str | None, bool]]:
    return {(each.kind, each.request_id, each.fixed) for each in findings}


@asynccontextmanager
async def signalling_no_one(engine: Stack) -> AsyncIterator[Stack]:
    """The same engine with an API whose signals reach no one."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    yield Stack(nowhere, engine.database, engine.engine, engine.task_queue)


@pytest.mark.exhaustive
async def test_both_kinds_of_orphan_are_reported_and_left(client: Client, sqlite: Database, bench: Bench) -> None:
    """A live run without a workflow, an open workflow without a live run; a run that waits as it should is neither."""
    tampered = "a run ends in the store alone"
    async with stack(client, sqlite, bench.pay, model=ListModel(pays("p")), tampered=tampered) as engine:
        fine, lost, orphan = [await engine.start() for _ in range(3)]
        for run in (fine, lost, orphan):
            await engine.request(run)
        assert await off(engine, fine, lost, orphan) == []
        await engine.workflow(lost).terminate()
        async with sqlite.write() as conn:
            await runs.end(conn, orphan.id, runs.Ending(status="failed"))
        for fix in (False, True):
            findings = await off(engine, fine, lost, orphan, fix=fix)
            assert kinds(findings) == {("lost_run", None, False)} | {("lost_workflow", None, False)}
            assert {each.run_id: each.detail for each in findings} == {
                lost.id: "live in the store, its workflow is closed",
                orphan.id: "its workflow is open, and the run is failed in the store",
            }


@pytest.mark.exhaustive
async def test_a_run_that_missed_a_decision_is_signalled_again(
    client: Client, database: Database, bench: Bench
) -> None:
    """An approval and a rejection whose signals were lost are found; the runs get them with ``fix`` only, and each counts once.

    What waits for a person is no difference, nor is what the run has acted on.
    """
    model = ListModel(pays("old"), pays("missed", "refused", "open"), DONE)
    async with stack(client, database, bench.pay, model=model) as engine, signalling_no_one(engine) as silent:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        await engine.request(run)
        by_call = {each.tool_call_id: each for each in await engine.requests_of(run)}
        assert await off(engine, run) == []
        await silent.decide(by_call["missed"], "approve")
        await silent.decide(by_call["refused"], "reject", message="too much")
        for fix in (False, True):
            expected = {("not_told", by_call[name].id, fix) for name in ("missed", "refused")}
            assert kinds(await off(engine, run, fix=fix)) == expected
        await engine.event(run, "execution.started")
        assert await engine.request(run) == by_call["open"]
        await engine.decide(by_call["open"], "approve")
        assert (await engine.ended(run)).status == "completed"
        assert await off(engine, run) == []
        assert sorted(bench.paid) == [1, 1, 3]
        refused = (await engine.results(run))["refused"]
        assert isinstance(refused, Failure)
        assert refused.kind == "rejected"
        async with database.read() as conn:
            assert await events.chain_break(conn, run.id) is None


async def test_a_signal_that_no_worker_takes_is_reported_until_one_does(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Without a worker the signal waits at Temporal; however often it is sent, the call runs once when a worker comes."""
    async with stack(client, sqlite, bench.pay, model=ListModel(pays("p"), DONE), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        await engine.decide(request, "approve")
        for _ in range(2):
            assert kinds(await off(engine, run, fix=True)) == {("not_told", request.id, True)}
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
            await engine.closed(run)
        assert await off(engine, run) == []
        assert bench.paid == [1]


@pytest.mark.exhaustive
async def test_both_commands_say_what_they_did(
    client: Client,
    temporal: EmbeddedTemporal,
    sqlite: Database,
    bench: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without --all, `recover` only lists; a finding makes `reconcile` exit with 1; a wrong id is reported."""
    for name in ("TURNGATE_DATA_DIR", "TURNGATE_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.address)

    async def turngate(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, [*words, "--data-dir", str(tmp_path)])

    async with stack(client, sqlite, bench.pay, model=ListModel(pays("p"), DONE)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.workflow(run).terminate()
        listed = await turngate("recover")
        assert (listed.exit_code, listed.stdout) == (0, f"· {run.id}  would be recovered, at step 1\n")
        assert "1 of 1 run(s) would be recovered; `turngate recover --all` recovers them" in listed.stderr
        broken = await turngate("reconcile")
        assert broken.exit_code == 1
        assert f"✗ {run.id}  run without a workflow: live in the store, its workflow is closed" in broken.stdout
        assert (await turngate("recover", "run_nowhere")).exit_code == 1
        done = await turngate("recover", "--all", "--json")
        assert json.loads(done.stdout) == [{"run_id": run.id, "outcome": "recovered", "step": 1, "detail": ""}]
        again = await turngate("recover", run.id)
        assert (again.exit_code, again.stdout) == (0, f"· {run.id}  left alone: its workflow is open\n")
        assert run.id not in (await turngate("reconcile")).stdout
        recovered = await engine.event(run, "run.recovered")
        assert str(recovered.payload["by"]).startswith("cli:")
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
