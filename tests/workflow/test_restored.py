"""A drill: store and Temporal are backed up at different instants while agents work, both are lost, and both are restored."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel
from support.engine.stack import OPERATOR, Script, Stack, call, says, stack, until
from support.stores.postgres_server import PostgresServer
from temporalio.client import Client
from typer.testing import CliRunner

from turngate import ToolContext, tool
from turngate.approvals_api.recovery.restored import RestoredFinding
from turngate.approvals_api.runs import control
from turngate.cli.main import app
from turngate.domain.tools.tool import Tool
from turngate.models.port import ModelRequest, ModelResponse
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import calls, runs

Temporal = Literal["newer", "older", "lost"]


class Payment(BaseModel):
    order: str


class Ledger:
    """The world outside: a file with a line for each payment that took effect. No backup brings it back."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.touch()

    def tool(self) -> Tool:
        @tool(effect="once", ask=True)
        async def pay(params: Payment, ctx: ToolContext) -> dict[str, str]:
            """Pay an order."""
            with self.file.open("a") as lines:
                lines.write(f"{ctx.idempotency_key} {ctx.run_id} {params.order}\n")
            return {"paid": params.order}

        return pay

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.file.read_text().splitlines()]

    def times(self) -> Counter[str]:
        return Counter(order for _key, _run, order in self.lines())


