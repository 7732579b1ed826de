"""Store and workflows compared: differences are found, and the inbox can be rebuilt from the workflows."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from support.engine import ListModel, Stack, call, says, stack
from support.tools import Bench
from temporalio.client import Client
from typer.testing import CliRunner, Result

from approvals_api.gateway import recovery
from approvals_api.recovery import reconcile
from approvals_api.recovery.reconcile import Finding
from turngate.cli.main import app
from turngate.domain.tools.results import Failure
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.store.tables import requests as requests_table

DONE = says("Done.")
ME = "cli:me"
UNDECIDED = {"status": "pending", "decision_id": None, "verb": None, "decided_by": None, "decided_at": None}


def pays(*names: str) -> Any:
    return says(*(call("pay", json.dumps({"cents": place}), name) for place, name in enumerate(names, 1)))


@pytest.fixture(autouse=True)
def quick_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "SETTLING_SECONDS", 0.2)


async def off(engine: Stack, *about: runs.Run, fix: bool = False) -> list[Finding]:
    """The findings about these runs; the server also has runs of other tests, which use other stores."""
    findings = await reconcile.reconcile(engine.services, fix=fix, by=ME)
    return [each for each in findings if each.run_id in {run.id for run in about}]


def kinds(findings: list[Finding]) -> set[tuple[str, str | None, bool]]:
    return {(each.kind, each.request_id, each.fixed) for each in findings}


async def by_call(engine: Stack, run: runs.Run) -> dict[str, requests.Request]:
    async with engine.database.read() as conn:
        return {each.tool_call_id: each for each in await requests.of_run(conn, run.id)}


async def tamper(engine: Stack, request: requests.Request, **values: Any) -> None:
    """Change the inbox without the workflow."""
    async with engine.database.write() as conn:
        await conn.execute(update(requests_table).where(requests_table.c.id == request.id).values(**values))


async def test_both_kinds_of_orphan_are_reported_and_left(client: Client, sqlite: Database, bench: Bench) -> None:
    """A live run without a workflow, an open workflow without a live run; a run that waits as it should is neither."""
    async with stack(client, sqlite, bench.pay, model=ListModel(pays("p"))) as engine:
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


async def test_the_inbox_is_rebuilt_from_the_workflows(client: Client, database: Database, bench: Bench) -> None:
    """Hidden requests reappear, stale ones are closed as their run closed them, and nothing is decided.

    A recorded decision that the run never got is sent to it. Without --fix, nothing changes.
    """
    model = ListModel(pays("old"), pays("hidden", "told", "refused", "open"), DONE)
    async with stack(client, database, bench.pay, model=model) as engine:
        run = await engine.start()
        old = await engine.request(run)
        await engine.decide(old, "approve")
        await engine.request(run)
        by_id = await by_call(engine, run)
        await engine.decide(by_id["refused"], "reject", decision_id="no", message="too much")
        assert await off(engine, run) == []

        await tamper(engine, old, **UNDECIDED)
        await tamper(engine, by_id["refused"], **UNDECIDED)
        await tamper(engine, by_id["hidden"], status="cancelled", decided_at=as_text(now()))
        decided = {"status": "approved", "decision_id": "yes", "verb": "approve", "decided_by": "ann"}
        await tamper(engine, by_id["told"], **decided, decided_at=as_text(now()))
        differ = {
            ("unknown_to_run", old.id),
            ("closed_in_run", by_id["refused"].id),
            ("closed_in_inbox", by_id["hidden"].id),
            ("closed_in_inbox", by_id["told"].id),
        }
        for fix in (False, True):
            findings = await off(engine, run, fix=fix)
            assert kinds(findings) == {(kind, request_id, fix) for kind, request_id in differ}
        await engine.event(run, "execution.started")
        assert await off(engine, run) == []

        rebuilt = await by_call(engine, run)
        assert {name: each.status for name, each in rebuilt.items()} == {
            "old": "cancelled",
            "hidden": "pending",
            "told": "approved",
            "refused": "rejected",
            "open": "pending",
        }
        assert (rebuilt["refused"].decision_id, rebuilt["refused"].decided_by) == ("no", "operator")
        payloads = [each.payload for each in await engine.events(run) if each.type == "request.rebuilt"]
        assert {(each["request_id"], each["by"]) for each in payloads} == {
            (by_id[name].id if name != "old" else old.id, ME) for name in ("old", "hidden", "refused")
        }
        for name in ("hidden", "open"):
            await engine.decide(rebuilt[name], "approve")
        assert (await engine.ended(run)).status == "completed"
        assert sorted(bench.paid) == [1, 1, 2, 4]
        refused = (await engine.results(run))["refused"]
        assert isinstance(refused, Failure)
        assert refused.kind == "rejected"
        async with database.read() as conn:
            assert await events.chain_break(conn, run.id) is None


async def test_what_may_be_on_its_way_is_reported_and_not_fixed(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of an open call that its run does not know stays: its worker may be lost, and another may come.

    A workflow for which no worker answers is reported, and nothing of it is changed.
    """
    monkeypatch.setattr(recovery, "QUERY_WAIT", timedelta(seconds=0.5))
    async with stack(client, sqlite, bench.pay, model=ListModel(pays("p")), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            async with sqlite.write() as conn:
                row = {**vars(request), "id": "rq_new"}
                await requests.insert_all(conn, [requests.Request(**row)])
            assert kinds(await off(engine, run, fix=True)) == {("unknown_to_run", "rq_new", False)}
        assert kinds(await off(engine, run, fix=True)) == {("not_asked", None, False)}


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
