"""Each alert is proven: its fault is caused on real parts, and Prometheus' own evaluation of the scrapes says that it fires."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import update
from support.engine.changed_turn import ChangedTurn
from support.engine.stack import ListModel, Script, call, says, stack, until
from support.engine.tools import Amount, Bench
from support.project.alerts import MOVED_BY, OF_LOAD, ROOT, alerts, firing, first_firing, of_load, require_moved
from support.project.scrapes import Port, Scrape, get, metered
from support.servers.notification_receivers import answer, receiving, webhook_channel
from support.stores.postgres_server import running_cluster
from temporalio.client import Client

from turngate import tool
from turngate import worker as composition
from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.events.notifier import keep_notifying
from turngate.approvals_api.gateway import task_queues
from turngate.approvals_api.retention.apply import keep_retention
from turngate.approvals_api.settings import RetentionSettings
from turngate.domain.errors import ModelError
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.metrics import scraped
from turngate.runtime.temporal_client import data_converter
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.retention import erasures
from turngate.store.runs import messages
from turngate.store.tables import holds as holds_table

Test = TypeVar("Test")
PROVEN: set[str] = set()
"""Filled as the tests of this module are collected."""
FAILING_RUNS = 5
FOUR_HOURS = 240
SIX_HOURS = 360
"""In minutes."""

SMALL_DISK = ROOT / "tests" / "support" / "programs" / "small_disk.py"
HOLDER = ROOT / "tests" / "support" / "stores" / "lock_holder.py"


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again for each scrape."""
    monkeypatch.setattr(scraped, "FRESH_SECONDS", 0.0)


def proves(*names: str) -> Callable[[Test], Test]:
    """Name the alerts that a test proves, for the test that all are proven."""
    PROVEN.update(names)
    return lambda test: test


