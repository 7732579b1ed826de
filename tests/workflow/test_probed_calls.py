"""Probes: what happened to a ``once`` call whose worker was lost, from its tool before a person is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
import svcs
from pydantic import BaseModel
from support.engine.stack import ListModel, Stack, call, killed, says, stack, until
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import DidNotHappen, Happened, Limits, ProbeAnswer, ToolContext, tool
from turngate.activities.engine import author_code
from turngate.activities.engine.engine import OrderLocks
from turngate.activities.run_tool import RunTool
from turngate.domain.contract import RunToolInput
from turngate.domain.tools.results import Ok
from turngate.domain.tools.tool import Effect, Tool
from turngate.store.database import Database
from turngate.store.runs import runs, whole_results

Probe = Callable[..., ProbeAnswer | Awaitable[ProbeAnswer]]


class Receipt(BaseModel):
    paid: int
    note: str = ""


@dataclass
class Ledger:
    """What was paid, by key: a service. ``started``: tool → keys of its starts; ``probed``: keys that were probed."""

    paid: dict[str, Receipt] = field(default_factory=dict)
    started: dict[str, list[str]] = field(default_factory=dict)
    probed: list[str] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def lossy(
        self, name: str, probe: Probe | None, *, effect: Effect = "once", ask: bool = False, losses: int = 1
    ) -> Tool:
        """A tool that loses its worker ``losses`` times while it runs, and then returns."""

        @tool(name=name, effect=effect, ask=ask, probe=probe)
        async def pay(ctx: ToolContext) -> Receipt:
            """Pay."""
            starts = self.started.setdefault(name, [])
            starts.append(ctx.idempotency_key)
            if len(starts) <= losses:
                await self.release.wait()
            return Receipt(paid=5)

        return pay

    def says(self, answer: ProbeAnswer) -> Probe:
        """A probe that always answers this, and records the keys."""

        def probe(key: str) -> ProbeAnswer:
            self.probed.append(key)
            return answer

        return probe

    @property
    def starts(self) -> int:
        return sum(len(keys) for keys in self.started.values())


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def calling(*names: str) -> ListModel:
    """A model that calls each tool once; the call's id is the tool's name."""
    return ListModel(says(*(call(name, "{}", name) for name in names)), says("Done."))


async def lose(
    engine: Stack, ledger: Ledger, run: runs.Run | None = None, *, approve: int = 0, starts: int = 1
) -> runs.Run:
    """Start a run, or continue one, and stop the worker while this many handlers are running."""
    before = ledger.starts

    async def look() -> bool:
        return ledger.starts >= before + starts

    async with engine.worker(graceful_shutdown_seconds=0):
        run = run or await engine.start()
        for _ in range(approve):
            await engine.decide(await engine.request(run), "approve")
        await until(look, f"start of {starts} handlers")
    return run


async def another_attempt(engine: Stack, run: runs.Run, call_id: str) -> str:
    """Try the call again in another process, as Temporal does when an attempt times out."""
    order, elsewhere = RunToolInput(run_id=run.id, call=call_id), replace(engine.engine, order_locks=OrderLocks())
    return (await ActivityEnvironment().run(RunTool(elsewhere).run_tool, order)).state


async def test_i3_a_lost_call_has_the_end_that_its_probe_found(
    client: Client, sqlite: Database, ledger: Ledger
) -> None:
    """I3: one that happened has the result that its probe found by the handler's own key in an injected service.

    One that did not happen starts once more, with the same key and the same approval. No one is asked about either. Calls
    that may be repeated start again by themselves, with the same key, and are not probed; nor is a call that was not lost.
    """

    async def look_up(key: str, ledger: Ledger) -> ProbeAnswer:
        ledger.probed.append(key)
        return Happened(ledger.paid[key])

    services = svcs.Registry()
    services.register_value(Ledger, ledger)
    undone, unasked = ledger.says(DidNotHappen()), ledger.says(Happened(Receipt(paid=0)))
    tools = [
        ledger.lossy("kept", unasked, losses=0),
        ledger.lossy("gated", look_up, ask=True),
        ledger.lossy("free", look_up),
        ledger.lossy("gated_undone", undone, ask=True),
        ledger.lossy("free_undone", undone),
        ledger.lossy("read", unasked, effect="read"),
        ledger.lossy("same", unasked, effect="idempotent"),
    ]
    names = [each.name for each in tools[1:]]
    model = ListModel(
        says(call("kept", "{}", "kept")), says(*(call(name, "{}", name) for name in names)), says("Done.")
    )
    options = {"model": model, "services": services, "limits": Limits(concurrency=len(names))}
    async with stack(client, sqlite, *tools, working=False, **options) as engine:
        run = await lose(engine, ledger, approve=2, starts=len(tools))
        gated, free = ledger.started["gated"][0], ledger.started["free"][0]
        ledger.paid = {gated: Receipt(paid=7, note="found"), free: Receipt(paid=8)}
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert await another_attempt(engine, run, "kept") == "settled"
        starts = {name: len(keys) for name, keys in ledger.started.items()}
        assert starts == {"kept": 1, "gated": 1, "free": 1, "gated_undone": 2, "free_undone": 2, "read": 2, "same": 2}
        keys = {name: set(keys) for name, keys in ledger.started.items()}
        assert {len(each) for each in keys.values()} == {1}, "a call that starts again has the same key"
        assert len(set.union(*keys.values())) == len(tools)
        assert set(ledger.probed) == keys["gated"] | keys["free"] | keys["gated_undone"] | keys["free_undone"]
        assert len(ledger.probed) == 4
        results = await engine.results(run)
        assert results.pop("gated") == Ok(value={"paid": 7, "note": "found"})
        assert results.pop("free") == Ok(value={"paid": 8, "note": ""})
        assert list(results.values()) == [Ok(value={"paid": 5, "note": ""})] * 5
        assert model.seen[2].messages[-1].results[0].result == Ok(value={"paid": 7, "note": "found"})
        executions = await engine.executions(run)
        assert {name: (each.state, each.attempts) for name, each in executions.items()} == {
            name: ("succeeded", number) for name, number in starts.items()
        }
        assert [each.kind for each in await engine.requests_of(run)] == ["approval"] * 2
        ends = [each.payload for each in await engine.events(run) if each.type == "execution.finished"]
        assert sorted(each["tool_call_id"] for each in ends if each.get("by") == "probe") == ["free", "gated"]
        assert all(each["ok"] for each in ends)


async def test_i3_a_call_that_kills_its_workers_is_a_persons_to_look_at(
    client: Client, sqlite: Database, ledger: Ledger
) -> None:
    """I3: each loss is probed, but however often the probe says no, the starts of the handler are bounded."""
    pay = ledger.lossy("pay", ledger.says(DidNotHappen()), losses=9)
    async with stack(client, sqlite, pay, model=calling("pay"), working=False) as engine:
        run = await lose(engine, ledger)
        await killed(engine)
        await lose(engine, ledger, run)
        await killed(engine)
        async with engine.worker():
            request = await engine.request(run, kind="outcome")
            assert (len(ledger.probed), ledger.starts) == (2, 2)
            await engine.decide(request, "respond", outcome="tell_model")
            assert (await engine.ended(run)).status == "completed"
        assert ledger.starts == 2


def no_idea() -> ProbeAnswer:
    return None


def away() -> ProbeAnswer:
    raise ConnectionError("away")


async def hangs() -> ProbeAnswer:
    await asyncio.sleep(3600)
    return Happened(Receipt(paid=0))


async def never_lets_go() -> ProbeAnswer:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return DidNotHappen()
    return None


def gives_up() -> ProbeAnswer:
    raise SystemExit(1)


def says_no() -> ProbeAnswer:
    return False  # type: ignore[return-value]  # an easy mistake of an author


def the_class() -> ProbeAnswer:
    return DidNotHappen  # type: ignore[return-value]  # the same, a pair of parentheses short


def misfit() -> ProbeAnswer:
    return Happened({"paid": "a lot"})


async def test_i3_a_lost_once_call_is_never_repeated_by_the_engine(
    client: Client, sqlite: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: without a probe, or if it doesn't know, fails, hangs or answers anything else, a person is asked.

    Only their word starts the call again.
    """
    monkeypatch.setattr(author_code, "AUTHOR_SECONDS", 0.5)
    probes: list[Probe] = [no_idea, away, hangs, never_lets_go, gives_up, says_no, the_class, misfit]
    tools = [ledger.lossy("approved", None, ask=True), ledger.lossy("allowed", None)]
    tools += [ledger.lossy(probe.__name__, probe) for probe in probes]
    names = [each.name for each in tools]
    words = {name: {"outcome": "happened", "args": '{"paid": 9}'} for name in names}
    words["approved"] = words["away"] = {"outcome": "did_not_happen"}
    words["allowed"] = {"outcome": "tell_model"}
    limits = Limits(concurrency=len(names))
    async with stack(client, sqlite, *tools, model=calling(*names), limits=limits, working=False) as engine:
        run = await lose(engine, ledger, approve=1, starts=len(names))
        async with engine.worker():
            waiting = {name: await engine.request(run, kind="outcome", tool=name) for name in names}
            assert {each.state for each in (await engine.executions(run)).values()} == {"unknown"}
            assert ledger.starts == len(names)
            for name, request in waiting.items():
                await engine.decide(request, "respond", **words[name])
            assert (await engine.ended(run)).status == "completed"
        again = {name for name, keys in ledger.started.items() if len(keys) == 2}
        assert (again, ledger.starts) == ({"approved", "away"}, len(names) + 2)
        results = await engine.results(run)
        assert results.pop("allowed").kind == "unknown"
        assert {name: each.value["paid"] for name, each in results.items()} == {
            name: 5 if name in again else 9 for name in names if name != "allowed"
        }
        assert [each.kind for each in await engine.requests_of(run)] == ["approval"] + ["outcome"] * len(names)


async def test_i3_a_worker_that_was_only_thought_lost_comes_too_late(
    client: Client, sqlite: Database, ledger: Ledger
) -> None:
    """I3: the probe's result stays, clipped to head and tail; the late one is recorded as late."""
    pay = ledger.lossy("pay", ledger.says(Happened(Receipt(paid=7, note="x" * 5_000))))
    model = calling("pay")
    async with stack(client, sqlite, pay, model=model, limits=Limits(result_chars=1_000)) as engine:
        run = await engine.start()

        async def look() -> bool:
            return ledger.starts == 1

        await until(look, "start of the handler")
        assert await another_attempt(engine, run, "pay") == "settled"
        ledger.release.set()
        assert (await engine.ended(run)).status == "completed"
        assert ledger.starts == 1
        assert (await engine.event(run, "execution.late")).payload["tool"] == "pay"
        clipped = model.seen[1].messages[-1].results[0].result
        assert isinstance(clipped, Ok)
        assert clipped.value["truncated"]
        async with sqlite.read() as conn:
            whole = await whole_results.text_of(conn, str(clipped.value["result_id"]))
        assert whole is not None
        assert '"paid":7' in whole
