"""Probes: what became of a ``once`` call whose worker was lost, in its tool's own words before a person's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import svcs
from harness import ListModel, Stack, call, says, stack, until
from pydantic import BaseModel
from temporalio.client import Client
from tools_under_test import Bench

from activities import lost_calls, preflight
from turngate import DidNotHappen, Happened, Limits, ProbeAnswer, ToolContext, tool
from turngate.domain.results import Ok
from turngate.domain.tools import Effect, Tool
from turngate.store import executions, requests, runs, whole_results
from turngate.store.database import Database

Probe = Callable[..., ProbeAnswer | Awaitable[ProbeAnswer]]


class Receipt(BaseModel):
    paid: int
    note: str = ""


@dataclass
class Ledger:
    """A service: what was paid, under which key."""

    paid: dict[str, Receipt] = field(default_factory=dict)
    probed: list[str] = field(default_factory=list)


def lossy(bench: Bench, probe: Probe, *, effect: Effect = "once", ask: bool = False, losses: int = 1) -> Tool:
    """A tool that is at work when its worker goes, so many times; after that it returns."""

    @tool(effect=effect, ask=ask, probe=probe)
    async def pay(ctx: ToolContext) -> Receipt:
        """Pay."""
        bench.keys.append(ctx.idempotency_key)
        if len(bench.keys) <= losses:
            await asyncio.sleep(3600)
        return Receipt(paid=5)

    return pay


def model() -> ListModel:
    return ListModel(says(call("pay", "{}", "c1")), says("Done."))


async def lose(engine: Stack, bench: Bench, run: runs.Run | None = None, *, approve: bool = False) -> runs.Run:
    """Start a run, or go on with it, and stop the worker while the handler is at work."""
    begun = len(bench.keys)

    async def look() -> bool:
        return len(bench.keys) > begun

    async with engine.worker(graceful_shutdown_seconds=0):
        run = run or await engine.start()
        if approve:
            await engine.decide(await engine.request(run), "approve")
        await until(look, "start of the handler")
    return run


async def execution(engine: Stack, run: runs.Run) -> executions.Execution:
    return (await engine.executions(run))["c1"]


async def requests_of(engine: Stack, run: runs.Run) -> list[requests.Request]:
    async with engine.database.read() as conn:
        return await requests.of_run(conn, run.id)


@pytest.mark.parametrize("gated", [True, False])
async def test_i3_a_lost_call_that_happened_has_the_result_its_probe_found(
    client: Client, database: Database, bench: Bench, gated: bool
) -> None:
    """I3: found by the handler's own key in an injected service; nothing starts again, nobody is asked what happened."""
    ledger = Ledger()

    async def probe(key: str, ledger: Ledger) -> ProbeAnswer:
        ledger.probed.append(key)
        return Happened(ledger.paid[key])

    services = svcs.Registry()
    services.register_value(Ledger, ledger)
    sent = model()
    pay = lossy(bench, probe, ask=gated)
    async with stack(client, database, pay, model=sent, services=services, working=False) as engine:
        run = await lose(engine, bench, approve=gated)
        ledger.paid[bench.keys[0]] = Receipt(paid=7, note="found")
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert ledger.probed == bench.keys
        assert len(bench.keys) == 1
        assert await engine.results(run) == {"c1": Ok(value={"paid": 7, "note": "found"})}
        assert sent.seen[1].messages[-1].results[0].result == Ok(value={"paid": 7, "note": "found"})
        assert ((await execution(engine, run)).state, (await execution(engine, run)).attempts) == ("succeeded", 1)
        assert [each.kind for each in await requests_of(engine, run)] == (["approval"] if gated else [])
        finished = await engine.event(run, "execution.finished")
        assert (finished.payload["by"], finished.payload["ok"]) == ("probe", True)