def turngate(*words: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    outcome = CliRunner().invoke(app, words, env=env)
    assert outcome.exit_code == code, (outcome.output, outcome.stderr, outcome.exception)
    return " ".join((outcome.stdout + outcome.stderr).split())


class Drill:
    """A data directory, its Temporal server, its ledger, and runs that each pay two orders."""

    def __init__(self, home: Path, names: list[str], server: PostgresServer | None) -> None:
        self.home, self.data, self._server = home, home / "data", server
        self.data.mkdir(mode=0o700)
        self.url = f"sqlite:///{self.data}/turngate.db" if server is None else server.fresh_url()
        self.ledger = Ledger(home / "ledger")
        self.names = names
        self.address = "127.0.0.1:1"
        self.started: dict[str, runs.Run] = {}
        self.answered: list[tuple[str, str]] = []

    async def engine(self, at: AsyncExitStack) -> Stack:
        """A server, a store and a worker, until ``at`` is closed."""
        server = await at.enter_async_context(EmbeddedTemporal(self.data, lasting=False))
        self.address = server.address
        client = await Client.connect(server.address, data_converter=data_converter())
        database = Database(self.url)
        at.push_async_callback(database.close)
        await database.migrate()
        return await at.enter_async_context(
            stack(
                client, database, self.ledger.tool(), model=Script(a_payment, a_payment, says("Done.")), working=False
            )
        )

    async def turngate(self, *words: str, code: int = 0) -> str:
        """Type a command about this store."""
        environment = {
            "TURNGATE_DATABASE_URL": self.url.replace("+psycopg", ""),
            "TEMPORAL_ADDRESS": self.address,
        }
        return await asyncio.to_thread(turngate, *words, "--data-dir", str(self.data), code=code, env=environment)

    async def reconcile(self, *words: str, code: int) -> list[RestoredFinding]:
        """Type ``turngate reconcile --restored``, and return what it finds."""
        listed = await self.turngate("reconcile", "--restored", "--json", *words, code=code)
        return [RestoredFinding(**each) for each in json.loads(listed)]

    async def restore(self, backup: Path) -> str:
        """Restore the store: SQLite in place, which takes a word more; PostgreSQL into a new database."""
        message = await self.turngate("restore", str(backup), code=2)
        assert ("--replace" if self._server is None else "the database isn't empty") in message
        if self._server is None:
            return await self.turngate("restore", str(backup), "--replace", "--without-temporal")
        self.url = self._server.fresh_url()
        return await self.turngate("restore", str(backup))

    def copy_temporal(self) -> None:
        """Back up Temporal's own database, at another instant than the store's."""
        copy = self.home / "temporal-backup.db"
        source = f"file:{self.data}/temporal.db?mode=ro"
        with closing(sqlite3.connect(source, uri=True)) as live, closing(sqlite3.connect(copy)) as to:
            live.backup(to)

    def lose_temporal(self, temporal: Temporal) -> None:
        """Replace Temporal's database by its backup, or by nothing."""
        for file in self.data.glob("temporal.db*"):
            file.unlink()
        if temporal != "lost":
            shutil.move(self.home / "temporal-backup.db", self.data / "temporal.db")

    async def start(self, engine: Stack) -> None:
        """Start the runs; each waits for the approval of its first payment then."""
        for name in self.names:
            self.started[name] = await engine.start(name)
        for run in self.started.values():
            await engine.request(run)

    async def approve(self, engine: Stack, name: str) -> None:
        """Approve what a run waits for, and wait until it is paid."""
        paid = len(self.ledger.lines())
        await engine.decide(await engine.request(self.started[name], kind="approval"), "approve")
        await until(self._has(paid + 1), "a payment")

    def _has(self, count: int) -> Callable[[], Awaitable[bool | None]]:
        async def look() -> bool | None:
            return len(self.ledger.lines()) >= count or None

        return look

    async def unknown_payments(self, engine: Stack, run: runs.Run) -> set[str]:
        """What the world has of a run and the store doesn't: what a person finds who checks."""
        async with engine.database.read() as conn:
            known = {each.tool_call_id for each in await calls.of_run(conn, run.id)}
        return {order for _key, run_id, order in self.ledger.lines() if run_id == run.id} - known

    async def settle(self, engine: Stack) -> None:
        """Do what a person does with each held run: interrupt it if the world has payments of it that the store doesn't."""
        for run in (self.started[name] for name in self.names):
            if await self.unknown_payments(engine, run):
                await engine.interrupt(run, "the ledger has payments that the store doesn't know")
                assert (await engine.ended(run)).status == "interrupted"
            else:
                await control.resume(engine.services, OPERATOR, run.id)
                await self.work_on(engine, run)

    async def work_on(self, engine: Stack, run: runs.Run) -> None:
        """Answer what a resumed run asks until it ends: whether a call happened by the ledger, approvals with yes."""
        while True:
            pending = await until(self._next(engine, run), "a request or the end")
            if isinstance(pending, runs.Run):
                return
            if pending.kind == "approval":
                await engine.decide(pending, "approve")
            elif pending.tool_call_id in self.ledger.times():
                await engine.decide(pending, "respond", outcome="happened", args=json.dumps({"paid": "yes"}))
            else:
                await engine.decide(pending, "respond", outcome="did_not_happen")
            self.answered.append((pending.kind, pending.tool_call_id))

    def _next(self, engine: Stack, run: runs.Run) -> Callable[[], Awaitable[requests.Request | runs.Run | None]]:
        async def look() -> requests.Request | runs.Run | None:
            async with engine.database.read() as conn:
                stored, current = await requests.of_run(conn, run.id), await runs.get(conn, run.id)
            waiting = next((each for each in stored if each.status == "pending"), None)
            return waiting or (current if current is not None and current.status != "running" else None)

        return look


async def a_payment(request: ModelRequest) -> ModelResponse:
    """Pay the next order of the run, whichever worker asks."""
    task = next(message.text for message in request.messages if message.role == "user")
    order = f"{task}-{sum(message.role == 'assistant' for message in request.messages)}"
    return says("Paying.", call("pay", json.dumps({"order": order}), order))


@pytest.mark.parametrize(
    ("store", "temporal"),
    [
        ("sqlite", "newer"),
        pytest.param("postgresql", "newer", marks=pytest.mark.exhaustive),
        pytest.param("sqlite", "older", marks=pytest.mark.exhaustive),
        pytest.param("postgresql", "lost", marks=pytest.mark.exhaustive),
        pytest.param("sqlite", "lost", marks=pytest.mark.exhaustive),
    ],
)
async def test_i3_nothing_runs_twice_after_both_were_restored(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, temporal: Temporal
) -> None:
    """Store and Temporal come back from different instants, and what happened since is in the ledger alone.

    No payment takes effect twice, and none without an approval; each lost decision is asked again, or its run is reported.
    """
    server = request.getfixturevalue("postgres") if store == "postgresql" else None
    drill, backup = Drill(tmp_path, ["waits", "paid", "ends", "ahead"], server), tmp_path / "backup.tar"
    async with AsyncExitStack() as at:
        engine = await drill.engine(at)
        async with engine.worker():
            await drill.start(engine)
            await drill.approve(engine, "ends")
            await engine.request(drill.started["ends"])
            if temporal == "older":
                drill.copy_temporal()
                await drill.approve(engine, "paid")
            await drill.turngate("backup", str(backup))
            # What only the world remembers: decisions, payments, a run's end, a run's next step, and a new run.
            if temporal != "older":
                await drill.approve(engine, "paid")
            await drill.approve(engine, "ends")
            await drill.approve(engine, "ahead")
            await drill.approve(engine, "ahead")
            unknown = await engine.start("new")
            drill.started["new"] = unknown
            await drill.approve(engine, "new")
            if temporal == "newer":
                drill.copy_temporal()
    before = drill.ledger.times()
    assert "4 live run(s) are held" in await drill.restore(backup)
    drill.lose_temporal(temporal)
    async with AsyncExitStack() as at:
        engine = await drill.engine(at)
        # A worker is there before anyone has reconciled: the runs are held, so it starts nothing.
        async with engine.worker():
            looked = await drill.reconcile(code=1)
            unknown_workflow = {each for each in looked if each.kind == "workflow_of_no_run"}
            findings = await drill.reconcile("--fix", code=1 if unknown_workflow else 0)
            assert {each.run_id for each in findings} == {each.run_id for each in looked}
            assert {each.run_id for each in findings if each.kind == "held_run"} == {
                drill.started[name].id for name in drill.names
            }
            assert drill.ledger.times() == before
            await drill.settle(engine)
            times = drill.ledger.times()
            assert set(times.values()) == {1}
            assert set(times) == {*(f"{name}-{step}" for name in drill.names for step in (0, 1)), "new-0"}
            doubts = {each.tool_call_id for each in findings if each.kind == "doubtful_call"}
            outcomes = [call_id for kind, call_id in drill.answered if kind == "outcome"]
            assert len(outcomes) == len(set(outcomes))
            assert set(outcomes) == {each for each in doubts if each != "ahead-0"}
            if temporal == "newer":
                assert unknown.id in {each.run_id for each in findings if each.kind == "workflow_of_no_run"}
    assert "the log is intact" in await drill.turngate("audit", "verify")
