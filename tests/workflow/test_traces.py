"""Traces of real runs, as a collector receives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace
from sqlalchemy import update
from support.engine.stack import OPERATOR, STARTER, Cast, ListModel, Script, Stack, call, says, stack, until
from support.engine.tools import Bench
from support.servers.notification_receivers import receiving, webhook_channel
from support.servers.otlp_collector import Collector, Span, collecting
from temporalio.client import Client

from turngate import Agent, Toolkit, sub_agent, tool
from turngate.approvals_api.events.notifier import keep_notifying
from turngate.approvals_api.runs import fork
from turngate.domain.errors import ModelError
from turngate.domain.runs.trace import RunTrace, read_traceparent
from turngate.runtime.traces.current import CurrentSpans
from turngate.runtime.traces.export import keep_tracing, name_span
from turngate.runtime.traces.spans import TraceSampler, provider
from turngate.runtime.traces.switch import TraceSettings
from turngate.store.clock import from_text
from turngate.store.database import Database
from turngate.store.events import deliveries, events, traces
from turngate.store.runs import runs
from turngate.store.tables import trace_export
from turngate.wire.orders import ForkOrder

OUTSIDE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
DECIDED_IN = "00-11111111111111111111111111111111-2222222222222222-01"
PAY = says("Secret thoughts.", call("pay", '{"cents": 47110815}', "p"))
WAIT_SECONDS = 0.02
SOON = timedelta(milliseconds=50)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.endpoint)
        yield running


@asynccontextmanager
async def exporting(database: Database, *, all_of_it: bool = True, **settings: Any) -> AsyncIterator[None]:
    """Export what happens. ``all_of_it`` False: from now on, as where traces are switched on."""
    if all_of_it:
        async with database.write() as conn:
            await traces.begin(conn, 0)
    task = asyncio.create_task(keep_tracing(database, TraceSettings(every=SOON, **settings)))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def paid(engine: Stack, **options: Any) -> runs.Run:
    """A run that pays after a person has approved it."""
    run = await engine.start("Pay 47110815 cents to Erebor.", **options)
    request = await engine.request(run)
    await asyncio.sleep(WAIT_SECONDS)
    await engine.decide(request, "approve", by=replace(OPERATOR, traceparent=DECIDED_IN))
    return await engine.ended(run)


async def test_one_trace_has_the_run_its_waits_its_tools_and_its_answer(
    client: Client, database: Database, bench: Bench, collector: Collector
) -> None:
    """Below the caller's span; every parent is there; the wait has its length, its decider under a pseudonym, and a link.

    Neither an argument nor a word of the conversation is in any of it. Arguments, results, the model's words and the
    person's name are there when they are wanted.
    """
    caller = replace(STARTER, traceparent=read_traceparent(OUTSIDE))
    async with stack(client, database, bench.pay, model=Script(PAY, says("All paid."))) as engine:
        async with exporting(database):
            run = await paid(engine, by=caller)
            whole = await collector.one("invoke_agent agent")
        require_one_trace(collector, run, whole)
        collector.received.clear()
        async with database.write() as conn:
            await conn.execute(update(trace_export).values(last_seq=0))  # once more from the beginning
        async with exporting(database, with_content=True, with_names=True):
            await collector.one("invoke_agent agent")
    (paying,), (wait,) = collector.named("execute_tool pay"), collector.named("wait for approval")
    assert paying.attributes["gen_ai.tool.call.arguments"] == '{"cents": 47110815}'
    assert "47110815" in paying.attributes["gen_ai.tool.call.result"]
    assert wait.attributes["turngate.request.decided_by"] == "operator"
    assert "Secret thoughts." in collector.named("chat")[0].attributes["gen_ai.output.messages"]


def require_one_trace(collector: Collector, run: runs.Run, whole: Span) -> None:
    """Each span is where it belongs, as long as it took, and without content."""
    own = RunTrace.of(run.id, run.traceparent)
    assert {span.trace_id for span in collector.received} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert (whole.span_id, whole.parent_id) == (own.run.span_id, "00f067aa0ba902b7")
    assert collector.orphans(["00f067aa0ba902b7"]) == []
    (first, last), (first_chat, last_chat) = collector.named("step"), collector.named("chat test")
    (paying,) = collector.named("execute_tool pay")
    (wait,) = collector.named("wait for approval")
    assert [first.parent_id, last.parent_id] == [whole.span_id] * 2
    assert [first_chat.parent_id, paying.parent_id, wait.parent_id, last_chat.parent_id] == [first.span_id] * 3 + [
        last.span_id
    ]
    assert whole.began <= first.began <= first_chat.began <= wait.began < wait.ended <= paying.began <= paying.ended
    assert paying.ended <= first.ended <= last.began <= last.ended <= whole.ended
    assert WAIT_SECONDS <= wait.seconds < whole.seconds
    assert wait.links == (("1" * 32, "2" * 16),)
    person = wait.attributes.pop("turngate.request.decided_by")
    assert person.startswith("person-")
    assert {
        "turngate.request.status": "approved",
        "turngate.request.verb": "approve",
        "turngate.request.role": "operator",
        "gen_ai.tool.name": "pay",
    }.items() <= wait.attributes.items()
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 0,
    }.items() <= first_chat.attributes.items()
    sent = b"".join(collector.bodies)
    for text in (b"47110815", b"Erebor", b"thoughts", b"All paid", b"Be brief", b"operator\x22"):
        assert text not in sent
    assert collector.resources[0]["service.name"] == "turngate"


async def test_sub_agents_are_in_the_trace_and_forks_are_linked(
    client: Client, sqlite: Database, bench: Bench, collector: Collector
) -> None:
    """A sub-agent's run is below the call that it answers; a fork has a trace of its own, which names the other."""
    helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(bench.look), model="scripted:helper")
    models = Cast(
        test=Script(says(call("helper", '{"task": "Look."}', "d")), says("Done.")),
        helper=Script(says(call("look", '{"name": "x"}', "l")), says("Seen.")),
    )
    async with stack(client, sqlite, sub_agent(helper), model=models) as engine, exporting(sqlite):
        run = await engine.ended(await engine.start())
        child = await engine.child(run, "d")
        forked = await fork.fork(engine.services, STARTER, run.id, ForkOrder(step=1, text="again"))
        await engine.ended(forked)
        again = await collector.one("invoke_agent agent", forked.id)
    (whole,), (below,) = collector.named("invoke_agent", run.id), collector.named("invoke_agent", child.id)
    (delegated,) = collector.named("execute_tool helper", run.id)
    assert (below.trace_id, below.parent_id) == (whole.trace_id, delegated.span_id)
    assert delegated.began <= below.began <= below.ended <= delegated.ended
    assert again.trace_id != whole.trace_id
    assert again.links == ((whole.trace_id, whole.span_id),)
    assert collector.orphans() == []


