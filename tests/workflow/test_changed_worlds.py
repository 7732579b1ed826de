"""Preconditions: an approval holds for the world it was given in; when that changed, the person is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import svcs
from harness import ListModel, OneModel, Stack, call, says, stack
from pydantic import BaseModel
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

import worker as composition
from activities import preflight
from activities.record_decision import RecordDecision
from activities.run_tool import RunTool
from turngate import Agent, App, Hooks, Limits, Preview, ToolContext, Toolkit, tool
from turngate.domain.contract import PlannedCall, RunToolInput
from turngate.domain.results import Failure, Ok
from turngate.domain.tools import Tool
from turngate.runtime.app_loader import check_app
from turngate.store import requests, runs
from turngate.store.database import Database
from workflows.agent_turn import AgentTurn


class Sale(BaseModel):
    item: str


@dataclass
class Market:
    """A world that changes: a service. ``sold``: items in the order the handler started; ``looked``: what was looked at."""

    prices: dict[str, Any] = field(default_factory=lambda: {"tea": 3, "rum": 9})
    sold: list[str] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    error: Exception | None = None

    def price(self, params: Sale) -> Any:
        self.looked.append(params.item)
        if self.error is not None:
            raise self.error
        price = self.prices[params.item]
        return price() if callable(price) else price

    def preview(self, params: Sale, workspace: Path | None) -> Preview:
        del workspace
        return Preview(kind="text", text=f"for {self.prices[params.item]}")

    def sell(self, *, ask: bool = True) -> Tool:
        @tool(effect="once", ask=ask, precondition=self.price, preview=self.preview)
        async def sell(params: Sale) -> str:
            """Sell an item."""
            self.sold.append(params.item)
            return f"sold {params.item}"

        return sell


@pytest.fixture
def market() -> Market:
    return Market()


def selling(item: str = "tea", times: int = 1) -> ListModel:
    calls = [says(call("sell", f'{{"item": "{item}"}}', f"c{number + 1}")) for number in range(times)]
    return ListModel(*calls, says("Done."))


async def asked(engine: Stack, run: runs.Run) -> list[requests.Request]:
    """The requests of the run, in the order in which they were opened."""
    opened = [str(each.payload["request_id"]) for each in await engine.events(run) if each.type == "request.opened"]
    async with engine.database.read() as conn:
        found = {each.id: each for each in await requests.of_run(conn, run.id)}
    assert sorted(found) == sorted(opened)
    return [found[request_id] for request_id in opened]


async def attempt(engine: Stack, run: runs.Run, decision_id: str) -> tuple[str, PlannedCall | None]:
    """Run the activity as a worker does that is lost before the workflow hears of it."""
    order = RunToolInput(run_id=run.id, call="c1", decision_id=decision_id)
    result = await ActivityEnvironment().run(RunTool(engine.engine).run_tool, order)
    return result.state, result.again


def deciding_only(engine: Stack) -> Worker:
    """A worker that takes decisions and runs no tool: calls that may run wait for another one."""
    return Worker(
        engine.client,
        task_queue=engine.task_queue,
        workflows=[AgentTurn],
        activities=[RecordDecision(engine.engine).record_decision],
        workflow_runner=composition.SANDBOX,
        max_cached_workflows=0,
        no_remote_activities=True,
    )


async def test_an_approval_in_an_unchanged_world_runs_the_call_once(client: Client, database: Database) -> None:
    """Looked at when asked and before it runs, with services and context; equal is equal, whatever the value is made of."""
    market, keys = Market(), []

    async def precondition(params: Sale, ctx: ToolContext, market: Market) -> dict[str, Any]:
        keys.append((ctx.idempotency_key, ctx.tool_call_id))
        price = market.price(params)
        # A file name that is not UTF-8, a NUL, and an order of keys that differs from look to look.
        odd = {"name": "\udcff\x00", "price": price}
        return odd if len(keys) % 2 else dict(reversed(odd.items()))

    @tool(effect="once", ask=True, precondition=precondition)
    async def sell(params: Sale, ctx: ToolContext) -> str:
        """Sell an item."""
        market.sold.append(params.item)
        keys.append((ctx.idempotency_key, ctx.tool_call_id))
        return "sold"

    services = svcs.Registry()
    services.register_value(Market, market)
    async with stack(client, database, sell, model=selling(), services=services) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        assert (await engine.ended(run)).status == "completed"
        assert (market.looked, market.sold) == (["tea", "tea"], ["tea"])
        assert len(set(keys)) == 1
        assert len(await asked(engine, run)) == 1


async def test_i3_a_changed_world_is_asked_about_again_as_often_as_it_changes(
    client: Client, database: Database, market: Market
) -> None:
    """I3: with what it was and is; approvals of before are not redeemed, the last one is, once."""
    async with stack(client, database, market.sell(), model=selling()) as engine:
        run = await engine.start()
        for price, before in ((4, 3), (5, 4)):
            request = await engine.request(run)
            assert (request.precondition, request.preview) == (str(before), f"for {before}")
            market.prices["tea"] = price
            await engine.decide(request, "approve", decision_id=f"at {before}")
            again = await engine.request(run)
            assert f"it was {before}, and is now {price}" in again.reason
            assert again.reason.startswith("operator approved this")
            assert (again.kind, again.input, again.digest) == ("approval", request.input, request.digest)
            assert market.sold == []
            assert await engine.executions(run) == {}
        await engine.decide(again, "approve", decision_id="at 5")
        assert (await engine.ended(run)).status == "completed"
        assert market.sold == ["tea"]
        assert (await engine.executions(run))["c1"].decision_id == "at 5"
        assert [each.status for each in await asked(engine, run)] == ["approved"] * 3
        for stale in ("at 3", "at 4", "at 5"):
            assert await attempt(engine, run, stale) == ("settled", None)
        assert market.sold == ["tea"]
        assert await engine.results(run) == {"c1": Ok(value={"value": "sold tea"})}


async def test_i12_a_second_no_closes_the_call(client: Client, sqlite: Database, market: Market) -> None:
    """I12: in the words of whoever said it, although a first yes is on record; the same call is not asked again."""
    async with stack(client, sqlite, market.sell(), model=selling(times=2)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        market.prices["tea"] = 4
        await engine.decide(request, "approve", decision_id="d1")
        await engine.decide(await engine.request(run), "reject", message="not at that price")
        assert (await engine.ended(run)).status == "completed"
        assert [each.status for each in await asked(engine, run)] == ["approved", "rejected"]
        results = await engine.results(run)
        assert [results[each].kind for each in ("c1", "c2")] == ["rejected", "rejected"]
        assert "not at that price" in results["c1"].reason
        assert await attempt(engine, run, "d1") == ("settled", None)
        assert market.sold == []


async def test_a_precondition_that_fails_when_asked_for_asks_again(
    client: Client, sqlite: Database, market: Market
) -> None:
    """The person is asked all the same, and told later what it is now; approved in that world, the call runs."""
    market.error = KeyError("secret")
    async with stack(client, sqlite, market.sell(), model=selling()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        market.error = None
        await engine.decide(request, "approve")
        again = await engine.request(run)
        assert "KeyError" in again.reason
        assert "is now 3" in again.reason
        assert "secret" not in again.reason
        await engine.decide(again, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert market.sold == ["tea"]


async def forever() -> None:
    await asyncio.sleep(3600)


def raises() -> None:
    raise ConnectionError("secret")


def gives_up() -> None:
    raise SystemExit(1)


def no_json() -> set[int]:
    return {1}


async def holds_on() -> int:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return 1  # what it was when the person was asked
    return 2


async def test_i2_a_precondition_that_fails_before_the_start_bars_the_call(
    client: Client, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: it raises, hangs, gives up or returns no JSON: not executed, in words that hold no message of the author's."""
    failing = [forever, raises, gives_up, no_json, holds_on]
    names = [each.__name__ for each in failing]
    started: list[str] = []
    approved: set[str] = set()

    def bad(name: str, fails: Callable[[], Any]) -> Tool:
        async def precondition() -> Any:
            if name not in approved:
                return 1
            made = fails()
            return await made if asyncio.iscoroutine(made) else made

        @tool(name=name, ask=True, precondition=precondition)
        async def sell() -> None:
            """Sell."""
            started.append(name)

        return sell

    monkeypatch.setattr(preflight, "AUTHOR_SECONDS", 0.3)
    tools = [bad(each.__name__, each) for each in failing]
    model = ListModel(says(*(call(name, "{}", name) for name in names)), says("Oh."))
    async with stack(client, sqlite, *tools, model=model, limits=Limits(concurrency=8)) as engine:
        run = await engine.start()
        waiting = [await engine.request(run, tool=name) for name in names]
        approved.update(names)
        for request in waiting:
            await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert started == []
        assert await engine.executions(run) == {}
        results = await engine.results(run)
        assert {each.kind for each in results.values()} == {"execution_error"}
        for name, kind in zip(names, ["Timeout", "Connection", "AuthorCode", "Type", "Timeout"], strict=True):
            assert f"could not be checked again ({kind}Error)" in results[name].reason
        assert "secret" not in str(results)
        assert len(await asked(engine, run)) == len(names)