@proves("TurngateNoWorker", "TurngateTasksWait", "TurngateRunsSilent")
async def test_the_only_worker_is_gone(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker stops while a run waits for a person; the decision makes a task that no one takes."""
    monkeypatch.setattr(task_queues, "POLL_LASTS", timedelta(seconds=1))  # a killed worker is listed for 70 s
    model = ListModel(says(call("pay", '{"cents": 5}')), says("Done."))
    async with (
        metered(client, sqlite) as (own, port),
        stack(own, sqlite, bench.pay, model=model, working=False) as engine,
    ):
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            before = await port.scrape()
        await engine.decide(request, "approve")

        async def waited() -> Scrape | None:
            scrape = await port.scrape()
            seconds = scrape.total("turngate_task_queue_oldest_task_seconds", task_queue=engine.task_queue)
            return scrape if seconds > 1 else None

        after = await until(waited, "task that waits")  # the one who had the run in memory is asked first, for 2 s
        assert firing(before, before) == set()
        # One minute and thirty of them without progress, and how long each has to be so.
        fired = {"TurngateNoWorker": 2, "TurngateTasksWait": 1 + 2, "TurngateRunsSilent": 30 + 5}
        assert fired.items() <= first_firing(before, after).items()
        require_moved("TurngateTasksWait", before, after)
        async with engine.worker():
            await engine.ended(run)


@proves("TurngateWorkflowFails")
async def test_a_release_cannot_continue_a_run(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with changed workflow code gets a run that waits, and its task fails again and again."""
    model = ListModel(says(call("pay", '{"cents": 5}')), says("Done."))
    async with (
        metered(client, sqlite) as (own, port),
        stack(own, sqlite, bench.pay, model=model, working=False) as engine,
    ):
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
            before = await port.scrape()
        with monkeypatch.context() as deployed:
            deployed.setattr(composition, "AgentTurn", ChangedTurn)
            changed = engine.worker()
        async with changed:
            await engine.decide(request, "approve")

            async def failed() -> Scrape | None:
                scrape = await port.scrape()
                return scrape if scrape.total("temporal_workflow_task_execution_failed_total") > 0 else None

            after = await until(failed, "workflow task that fails")
        assert "TurngateWorkflowFails" not in firing(before, before)
        require_moved("TurngateWorkflowFails", before, after)
        assert "TurngateWorkflowFails" in firing(before, after)
        async with engine.worker():
            await engine.ended(run)


@proves("TurngateSlotsUsedUp")
async def test_every_slot_is_taken(client: Client, sqlite: Database, bench: Bench) -> None:
    """A worker with one place for tool calls runs one that doesn't end."""
    model = ListModel(says(call("slow", "{}")), says("Done."))
    async with (
        metered(client, sqlite) as (own, port),
        stack(own, sqlite, bench.slow, model=model, working=False) as engine,
        engine.worker(tool_calls_at_once=1),
    ):
        before = of_queue(await port.scrape(), engine.task_queue)
        run = await engine.start()
        await bench.started.wait()
        assert firing(before, before) == set()
        assert firing(before, of_queue(await port.scrape(), engine.task_queue)) == {"TurngateSlotsUsedUp"}
        bench.release.set()
        await engine.ended(run)


def of_queue(scrape: Scrape, task_queue: str) -> Scrape:
    """Without what the SDK still shows of workers of other tests in this process."""
    names = {("task_queue", f"{task_queue}{lane}") for lane in ("", ".models", ".records")}
    mine = {key: value for key, value in scrape.samples.items() if not key[0].startswith("temporal_") or key[1] & names}
    return Scrape(scrape.text, mine)


@proves("TurngateCallUnknown", "TurngateRequestsWait")
async def test_a_worker_is_lost_while_a_once_call_runs(client: Client, sqlite: Database, bench: Bench) -> None:
    """No one knows whether the call took effect, and no one has answered the question."""
    model = ListModel(says(call("slow", "{}")), says("Done."))
    async with (
        metered(client, sqlite) as (own, port),
        stack(own, sqlite, bench.slow, model=model, working=False) as engine,
    ):
        before = await port.scrape()
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await bench.started.wait()
        async with engine.worker():
            question = await engine.request(run, kind="outcome")
            after = of_queue(await port.scrape(), engine.task_queue)
            fired = first_firing(of_queue(before, engine.task_queue), after, minutes=FOUR_HOURS + 10)
            assert {"TurngateCallUnknown": 5, "TurngateRequestsWait": FOUR_HOURS + 5}.items() <= fired.items()
            assert set(fired) - OF_LOAD <= {"TurngateCallUnknown", "TurngateRequestsWait", "TurngateNoWorker"}
            await engine.decide(question, "respond", outcome="tell_model")
            await engine.ended(run)


@proves("TurngateRunsFail", "TurngateModelFails")
async def test_a_model_fails(client: Client, sqlite: Database, bench: Bench) -> None:
    """Its provider refuses every request, so the runs fail."""
    refused = ModelError("no such model", error_class="not_found", retryable=False)
    model = ListModel(says("Done."), refused)
    async with metered(client, sqlite) as (own, port), stack(own, sqlite, bench.look, model=model) as engine:
        await engine.ended(await engine.start())
        before = of_queue(await port.scrape(), engine.task_queue)
        for _ in range(FAILING_RUNS):
            assert (await engine.ended(await engine.start())).status == "failed"
        assert firing(before, before) == set()
        after = of_queue(await port.scrape(), engine.task_queue)
        assert firing(before, after) == {"TurngateRunsFail", "TurngateModelFails"}


@proves("TurngateToolFails")
async def test_a_tool_fails(client: Client, sqlite: Database) -> None:
    """Every call of it raises."""

    @tool(effect="read", ask=False)
    async def broken(params: Amount) -> str:
        """Fail."""
        raise ValueError(params.cents)

    failing = says(*(call("broken", json.dumps({"cents": n}), f"c{n}") for n in range(FAILING_RUNS)))
    async with metered(client, sqlite) as (own, port), stack(
        own, sqlite, broken, model=Script(failing, says("Done."))
    ) as engine:  # fmt: skip
        assert sqlite.meter is not None
        sqlite.meter.expect(tools=["broken"])  # as `turngate worker` does
        before = of_queue(await port.scrape(), engine.task_queue)
        await engine.ended(await engine.start())
        assert firing(before, of_queue(await port.scrape(), engine.task_queue)) == {"TurngateToolFails"}


@proves("TurngateOutboxLate", "TurngateOutboxFailed")
async def test_a_receiver_is_down(client: Client, sqlite: Database, bench: Bench) -> None:
    """It answers 500, so messages are tried again and again; later 410, so they are given up."""
    model = Script(says(call("pay", '{"cents": 5}')), says("Done."))
    async with receiving() as receiver, contextlib.AsyncExitStack() as parts:
        receiver.answer = answer(500)
        own, port = await parts.enter_async_context(metered(client, sqlite, channels=["ops"]))
        engine = await parts.enter_async_context(stack(own, sqlite, bench.pay, model=model))
        channels = (webhook_channel(receiver),)
        sending = asyncio.create_task(keep_notifying(sqlite, engine.services.feed, channels))
        try:
            before = of_queue(await port.scrape(), engine.task_queue)
            await engine.request(await engine.start())
            await receiver.got(1)
            await asyncio.sleep(0.3)
            late = of_queue(await port.scrape(), engine.task_queue)
            assert firing(before, late) == {"TurngateOutboxLate"}
            assert first_firing(before, late)["TurngateOutboxLate"] == 10 + 5
            receiver.answer = answer(410)
            await engine.request(await engine.start())

            async def given_up() -> Scrape | None:
                scrape = of_queue(await port.scrape(), engine.task_queue)
                return scrape if scrape.total("turngate_outbox_failed", channel="ops") else None

            failed = await until(given_up, "message that was given up")
            # The first message is tried again within minutes, and given up then, too.
            assert set(first_firing(before, failed, minutes=10)) - OF_LOAD == {"TurngateOutboxFailed"}
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@proves("TurngateRetentionLate")
async def test_the_retention_file_has_a_mistake(client: Client, sqlite: Database, tmp_path: Path) -> None:
    """The rules were applied once; then someone edits the file, and an API cannot read it any more."""
    file, every = tmp_path / "retention.toml", timedelta(milliseconds=200)
    file.write_text('[[rule]]\nname = "all"\nkind = "conversations"\nkeep = "90d"\n')
    applying = asyncio.create_task(keep_retention(sqlite, RetentionSettings(file=file, every=every), hold_for=every))
    try:
        async with metered(client, sqlite, retention_every=every) as (_own, port):

            async def applied() -> Scrape | None:
                scrape = without_sdk(await port.scrape())
                return scrape if "turngate_retention_erased{" in scrape.text else None

            before = await until(applied, "rules that were applied")
            file.write_text("[[rule]]\nname = 90\n")

            async def is_late() -> Scrape | None:
                scrape = without_sdk(await port.scrape())
                return scrape if scrape.total("turngate_retention_late_seconds") > 1 else None

            after = await until(is_late, "rules that are late")
            fired = first_firing(before, after, minutes=SIX_HOURS + 10)
            assert abs(fired.pop("TurngateRetentionLate") - (SIX_HOURS + 5)) <= 1
            assert set(fired) <= OF_LOAD
            require_moved("TurngateRetentionLate", before, after)
    finally:
        applying.cancel()
        await asyncio.gather(applying, return_exceptions=True)


@proves("TurngateHoldForgotten")
async def test_a_hold_is_half_a_year_old(client: Client, sqlite: Database) -> None:
    """Nine minutes before it is, nothing fires; the alert waits five minutes for someone to remove it."""
    async with metered(client, sqlite) as (_own, port):
        before = without_sdk(await port.scrape())
        async with sqlite.write() as conn:
            hold = await erasures.add_hold(conn, kind="agent", target="clerk", reason="a lawsuit", by="ada")
            almost = as_text(now() - timedelta(days=180) + timedelta(minutes=9))
            await conn.execute(update(holds_table).where(holds_table.c.id == hold.id).values(created_at=almost))
        after = without_sdk(await port.scrape())
        fired = first_firing(before, after, minutes=20)
        assert abs(fired.pop("TurngateHoldForgotten") - (9 + 5)) <= 1
        assert set(fired) <= OF_LOAD


@proves("TurngateEventLoopStalled", "TurngateEventsLate")
async def test_code_holds_the_event_loop(client: Client, sqlite: Database) -> None:
    """Code that waits without giving way keeps everyone waiting; what happened before is shown late."""
    feed = EventFeed(sqlite)
    async with metered(client, sqlite) as (_own, port):
        follow = feed.follow(0)
        watching = asyncio.create_task(anext(follow))
        await asyncio.sleep(0.3)
        before = without_sdk(await port.scrape())
        assert firing(before, before) == set()
        with ThreadPoolExecutor(1) as scraper:
            async with sqlite.write() as conn:
                await events.append(conn, events.SYSTEM, [("policy.changed", {})])
                answered = scraper.submit(get, port.number)
                # The fault. It comes before the commit, so that watchers see the event only after it.
                time.sleep(2.6)  # noqa: ASYNC251
            await watching
            _status, text = await asyncio.wrap_future(answered)
        assert "TurngateEventLoopStalled" in of_load(before, without_sdk(Scrape.of(text)))
        assert "TurngateEventsLate" in of_load(before, without_sdk(await port.scrape()))
        await follow.aclose()
        await feed.close()


@proves("TurngateStoreSlow")
async def test_another_process_holds_the_stores_lock(client: Client, sqlite: Database) -> None:
    """Each transaction that writes waits for it."""
    async with metered(client, sqlite) as (_own, port):
        async with sqlite.write() as conn:
            await messages.create_conversation(conn, "first")
        before = without_sdk(await port.scrape())
        path = sqlite.url.partition(":///")[2]
        holder = await asyncio.create_subprocess_exec(
            sys.executable, str(HOLDER), "hold", path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        await holder.stdout.readline()

        async def write() -> None:
            async with sqlite.write() as conn:
                await messages.create_conversation(conn, "second")

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.8)
        await holder.communicate(b"\n")
        await writing
        assert firing(before, before) == set()
        assert "TurngateStoreSlow" in of_load(before, without_sdk(await port.scrape()))


def without_sdk(scrape: Scrape) -> Scrape:
    return Scrape(
        scrape.text, {key: value for key, value in scrape.samples.items() if not key[0].startswith("temporal_")}
    )


@proves("TurngateTemporalDown")
async def test_temporal_stops(sqlite: Database, tmp_path: Path) -> None:
    """Its server ends, as by kill or a power cut."""
    async with contextlib.AsyncExitStack() as parts:
        server = await parts.enter_async_context(EmbeddedTemporal(tmp_path, lasting=False))
        client = await Client.connect(server.address, data_converter=data_converter())
        _own, port = await parts.enter_async_context(metered(client, sqlite))
        before = without_sdk(await port.scrape())
        await server.stop()

        async def away() -> Scrape | None:
            scrape = without_sdk(await port.scrape())
            return scrape if not scrape.total("turngate_temporal_up") else None

        assert firing(before, before) == set()
        after = await until(away, "scrape without Temporal")
        assert firing(before, after) == {"TurngateTemporalDown"}
        require_moved("TurngateTemporalDown", before, after)


@pytest.mark.exhaustive
@proves("TurngateStoreDown")
async def test_the_database_server_stops(client: Client) -> None:
    """PostgreSQL ends."""
    with running_cluster() as cluster:
        database = Database(cluster.server.fresh_url())
        await database.migrate()
        async with metered(client, database) as (_own, port):
            before = without_sdk(await port.scrape())
            cluster.close()
            await port.scrape()  # a failure is counted after what the scrape shows of counters
            after = without_sdk(await port.scrape())
            assert firing(before, before) == set()
            assert firing(before, after) == {"TurngateStoreDown"}
            require_moved("TurngateStoreDown", before, after)
        await database.close()


@proves("TurngateDiskLow", "TurngateProcessDown")
async def test_a_disk_is_nearly_full_and_a_process_is_killed() -> None:
    """A process whose store is on a disk of 64 MiB (a tmpfs of bubblewrap's); then it is killed."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "bubblewrap is not installed; run scripts/system-packages"
    command = [bwrap, "--dev-bind", "/", "/", "--size", str(64 * 1024**2), "--tmpfs", "/mnt", "--die-with-parent"]
    process = await asyncio.create_subprocess_exec(
        *command, sys.executable, str(SMALL_DISK), "/mnt", stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = Port(int(await process.stdout.readline()))
        low = await port.scrape()
        assert 0 < low.total("turngate_disk_free_bytes") <= 64 * 1024**2
        assert firing(low, low) == {"TurngateDiskLow"}
    finally:
        process.kill()
        await process.wait()
    gone: Scrape | None = None
    with contextlib.suppress(OSError):
        gone = await port.scrape()
    assert gone is None
    assert "TurngateProcessDown" in firing(low, gone)


def test_every_alert_is_proven() -> None:
    """Each alert of the file has its fault in this module, and there is no fault for an alert that is gone."""
    assert set(alerts()) == PROVEN
    assert set(MOVED_BY.values()) <= PROVEN