async def test_a_failed_request_has_a_span_and_a_handler_is_in_that_of_its_execution(
    client: Client, sqlite: Database, collector: Collector
) -> None:
    """A request to a model that fails has its class, without its words; the answer that counts is in the step.

    What a handler calls is below the execution: an app's own spans, and MCP servers, which get its name.
    """
    seen: list[str] = []

    @tool(effect="read", ask=False)
    async def where() -> str:
        """Say where this is."""
        at = trace.get_current_span().get_span_context()
        seen.append(f"{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}")
        return "here"

    overload = ModelError("secret overload", error_class="overloaded", retryable=True, retry_after_seconds=0.01)
    model = ListModel(overload, says(call("where", "{}", "w")), says("Done."))
    async with stack(client, sqlite, where, model=model, working=False) as engine:
        engine.engine = replace(engine.engine, tracing=CurrentSpans(TraceSampler(provider().sampler)))
        async with engine.worker(), exporting(sqlite):
            run = await engine.ended(await engine.start())
            await collector.one("invoke_agent")
    (execution,) = collector.named("execute_tool where")
    assert seen == [f"{execution.trace_id}-{execution.span_id}-01"]
    failed, *answered = collector.named("chat")
    assert (failed.failed, failed.attributes["error.type"]) == (True, "overloaded")
    assert [each.failed for each in answered] == [False, False]
    assert failed.parent_id == RunTrace.of(run.id, None).run.span_id
    assert b"secret" not in b"".join(collector.bodies)