async def test_i6_an_edited_call_depends_on_what_the_edit_depends_on(
    client: Client, sqlite: Database, market: Market
) -> None:
    """I6: what the model's own arguments depended on may change; nobody is asked again for it."""
    async with stack(client, sqlite, market.sell(), model=selling()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        market.prices["tea"] = 4
        await engine.decide(request, "edit", args='{"item": "rum"}')
        assert (await engine.ended(run)).status == "completed"
        assert (market.looked, market.sold) == (["tea", "rum", "rum"], ["rum"])
        (only,) = await asked(engine, run)
        assert only.precondition == "9"


async def test_i6_an_edited_call_is_asked_about_again_as_edited(
    client: Client, sqlite: Database, market: Market
) -> None:
    """I6: the second request shows the edited call, and its approval is for exactly that."""
    seen = iter([9, 10, 10])
    market.prices["rum"] = lambda: next(seen)  # changes between the edit and the start
    async with stack(client, sqlite, market.sell(), model=selling()) as engine:
        run = await engine.start()
        first = await engine.request(run)
        await engine.decide(first, "edit", args='{"item": "rum"}')
        again = await engine.request(run)
        assert again.input == '{"item": "rum"}'
        assert again.digest != first.digest
        assert "it was 9, and is now 10" in again.reason
        await engine.decide(again, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert market.sold == ["rum"]
        assert (await engine.executions(run))["c1"].digest == again.digest
        part = (await engine.history(run))[-2].results[0]
        assert (part.edited_input, part.result) == ('{"item": "rum"}', Ok(value={"value": "sold rum"}))


async def test_i6_the_second_request_can_be_edited_too(client: Client, sqlite: Database, market: Market) -> None:
    """I6: into a call with a world of its own, which the approval is then for."""
    async with stack(client, sqlite, market.sell(), model=selling()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        market.prices["tea"] = 4
        await engine.decide(request, "approve")
        await engine.decide(await engine.request(run), "edit", args='{"item": "rum"}')
        assert (await engine.ended(run)).status == "completed"
        assert market.sold == ["rum"]
        assert [each.precondition for each in await asked(engine, run)] == ["3", "9"]


@pytest.mark.parametrize("hooks", [[], [Hooks()]])
async def test_a_call_that_policy_allows_is_never_asked_for_because_of_its_world(
    client: Client, sqlite: Database, market: Market, hooks: list[Hooks]
) -> None:
    """Nobody was shown a world, so none is looked at: also where hooks are heard before the call."""
    market.error = KeyError("tea")
    async with stack(client, sqlite, market.sell(ask=False), model=selling(), hooks=hooks) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        assert (market.looked, market.sold) == ([], ["tea"])
        assert await asked(engine, run) == []


async def test_i5_a_worker_lost_after_it_asked_again_leads_to_one_request(
    client: Client, database: Database, market: Market
) -> None:
    """I5: every later attempt comes to the same one, also when the world has changed back: somebody may be reading it.

    An operator who answers it before the workflow has heard of it is not told that there is no such request.
    """
    async with stack(client, database, market.sell(), model=selling(), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        async with deciding_only(engine):
            await engine.decide(request, "approve", decision_id="d1")
            market.prices["tea"] = 4
            both = await asyncio.gather(*(attempt(engine, run, "d1") for _ in range(2)), return_exceptions=True)
            told = [each for each in both if not isinstance(each, BaseException)]  # Temporal tries the other one again
            market.prices["tea"] = 3
            told.append(await attempt(engine, run, "d1"))
            assert {state for state, _ in told} == {"asked_again"}
            assert len({again.request_id for _, again in told if again is not None}) == 1
            deciding = asyncio.create_task(engine.decide(await engine.request(run), "approve", decision_id="d2"))
            await asyncio.wait([deciding], timeout=0.2)
            assert not deciding.done()
        async with engine.worker():
            assert (await deciding).status == "approved"
            await engine.decide(await engine.request(run), "approve", decision_id="d3")  # 4 was approved, and it is 3
            assert (await engine.ended(run)).status == "completed"
        assert market.sold == ["tea"]
        assert [each.precondition for each in await asked(engine, run)] == ["3", "4", "3"]


async def test_expiry_of_the_second_request_refuses_the_call(client: Client, sqlite: Database, market: Market) -> None:
    """A yes to the world of before is no yes: nobody answered in time, so the call did not run."""
    async with stack(client, sqlite, market.sell(), model=selling(), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        async with deciding_only(engine):
            await engine.decide(request, "approve")
        market.prices["tea"] = 4
        hurried = Agent(
            name="agent",
            instructions="",
            toolkit=Toolkit.of(market.sell()),
            model="scripted:test",
            limits=Limits(request_expiry=timedelta(seconds=1)),
        )
        app = check_app(App(agents=[hurried]), base=Path.cwd())
        engine.engine = composition.build_engine(app, sqlite, OneModel(ListModel(says("Oh."))))
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert [each.status for each in await asked(engine, run)] == ["approved", "expired"]
        result = (await engine.results(run))["c1"]
        assert isinstance(result, Failure)
        assert result.kind == "expired"
        assert market.sold == []
        assert await engine.executions(run) == {}


async def test_i1_an_interrupt_ends_the_second_request_too(client: Client, sqlite: Database, market: Market) -> None:
    """I1: the call gets its closure, which says that it did not run."""
    async with stack(client, sqlite, market.sell(), model=selling()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        market.prices["tea"] = 4
        await engine.decide(request, "approve")
        await engine.request(run)
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        assert [each.status for each in await asked(engine, run)] == ["approved", "cancelled"]
        result = (await engine.results(run))["c1"]
        assert isinstance(result, Failure)
        assert (result.kind, result.fields["started"]) == ("interrupted", False)
        assert market.sold == []
