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
from support.engine.stack import ListModel, Script, call, says, stack, until, with_short_tasks
from support.engine.tools import Amount, Bench
from support.project.alerts import (
    MOVED_BY,
    OF_LOAD,
    ROOT,
    after_fault,
    alerts,
    firing,
    first_firing,
    of_load,
    require_moved,
)
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

HOLDER = ROOT / "tests" / "support" / "stores" / "lock_holder.py"


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again for each scrape."""
    monkeypatch.setattr(scraped, "FRESH_SECONDS", 0.0)


def proves(*names: str) -> Callable[[Test], Test]:
    """Name the alerts that a test proves, for the test that all are proven."""
    PROVEN.update(names)
    return lambda test: test


@proves(
    "TurngateSlotsUsedUp", "TurngateCallUnknown", "TurngateRequestsWait",
    "TurngateNoWorker", "TurngateTasksWait", "TurngateRunsSilent",
)  # fmt: skip
async def test_a_worker_is_full_then_lost_then_no_one_takes_its_place(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes the only place; its worker is lost, so no one knows whether it took effect; then no worker is there."""
    model = ListModel(says(call("slow", "{}")), says("Done."))
    async with metered(client, sqlite) as (own, port), stack(
        own, sqlite, bench.slow, model=model, working=False
    ) as engine:  # fmt: skip
        async with engine.worker(tool_calls_at_once=1, graceful_shutdown_seconds=0):

            async def look() -> task_queues.QueueLook:
                return await task_queues.look_at_queue(own, engine.task_queue, wait=timedelta(seconds=10))

            async def polls() -> bool:
                return bool((await look()).present(now()))

            await until(polls, "worker that polls")
            quiet = of_queue(await port.scrape(), engine.task_queue)
            run = await engine.start()
            await bench.started.wait()
            full = of_queue(await port.scrape(), engine.task_queue)
            assert firing(quiet, full) == {"TurngateSlotsUsedUp"}
            await engine.hurry(run)
        quiet = without_sdk(quiet)
        async with engine.worker():
            question = await engine.request(run, kind="outcome")
        unknown = without_sdk(await port.scrape())
        fired = after_fault(first_firing(quiet, unknown, minutes=FOUR_HOURS + 10))
        assert {"TurngateCallUnknown": 5, "TurngateRequestsWait": FOUR_HOURS + 5}.items() <= fired.items()
        assert set(fired) <= {"TurngateCallUnknown", "TurngateRequestsWait", "TurngateNoWorker"}
        await engine.decide(question, "respond", outcome="tell_model")

        async def waits() -> bool:
            queue = await look()
            return bool(queue.waiting) and not queue.present(now())

        monkeypatch.setattr(task_queues, "POLL_LASTS", timedelta(seconds=1))  # a worker that is gone is listed for 70 s
        await until(waits, "task that waits for a worker")
        gone = without_sdk(await port.scrape())
        # One minute and thirty of them without progress, and how long each has to be so.
        wanted = {"TurngateNoWorker": 2, "TurngateTasksWait": 1 + 2, "TurngateRunsSilent": 30 + 5}
        assert wanted.items() <= after_fault(first_firing(quiet, gone)).items()
        require_moved("TurngateTasksWait", quiet, gone)
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
        stack(with_short_tasks(own), sqlite, bench.pay, model=model, working=False) as engine,
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
        require_moved("TurngateWorkflowFails", before, after)
        assert "TurngateWorkflowFails" in firing(before, after)
        async with engine.worker():
            await engine.ended(run)


def of_queue(scrape: Scrape, task_queue: str) -> Scrape:
    """Without what the SDK still shows of workers of other tests in this process."""
    names = {("task_queue", f"{task_queue}{lane}") for lane in ("", ".models", ".records")}
    mine = {key: value for key, value in scrape.samples.items() if not key[0].startswith("temporal_") or key[1] & names}
    return Scrape(scrape.text, mine)