async def test_a_long_result_that_a_probe_found_is_clipped_like_any(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The model is shown head and tail, and the whole is kept."""
    note = "x" * 5_000
    pay = lossy(bench, lambda: Happened(Receipt(paid=7, note=note)))
    limits = Limits(result_chars=1_000)
    async with stack(client, sqlite, pay, model=model(), limits=limits, working=False) as engine:
        run = await lose(engine, bench)
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        shown = (await engine.results(run))["c1"].value
        assert shown["truncated"]
        async with sqlite.read() as conn:
            whole = await whole_results.get(conn, shown["result_id"])
        assert whole is not None
        assert note in whole


@pytest.mark.parametrize("gated", [True, False])
async def test_i3_a_lost_call_that_did_not_happen_starts_once_more(
    client: Client, sqlite: Database, bench: Bench, gated: bool
) -> None:
    """I3: on its tool's own word; under the same key, on the same approval, and nobody is asked."""
    asked: list[str] = []

    def probe(key: str) -> ProbeAnswer:
        asked.append(key)
        return DidNotHappen()

    async with stack(client, sqlite, lossy(bench, probe, ask=gated), model=model(), working=False) as engine:
        run = await lose(engine, bench, approve=gated)
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert len(bench.keys) == 2
        assert asked == bench.keys[:1] == bench.keys[1:]
        assert (await execution(engine, run)).attempts == 2
        assert (await engine.results(run))["c1"] == Ok(value={"paid": 5, "note": ""})
        assert len(await requests_of(engine, run)) == gated


async def test_i3_each_loss_is_probed_until_the_call_counts_as_one_that_kills_its_workers(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: however often the probe says no, a handler is not started for ever: then a person looks at it."""
    monkeypatch.setattr(lost_calls, "MAX_STARTS", 2)
    asked: list[str] = []

    def probe(key: str) -> ProbeAnswer:
        asked.append(key)
        return DidNotHappen()

    async with stack(client, sqlite, lossy(bench, probe, losses=2), model=model(), working=False) as engine:
        run = await lose(engine, bench)
        await lose(engine, bench, run)
        async with engine.worker():
            request = await engine.request(run, kind="outcome")
            assert (len(asked), len(bench.keys)) == (2, 2)
            await engine.decide(request, "respond", outcome="tell_model")
            assert (await engine.ended(run)).status == "completed"
        assert len(bench.keys) == 2


def no_idea() -> ProbeAnswer:
    return None


def away() -> ProbeAnswer:
    raise ConnectionError("away")


async def hangs() -> ProbeAnswer:
    await asyncio.sleep(3600)
    return None


def gives_up() -> ProbeAnswer:
    raise SystemExit(1)


def says_true() -> ProbeAnswer:
    return True  # type: ignore[return-value]  # what an author writes who has not read the documentation


def the_class() -> ProbeAnswer:
    return DidNotHappen  # type: ignore[return-value]  # the same, a pair of parentheses short


def misfit() -> ProbeAnswer:
    return Happened({"paid": "a lot"})


@pytest.mark.parametrize("probe", [no_idea, away, hangs, gives_up, says_true, the_class, misfit])
async def test_i3_a_probe_without_an_answer_leaves_it_to_a_person(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch, probe: Probe
) -> None:
    """I3: it does not know, fails, hangs or answers anything else: the outcome is asked for, and nothing starts again."""
    monkeypatch.setattr(preflight, "AUTHOR_SECONDS", 0.1 if probe is hangs else 10.0)
    async with stack(client, sqlite, lossy(bench, probe), model=model(), working=False) as engine:
        run = await lose(engine, bench)
        async with engine.worker():
            request = await engine.request(run, kind="outcome")
            assert (await execution(engine, run)).state == "unknown"
            await engine.decide(request, "respond", outcome="happened", args='{"paid": 9}')
            assert (await engine.ended(run)).status == "completed"
        assert len(bench.keys) == 1
        assert (await engine.results(run))["c1"] == Ok(value={"paid": 9})
        assert len(await requests_of(engine, run)) == 1


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_calls_that_may_be_repeated_are_not_probed(
    client: Client, sqlite: Database, bench: Bench, effect: Effect
) -> None:
    """They start again by themselves, whatever their probe would have said."""
    asked: list[str] = []

    def probe(key: str) -> ProbeAnswer:
        asked.append(key)
        return Happened(Receipt(paid=0))

    async with stack(client, sqlite, lossy(bench, probe, effect=effect), model=model(), working=False) as engine:
        run = await lose(engine, bench)
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert asked == []
        assert len(bench.keys) == 2
        assert (await engine.results(run))["c1"] == Ok(value={"paid": 5, "note": ""})


async def test_a_call_that_is_not_lost_is_not_probed(client: Client, sqlite: Database, bench: Bench) -> None:
    """Neither before its first start nor when its activity is repeated after its end."""
    asked: list[str] = []

    def probe(key: str) -> ProbeAnswer:
        asked.append(key)
        return DidNotHappen()

    async with stack(client, sqlite, lossy(bench, probe, losses=0), model=model()) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        assert (asked, len(bench.keys)) == ([], 1)
