"""Preconditions where they meet something else: services, bounds, edits, hooks, attempts at the same time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import svcs
from pydantic import BaseModel
from support.engine.stack import ListModel, Stack, call, says, stack
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Deny, HookedCall, Hooks, RunScope, ToolContext, tool
from turngate.activities.engine import author_code
from turngate.activities.run_tool import RunTool
from turngate.domain.contract import PlannedCall, RunToolInput
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs


class Sale(BaseModel):
    item: str


@dataclass
class Market:
    """A world that changes: a service. ``sold``: items in the order the handler started; ``looked``: what was looked at."""

    prices: dict[str, int] = field(default_factory=lambda: {"tea": 3, "rum": 9})
    sold: list[str] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)

    def price(self, params: Sale) -> int:
        self.looked.append(params.item)
        return self.prices[params.item]

    def sell(self, precondition: Callable[..., Any] | None = None) -> Tool:
        @tool(effect="once", ask=True, precondition=precondition or self.price)
        async def sell(params: Sale) -> str:
            """Sell an item."""
            self.sold.append(params.item)
            return f"sold {params.item}"

        return sell


@pytest.fixture
def market() -> Market:
    return Market()


def selling(times: int = 1) -> ListModel:
    calls = [says(call("sell", '{"item": "tea"}', f"c{number + 1}")) for number in range(times)]
    return ListModel(*calls, says("Done."))


async def opened_requests(engine: Stack, run: runs.Run) -> list[requests.Request]:
    """The requests of the run, in the order in which they were opened."""
    opened = [str(each.payload["request_id"]) for each in await engine.events(run) if each.type == "request.opened"]
    async with engine.database.read() as conn:
        rows = {each.id: each for each in await requests.of_run(conn, run.id)}
    assert sorted(rows) == sorted(opened)
    return [rows[request_id] for request_id in opened]


async def attempt(engine: Stack, run: runs.Run) -> tuple[str, PlannedCall | None]:
    """Run the activity as a worker does that is lost before the workflow gets the result."""
    order = RunToolInput(run_id=run.id, call="c1")
    result = await ActivityEnvironment().run(RunTool(engine.engine).run_tool, order)
    return result.state, result.again


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A common kind of decorator: its wrapper is not an ``async def``, whatever it wraps."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("decorated", [False, True])
async def test_a_precondition_is_given_what_it_asks_for(
    client: Client, sqlite: Database, market: Market, decorated: bool
) -> None:
    """Parameters, services and the call's own context: when a person is asked, and before the start, of their edit, too."""
    arguments: list[tuple[str, str, str]] = []

    async def precondition(market: Market, ctx: ToolContext, params: Sale) -> int:
        arguments.append((params.item, ctx.tool_call_id, ctx.idempotency_key))
        return market.price(params)

    services = svcs.Registry()
    services.register_value(Market, market)
    sell = market.sell(timed(precondition) if decorated else precondition)
    async with stack(client, sqlite, sell, model=selling(), services=services) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "edit", args='{"item": "rum"}')
        assert (await engine.ended(run)).status == "completed"
        key = (await engine.executions(run))["c1"].idempotency_key
        assert arguments == [("tea", "c1", key), ("tea", "c1", key), ("rum", "c1", key)]
        assert market.sold == ["rum"]


async def test_i2_a_precondition_that_answers_after_its_time_does_not_count(
    client: Client, sqlite: Database, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: an answer after the timeout is too late, even if the value is unchanged: the call does not run."""
    monkeypatch.setattr(author_code, "AUTHOR_SECONDS", 0.2)

    async def holds_on(params: Sale) -> int:
        try:
            if market.price(params) and len(market.looked) > 1:
                await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return 3
        return 3

    async with stack(client, sqlite, market.sell(holds_on), model=selling()) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        assert (await engine.ended(run)).status == "completed"
        result = (await engine.results(run))["c1"]
        assert isinstance(result, Failure)
        assert "could not be checked again (TimeoutError)" in result.reason
        assert market.sold == []


async def test_i6_the_second_request_can_be_edited(client: Client, sqlite: Database, market: Market) -> None:
    """I6: into a call with a world of its own, which the approval is then for."""
    async with stack(client, sqlite, market.sell(), model=selling()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        market.prices["tea"] = 4
        await engine.decide(request, "approve")
        await engine.decide(await engine.request(run), "edit", args='{"item": "rum"}')
        assert (await engine.ended(run)).status == "completed"
        assert market.sold == ["rum"]
        assert [each.precondition for each in await opened_requests(engine, run)] == ["3", "4"]


async def test_i12_after_a_second_no_the_same_call_is_not_asked_again(
    client: Client, sqlite: Database, market: Market
) -> None:
    """I12: the first yes does not make the model's repeat of the call a new one."""
    async with stack(client, sqlite, market.sell(), model=selling(times=2)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        market.prices["tea"] = 4
        await engine.decide(request, "approve")
        await engine.decide(await engine.request(run), "reject", message="not at that price")
        assert (await engine.ended(run)).status == "completed"
        assert [each.status for each in await opened_requests(engine, run)] == ["approved", "rejected"]
        results = await engine.results(run)
        assert [results[each].kind for each in ("c1", "c2")] == ["rejected", "rejected"]
        assert market.sold == []


class PriceGuard(Hooks):
    """Runs before the precondition is checked; ``denies``: from its second call on."""

    def __init__(self, market: Market, *, denies: bool) -> None:
        self.market = market
        self.denies = denies
        self.looked: list[int] = []

    async def before_tool(self, scope: RunScope, call: HookedCall) -> Deny | None:
        self.looked.append(len(self.market.looked))
        return Deny("Enough.") if self.denies and len(self.looked) > 1 else None


@pytest.mark.parametrize("denies", [False, True])
async def test_i2_hooks_run_for_every_approval(client: Client, sqlite: Database, market: Market, denies: bool) -> None:
    """I2: also for a repeated request; after a hook's denial the precondition is not checked."""
    guard = PriceGuard(market, denies=denies)
    async with stack(client, sqlite, market.sell(), model=selling(), hooks=[guard]) as engine:
        run = await engine.start()
        request = await engine.request(run)
        market.prices["tea"] = 4
        await engine.decide(request, "approve")
        await engine.decide(await engine.request(run), "approve")
        assert (await engine.ended(run)).status == "completed"
        assert guard.looked == [1, 2]
        assert len(market.looked) == (2 if denies else 3)
        assert market.sold == ([] if denies else ["tea"])


async def test_i5_attempts_at_the_same_time_lead_to_one_request(
    client: Client, database: Database, market: Market
) -> None:
    """I5: of two workers that both hold the approval, the second finds the request, at once or on its retry.

    An operator may decide it before the workflow knows of it.
    """
    async with stack(client, database, market.sell(), model=selling(), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        await engine.decide(request, "approve", decision_id="d1")
        market.prices["tea"] = 4
        both = await asyncio.gather(*(attempt(engine, run) for _ in range(2)), return_exceptions=True)
        results = [each for each in both if not isinstance(each, BaseException)]
        results.append(await attempt(engine, run))
        assert {state for state, _ in results} == {"asks"}
        assert len({again.request_id for _, again in results if again is not None}) == 1
        assert (await engine.decide(await engine.request(run), "approve", decision_id="d2")).status == "approved"
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert market.sold == ["tea"]
        assert (await engine.executions(run))["c1"].decision_id == "d2"
        assert [each.precondition for each in await opened_requests(engine, run)] == ["3", "4"]