@proves("TurngateToolFails", "TurngateRunsFail", "TurngateModelFails")
async def test_a_tool_and_a_model_fail(client: Client, sqlite: Database) -> None:
    """Every call of the tool raises; then the model's provider refuses every request, so the runs fail."""

    @tool(effect="read", ask=False)
    async def broken(params: Amount) -> str:
        """Fail."""
        raise ValueError(params.cents)

    failing = says(*(call("broken", json.dumps({"cents": n}), f"c{n}") for n in range(FAILING_RUNS)))
    refused = ModelError("no such model", error_class="not_found", retryable=False)
    model = ListModel(says("Done."), failing, says("Done."), refused)
    async with metered(client, sqlite) as (own, port), stack(own, sqlite, broken, model=model) as engine:
        assert sqlite.meter is not None
        sqlite.meter.expect(tools=["broken"])  # as `turngate worker` does
        await engine.ended(await engine.start())
        before = of_queue(await port.scrape(), engine.task_queue)
        await engine.ended(await engine.start())
        tool_failed = of_queue(await port.scrape(), engine.task_queue)
        assert firing(before, tool_failed) == {"TurngateToolFails"}
        for _ in range(FAILING_RUNS):
            assert (await engine.ended(await engine.start())).status == "failed"
        runs_failed = of_queue(await port.scrape(), engine.task_queue)
        assert firing(tool_failed, runs_failed) == {"TurngateRunsFail", "TurngateModelFails"}


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

            async def is_late() -> Scrape | None:
                scrape = of_queue(await port.scrape(), engine.task_queue)
                return scrape if scrape.total("turngate_outbox_oldest_seconds") else None

            late = await until(is_late, "message that is late")
            assert after_fault(first_firing(before, late)) == {"TurngateOutboxLate": 10 + 5}
            receiver.answer = answer(410)
            await engine.request(await engine.start())

            async def given_up() -> Scrape | None:
                scrape = of_queue(await port.scrape(), engine.task_queue)
                return scrape if scrape.total("turngate_outbox_failed", channel="ops") else None

            failed = await until(given_up, "message that was given up")
            # The first message is tried again within minutes, and given up then, too.
            assert set(after_fault(first_firing(before, failed, minutes=10))) == {"TurngateOutboxFailed"}
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@proves("TurngateRetentionLate", "TurngateHoldForgotten")
async def test_the_retention_file_has_a_mistake_and_a_hold_is_half_a_year_old(
    client: Client, sqlite: Database, tmp_path: Path
) -> None:
    """The rules were applied once; then someone edits the file, and an API cannot read it any more.

    Nine minutes before the hold is half a year old, nothing fires; the alert waits five minutes for someone to remove it.
    """
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
            async with sqlite.write() as conn:
                hold = await erasures.add_hold(conn, kind="agent", target="clerk", reason="a lawsuit", by="ada")
                almost = as_text(now() - timedelta(days=180) + timedelta(minutes=9))
                await conn.execute(update(holds_table).where(holds_table.c.id == hold.id).values(created_at=almost))

            async def is_late() -> Scrape | None:
                scrape = without_sdk(await port.scrape())
                return scrape if scrape.total("turngate_retention_late_seconds") > 0 else None

            after = await until(is_late, "rules that are late")
            fired = after_fault(first_firing(before, after, minutes=SIX_HOURS + 10))
            assert abs(fired.pop("TurngateRetentionLate") - (SIX_HOURS + 5)) <= 1
            assert abs(fired.pop("TurngateHoldForgotten") - (9 + 5)) <= 1
            assert fired == {}
            require_moved("TurngateRetentionLate", before, after)
    finally:
        applying.cancel()
        await asyncio.gather(applying, return_exceptions=True)


def without_sdk(scrape: Scrape) -> Scrape:
    return Scrape(
        scrape.text, {key: value for key, value in scrape.samples.items() if not key[0].startswith("temporal_")}
    )


