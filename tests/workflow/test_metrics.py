"""Metrics of a real engine: what runs, people and models do moves them, and a scraper reads them over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.engine.stack import Cast, ListModel, Stack, call, person, says, stack, until
from support.engine.tools import Bench
from support.project.alerts import MOVED_BY, ROOT, alerts, metrics_of
from support.project.dashboards import expressions
from support.project.scrapes import Port, Scrape, metered
from support.servers.notification_receivers import Receiver, answer, receiving, webhook_channel
from temporalio.client import Client

from turngate import ToolContext, tool
from turngate.approvals_api.events.notifier import keep_notifying
from turngate.approvals_api.policy import grants
from turngate.approvals_api.retention import apply, holds
from turngate.domain.conversation.messages import ModelResponse, Usage
from turngate.domain.errors import ModelError
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.retention import read_retention
from turngate.domain.runs.budgets import Price
from turngate.notifications.configuration import Channel
from turngate.notifications.outbox_reader import OutboxReader
from turngate.runtime.metrics import scraped
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import deliveries
from turngate.wire.orders import GrantOrder

RULES = '[[rule]]\nname = "all"\nkind = "conversations"\nkeep = "90d"\n'
HOSTILE = 'pay"} 1\n# HELP x\nfake{a="\ud800'


@tool(effect="read", ask=False)
async def broken(ctx: ToolContext) -> str:
    """Fail."""
    raise ValueError("no")


@dataclass
class Story:
    """What a scraper saw: of the first run; when its messages were refused; and after what went wrong then."""

    before: Scrape
    waiting: Scrape
    after: Scrape
    refused: Scrape
    end: Scrape

    @property
    def moved(self) -> set[str]:
        """The names whose series differ between any two scrapes."""
        scrapes = [self.before, self.waiting, self.after, self.refused, self.end]
        return {name for one, other in itertools.pairwise(scrapes) for name in one.moved(other)}


def paid_for(response: ModelResponse) -> ModelResponse:
    return response.model_copy(update={"usage": Usage(input_tokens=100, output_tokens=20)})


@pytest.fixture(scope="module")
async def story(client: Client, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A run with an approval, a rejection, a failure, a call of no tool and a model that fails once; then what goes wrong."""
    file = tmp_path_factory.mktemp("story") / "turngate.db"
    shutil.copy(sqlite_template, file)
    sqlite, bench = Database(f"sqlite:///{file}"), Bench()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scraped, "FRESH_SECONDS", 0.0)
        return await tell(client, sqlite, bench)


async def tell(client: Client, sqlite: Database, bench: Bench) -> Story:
    away = ModelError("slow down", error_class="rate_limited", retryable=True, retry_after_seconds=0.05)
    gone = ModelError("no such model", error_class="not_found", retryable=False)
    own = ListModel(
        away,
        paid_for(says(call("pay", '{"cents": 1}', "a"), call("pay", '{"cents": 2}', "b"), call(HOSTILE, "{}", "c"))),
        paid_for(says(call("look", '{"name": "x"}', "d"), call("broken", "{}", "e"))),
        paid_for(says("Done.")),
        gone,
    )
    others = ListModel(says(call("pay", '{"cents": 3}', "f"), call("slow", "{}", "g")), says("Done."), gone)
    prices = {"scripted:test": Price(input="1000", output="5000")}
    tools = (bench.pay, bench.look, bench.slow, broken)
    models, options = Cast(test=own, other=others), {"prices": prices, "fallback": ["scripted:other"]}
    async with (
        metered(client, sqlite, disk=Path.cwd(), channels=["ops"]) as (counted, port),
        stack(counted, sqlite, *tools, model=models, working=False, **options) as engine,
        receiving() as receiver,
    ):
        channels = (webhook_channel(receiver, events=("request.opened",)),)
        async with sqlite.write() as conn:
            await deliveries.begin(conn, "ops", 0)
        before = await port.scrape()
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            first = await engine.request(run)
            waiting = await port.scrape()
            await OutboxReader(sqlite, channels).read()
            await engine.decide(first, "approve" if '"cents": 1' in first.input else "reject")
            second = await engine.request(run)
            await engine.decide(second, "approve" if '"cents": 1' in second.input else "reject")
            await engine.ended(run)
            after = await port.scrape()
            async with notifying(engine, receiver, channels, port) as refused:
                pay = WantedGrant(pattern=GrantPattern(tool="pay", open=["cents"]), scope="everyone", max_uses=1)
                await grants.create(engine.services, person("ada", "admin"), GrantOrder(grant=pay))
                run = await engine.start()
                await bench.started.wait()
        async with engine.worker():
            question = await engine.request(run, kind="outcome")
            await engine.decide(question, "respond", outcome="tell_model")
            await engine.ended(run)
            assert (await engine.ended(await engine.start())).status == "failed"
            await holds.add(sqlite, run.id, reason="a lawsuit", by="ada")
            await apply.run(sqlite, read_retention(RULES), now(), by="ada")
            return Story(before, waiting, after, refused, await port.scrape())