async def test_a_webhook_names_the_span_that_it_is_about(
    client: Client, sqlite: Database, bench: Bench, collector: Collector
) -> None:
    """A request's message the wait for its answer, in the run's trace; without traces there is no such header."""
    async with (
        receiving() as receiver,
        receiving() as other,
        stack(client, sqlite, bench.pay, model=Script(PAY, says("All paid."))) as engine,
        exporting(sqlite),
    ):
        of_traces = keep_notifying(sqlite, engine.services.feed, (webhook_channel(receiver),), name_span=name_span)
        plain = keep_notifying(sqlite, engine.services.feed, (webhook_channel(other, "plain"),))
        notifying = [asyncio.create_task(each) for each in (of_traces, plain)]
        await until(partial(_listening, sqlite), "cursors of both channels")
        await paid(engine)
        (opened, *_more) = await receiver.got(1)
        (without, *_more) = await other.got(1)
        for task in notifying:
            task.cancel()
        await asyncio.gather(*notifying, return_exceptions=True)
        wait = await collector.one("wait for approval")
    assert opened.headers["traceparent"] == f"00-{wait.trace_id}-{wait.span_id}-01"
    assert "traceparent" not in {name.lower() for name in without.headers}
    assert b"traceparent" not in opened.body


async def _listening(database: Database) -> bool:
    async with database.read() as conn:
        return None not in [await deliveries.cursor(conn, name) for name in ("ops", "plain")]


async def test_each_span_is_exported_once(client: Client, sqlite: Database, bench: Bench, collector: Collector) -> None:
    """A collector that is away or slow delays no one: the run ends as ever, and so does the process in the middle of an export.

    When the collector is back, one of two processes holds the export; the other takes it over when that one has ended.
    """
    collector.status = 503

    async def is_held_up() -> bool:
        return collector.held_up > 0

    async with stack(client, sqlite, bench.pay, model=Script(PAY, says("All paid."))) as engine:
        async with exporting(sqlite):
            await paid(engine)
        collector.status, collector.delay = 200, 100.0
        async with asyncio.timeout(90):
            async with exporting(sqlite):
                await until(is_held_up, "export in flight")
        collector.delay = 0.0
        assert not collector.received
        async with exporting(sqlite):
            async with exporting(sqlite):
                await collector.one("invoke_agent")
                await until(partial(_all_exported, sqlite), "note of what was sent")
            second = await paid(engine)
            await collector.one("invoke_agent", second.id)
    assert len(collector.received) == len(collector.spans) == 14
    assert collector.orphans() == []


async def test_traces_that_are_switched_on_while_a_run_waits_are_of_one_trace(
    client: Client, sqlite: Database, bench: Bench, collector: Collector
) -> None:
    """Its worker restarts: the history replays, the wait and the run have their whole length, and no parent is missing."""
    caller = replace(STARTER, traceparent=read_traceparent(OUTSIDE))
    model = Script(PAY, says("All paid."))
    async with stack(client, sqlite, bench.pay, model=model, working=False) as engine:
        async with engine.worker():
            run = await engine.start("Pay.", by=caller)
            request = await engine.request(run)
            await engine.idle(run)
        async with exporting(sqlite, all_of_it=False), engine.worker():
            await until(partial(_all_exported, sqlite), "beginning of the export")
            await engine.decide(request, "approve")
            await engine.ended(run)
            whole = await collector.one("invoke_agent agent")
    assert {span.trace_id for span in collector.received} == {whole.trace_id} == {OUTSIDE.split("-")[1]}
    (wait,) = collector.named("wait for approval")
    assert wait.began == _nanoseconds(request.created_at)
    assert whole.began == _nanoseconds(run.created_at)
    assert collector.orphans([OUTSIDE.split("-")[2]]) == []
    assert len(collector.received) == len(collector.spans)


def _nanoseconds(at: str) -> int:
    return round(from_text(at).timestamp() * 1e6) * 1000


async def _all_exported(database: Database) -> bool:
    async with database.read() as conn:
        place, newest = await traces.export(conn), await events.last_seq(conn)
    return place is not None and place.last_seq == newest


async def test_a_trace_that_its_caller_does_not_sample_is_not_exported(
    client: Client, sqlite: Database, bench: Bench, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OpenTelemetry's default sampler says; ``always_on`` exports it."""
    quiet = replace(STARTER, traceparent=read_traceparent(OUTSIDE.removesuffix("1") + "0"))
    async with stack(client, sqlite, bench.pay, model=Script(PAY, says("All paid."))) as engine:
        async with exporting(sqlite):
            await paid(engine, by=quiet)
            await paid(engine)
            await collector.one("invoke_agent")
        assert len({span.trace_id for span in collector.received}) == 1
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        async with exporting(sqlite):
            run = await paid(engine, by=quiet)
            await collector.one("invoke_agent", run.id)