@proves("TurngateStoreSlow", "TurngateEventLoopStalled", "TurngateEventsLate", "TurngateTemporalDown")
async def test_the_store_is_locked_then_the_event_loop_stalls_then_temporal_stops(
    sqlite: Database, tmp_path: Path
) -> None:
    """Another process holds the store's lock; code doesn't give way, so events are shown late; Temporal ends as by kill."""
    async with contextlib.AsyncExitStack() as parts:
        server = await parts.enter_async_context(EmbeddedTemporal(tmp_path, lasting=False))
        client = await Client.connect(server.address, data_converter=data_converter())
        _own, port = await parts.enter_async_context(metered(client, sqlite))
        async with sqlite.write() as conn:
            await messages.create_conversation(conn, "first")
        before = without_sdk(await port.scrape())
        await write_behind_a_lock(sqlite)
        slow = without_sdk(await port.scrape())
        assert "TurngateStoreSlow" in of_load(before, slow)
        during = await stall(sqlite, port)
        assert "TurngateEventLoopStalled" in of_load(slow, during)
        late = without_sdk(await port.scrape())
        assert "TurngateEventsLate" in of_load(slow, late)
        await server.stop()

        async def away() -> Scrape | None:
            scrape = without_sdk(await port.scrape())
            return scrape if not scrape.total("turngate_temporal_up") else None

        after = await until(away, "scrape without Temporal")
        assert firing(late, after) == {"TurngateTemporalDown"}
        require_moved("TurngateTemporalDown", late, after)


async def write_behind_a_lock(sqlite: Database) -> None:
    """Write a row while another process holds the lock for most of a second."""
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


async def stall(sqlite: Database, port: Port) -> Scrape:
    """Hold the event loop, with an event on its way to someone who watches; return a scrape of that time."""
    feed = EventFeed(sqlite)
    follow = feed.follow(0)
    watching = asyncio.create_task(anext(follow))
    await asyncio.sleep(0.3)
    with ThreadPoolExecutor(1) as scraper:
        async with sqlite.write() as conn:
            await events.append(conn, events.SYSTEM, [("policy.changed", {})])
            answered = scraper.submit(get, port.number)
            # The fault. It comes before the commit, so that watchers see the event only after it.
            time.sleep(2.2)  # noqa: ASYNC251
        await watching
        _status, text = await asyncio.wrap_future(answered)
    await follow.aclose()
    await feed.close()
    return without_sdk(Scrape.of(text))


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
            assert firing(before, after) == {"TurngateStoreDown"}
            require_moved("TurngateStoreDown", before, after)
        await database.close()


@proves("TurngateDiskLow", "TurngateProcessDown")
async def test_a_disk_is_nearly_full_and_a_process_is_gone(client: Client, sqlite: Database) -> None:
    """A store on a disk of 64 MiB (a tmpfs of bubblewrap's); then no one answers the scraper."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "bubblewrap is not installed; run scripts/system-packages"
    command = [bwrap, "--dev-bind", "/", "/", "--size", str(64 * 1024**2), "--tmpfs", "/mnt", "--die-with-parent"]
    process = await asyncio.create_subprocess_exec(
        *command, "sh", "-c", "echo $$; exec cat", stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        disk = Path(f"/proc/{int(await process.stdout.readline())}/root/mnt")
        async with metered(client, sqlite, disk=disk) as (_own, port):
            low = without_sdk(await port.scrape())
        assert 0 < low.total("turngate_disk_free_bytes") <= 64 * 1024**2
    finally:
        process.kill()
        await process.wait()
    with pytest.raises(OSError):  # noqa: PT011 - refused, reset, or without an answer
        await port.scrape()
    assert set(first_firing(low, None)) - OF_LOAD == {"TurngateDiskLow", "TurngateProcessDown"}


def test_every_alert_is_proven() -> None:
    """Each alert of the file has its fault in this module, and there is no fault for an alert that is gone."""
    assert set(alerts()) == PROVEN
    assert set(MOVED_BY.values()) <= PROVEN