@asynccontextmanager
async def notifying(
    engine: Stack, receiver: Receiver, channels: tuple[Channel, ...], port: Port
) -> AsyncIterator[Scrape]:
    """Send a channel its messages: the first one is refused for now, the next one for good. Yields what a scraper saw then."""
    receiver.answers = [answer(500), answer(410)]
    sending = asyncio.create_task(keep_notifying(engine.database, engine.services.feed, channels))

    async def refused() -> Scrape | None:
        scrape = await port.scrape()
        both = scrape.total("turngate_outbox_failed") and scrape.total("turngate_outbox_retrying")
        return scrape if both else None

    try:
        yield await until(refused, "messages that were refused")
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_run_moves_what_it_does(story: Story) -> None:
    """Requests, decisions, executions, asks avoided, models, tokens, cost and retries count exactly what happened."""
    waiting, after = story.waiting, story.after
    assert waiting.total("turngate_requests_pending", kind="approval", tool="pay", age="5m") == 2
    assert waiting.total("turngate_requests_oldest_pending_seconds", kind="approval") > 0
    assert waiting.total("turngate_runs_live", waits_for="person") == 1
    assert after.total("turngate_requests_pending") == after.total("turngate_runs_live") == 0

    assert after.total("turngate_requests_opened_total", kind="approval", tool="pay") == 2
    assert (
        after.total("turngate_decisions_total", verb="approve")
        == after.total("turngate_decisions_total", verb="reject")
        == 1
    )
    assert after.total("turngate_requests_ended_total", status="approved") == 1
    assert after.total("turngate_request_answer_seconds_count", kind="approval") == 2
    assert after.total("turngate_executions_started_total", tool="pay") == 1
    assert after.total("turngate_executions_finished_total", outcome="succeeded") == 2
    assert after.total("turngate_executions_finished_total", tool="broken", outcome="failed") == 1
    assert after.total("turngate_execution_failures_total", kind="execution_error") == 1
    assert after.total("turngate_calls_closed_total", kind="unknown_tool") == 1
    assert after.total("turngate_asks_avoided_total", by="tool") == 2
    assert (
        after.total("turngate_runs_started_total") == after.total("turngate_runs_ended_total", status="completed") == 1
    )

    assert after.total("turngate_model_requests_total", model="scripted:test", outcome="answered") == 3
    assert after.total("turngate_model_requests_total", model="scripted:test", outcome="failed") == 1
    assert after.total("turngate_model_request_seconds_count") == 4
    assert after.total("turngate_model_retries_total", error_class="rate_limited") == 1
    assert after.total("turngate_model_tokens_total", direction="input") == 300
    assert after.total("turngate_model_tokens_total", direction="output") == 60
    assert after.total("turngate_model_cost_total") == pytest.approx(0.6)

    assert after.total("turngate_store_transaction_seconds_count", kind="write") > 5
    assert after.total("turngate_store_up") == after.total("turngate_temporal_up") == 1
    assert after.total("turngate_disk_free_bytes") > 0
    assert after.total("turngate_events_stored") > story.before.total("turngate_events_stored")
    assert after.total("turngate_task_queue_workers") >= 1


async def test_the_sdk_shows_its_numbers_at_the_same_port(story: Story) -> None:
    """Queue latency and slots of Temporal's SDK are part of the same text, by Prometheus' names and units."""
    assert story.after.total("temporal_workflow_task_schedule_to_start_latency_seconds_count") > 0
    assert story.after.total("temporal_activity_schedule_to_start_latency_seconds_count") > 0
    assert "temporal_worker_task_slots_available" in story.after.names


async def test_a_hostile_name_of_a_tool_gets_no_series(story: Story) -> None:
    """A name with quotes, lines and half a surrogate is `other` or nothing: the text stays whole, and no label repeats it."""
    assert "fake" not in story.after.text
    assert all(value.isprintable() for _name, has in story.after.samples for _key, value in has)


async def test_ten_scrapers_read_the_store_once(
    client: Client, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapers at the same time, and those within the next seconds, share one look at the store."""
    monkeypatch.setattr(scraped, "FRESH_SECONDS", 60.0)  # on a busy machine, too
    async with metered(client, sqlite) as (_own, port):
        first = await port.scrape()
        scrapes = await asyncio.gather(*(port.scrape() for _ in range(10)))
        looks = {each.total("turngate_store_transaction_seconds_count", kind="glance") for each in scrapes}
        assert looks == {first.total("turngate_store_transaction_seconds_count", kind="glance") + 2}


CONSTANT = {"turngate_build_info"}


async def test_what_goes_wrong_counts(story: Story) -> None:
    """A change of the model, a grant, a lost worker, a run that fails, and messages that a receiver refuses."""
    refused, end = story.refused, story.end
    assert end.total("turngate_model_fallbacks_total", error_class="not_found") == 2
    assert end.total("turngate_asks_avoided_total", by="grant") == 1
    assert end.total("turngate_executions_finished_total", tool="slow", outcome="unknown") == 1
    assert end.total("turngate_run_failures_total", error_class="not_found") == 1
    assert story.waiting.total("turngate_outbox_unread_events", channel="ops") > 0
    assert story.after.total("turngate_outbox_due_seconds", channel="ops") > 0
    assert refused.total("turngate_outbox_retrying", channel="ops") == 1
    assert refused.total("turngate_outbox_failed", channel="ops") == 1
    assert end.total("turngate_event_delivery_seconds_count") > 0


async def test_every_metric_of_dashboard_and_alerts_exists_and_moves(story: Story) -> None:
    """Each name in an expression is in a real scrape, and this story moves it, or the fault of an alert in ``test_alerts.py``."""
    read = {name for each in expressions() for name in metrics_of(each)}
    read |= {name for alert in alerts().values() for name in alert.metrics}
    described = set(re.findall(r"^# TYPE (\w+) ", story.end.text, re.MULTILINE))
    counted_later = {
        name for name in MOVED_BY if name.startswith("temporal_")
    }  # the SDK shows nothing that it never counted
    exist = {*story.end.names, *described, *counted_later}
    assert {name for name in read if name not in exist and name.removesuffix("_bucket") not in exist} == set()
    assert read - story.moved - MOVED_BY.keys() - CONSTANT == set()


async def test_each_metric_of_ours_moves(story: Story) -> None:
    """Those that no expression reads, too."""
    kinds = dict(re.findall(r"^# TYPE (turngate_\w+) (\w+)", story.end.text, re.MULTILINE))
    ours = {f"{name}_count" if kind == "histogram" else name for name, kind in kinds.items()}
    assert ours - story.moved <= MOVED_BY.keys() | CONSTANT


async def test_the_documented_metrics_are_those_that_exist(story: Story) -> None:
    """The table in the how-to lists every metric of Turngate's with its labels' names, and no other."""
    text = (ROOT / "docs" / "howto" / "see-what-production-does.md").read_text()
    listed = set(re.findall(r"^\| `(turngate_\w+)", text, re.MULTILINE))
    assert listed == set(re.findall(r"^# TYPE (turngate_\w+) ", story.end.text, re.MULTILINE))
