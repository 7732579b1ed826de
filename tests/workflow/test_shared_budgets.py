"""Budgets that a run shares with its sub-agents: what they use counts for every run above, and ends what is below."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from support.engine.stack import Cast, ListModel, Script, call, says, stack
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Agent, App, ConfigurationError, Limits, Price, Toolkit, sub_agent
from turngate.domain.conversation.messages import ModelResponse, Usage
from turngate.domain.tools.results import Failure
from turngate.store.database import Database
from turngate.store.runs import subtree_usage
from turngate.store.runs.subtree_usage import SubtreeUsage

PRICES = {f"scripted:{name}": Price(input=Decimal(1), output=Decimal(1)) for name in ("test", "middle", "leaf")}


def spending(response: ModelResponse, tokens: int = 1_000) -> ModelResponse:
    return response.model_copy(update={"usage": Usage(input_tokens=tokens, output_tokens=0)})


def asks(name: str, call_id: str) -> ModelResponse:
    return spending(says(call(name, '{"task": "Look."}', call_id)))


LOOK = spending(says(call("look", '{"name": "a"}'), call("look", '{"name": "b"}')))
DONE = spending(says("Done."))


def agent_of(name: str, *tools: Any, **limits: Any) -> Agent:
    run_limits = Limits(no_progress=None, **limits)
    return Agent(name=name, instructions="", toolkit=Toolkit.of(*tools), model=f"scripted:{name}", limits=run_limits)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("limit", "error_class"),
    [
        ({"tokens": 5_000}, "token_cap"),
        ({"cost": Decimal("0.005")}, "cost_cap"),
        ({"tool_calls": 8}, "tool_call_cap"),
        ({"wall_time": timedelta(milliseconds=600)}, "time_cap"),
    ],
    ids=["tokens", "cost", "tool calls", "time"],
)
async def test_what_a_sub_agent_uses_is_its_callers(
    client: Client, sqlite: Database, bench: Bench, limit: dict[str, Any], error_class: str
) -> None:
    """Two runs below, the lowest is ended by the budget of the top one, which then ends with it; each counts what is below it."""

    async def slowly(request: Any) -> ModelResponse:
        del request
        await asyncio.sleep(0.2 if "wall_time" in limit else 0)
        return LOOK

    leaf = agent_of("leaf", bench.look)
    middle = agent_of("middle", sub_agent(leaf))
    models = Cast(
        test=Script(asks("middle", "m"), DONE), middle=Script(asks("leaf", "l"), DONE), leaf=Script(*[slowly] * 99)
    )
    limits = Limits(no_progress=None, **limit)
    async with stack(client, sqlite, sub_agent(middle), model=models, limits=limits, prices=PRICES) as engine:
        top = await engine.ended(await engine.start())
        assert (top.status, top.outcome, top.error_class) == ("failed", "budget", error_class)
        below = await engine.child(top, "m")
        lowest = await engine.child(below, "l")
        assert (lowest.outcome, lowest.error_class) == ("budget", error_class)
        assert "Nothing is left for this sub-agent. The run of 'agent'" in lowest.reason
        assert (below.status, below.error_class) == ("failed", error_class)  # it was not asked any more
        result = (await engine.results(top))["m"]
        assert isinstance(result, Failure)
        assert (result.kind, result.fields["error_class"]) == ("agent_failed", error_class)
        if error_class != "time_cap":
            assert lowest.step == 3
            async with sqlite.read() as conn:
                used = [await subtree_usage.of(conn, each.id) for each in (top, below, lowest)]
            calls = 6  # two in each of three responses
            assert used == [
                SubtreeUsage(tokens=4_000, cost_micros=4_000, tool_calls=calls + 1),
                SubtreeUsage(tokens=3_000, cost_micros=3_000, tool_calls=calls),
                SubtreeUsage(),
            ]


@pytest.mark.exhaustive
async def test_runs_at_once_exceed_a_budget_by_one_response_each(
    client: Client, database: Database, bench: Bench
) -> None:
    """Two sub-agents that ask at the same time find the same left: each gets that one response, and none another."""
    both = asyncio.Barrier(2)

    async def together(request: Any) -> ModelResponse:
        del request
        await asyncio.wait_for(both.wait(), 60)
        return LOOK

    step = spending(says(call("leaf", '{"task": "1"}', "l1"), call("leaf", '{"task": "2"}', "l2")))
    models = Cast(test=Script(step, DONE), leaf=Script(*[together] * 9))
    leaf = agent_of("leaf", bench.look)
    async with stack(client, database, sub_agent(leaf), model=models, limits=Limits(tokens=1_500)) as engine:
        top = await engine.ended(await engine.start())
        children = [await engine.ended(await engine.child(top, each)) for each in ("l1", "l2")]
        assert [each.step for each in children] == [1, 1]
        assert {each.outcome for each in (top, *children)} == {"budget"}
        async with database.read() as conn:
            assert (await subtree_usage.of(conn, top.id)).tokens == 2_000


@pytest.mark.exhaustive
async def test_the_run_whose_budget_it_is_asks_for_more(client: Client, sqlite: Database, bench: Bench) -> None:
    """The sub-agent ends; its caller asks in its own name, with the usage of all of them, and continues when it gets more."""
    models = Cast(test=ListModel(asks("leaf", "l"), DONE), leaf=Script(LOOK, LOOK, DONE))
    leaf = agent_of("leaf", bench.look, tokens=99_999, when_used_up="ask")
    limits = Limits(tokens=2_000, when_used_up="ask")
    async with stack(client, sqlite, sub_agent(leaf), model=models, limits=limits) as engine:
        run = await engine.start()
        request = await engine.request(run, tool="extend_budget")
        assert (request.path, json.loads(request.input)["used"]) == ("agent", "2,000 tokens")
        assert (await engine.child(run, "l")).outcome == "budget"
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).outcome == "completed"


@pytest.mark.exhaustive
async def test_steps_are_each_runs_own(client: Client, sqlite: Database, bench: Bench) -> None:
    """A sub-agent's step limit is its own, whatever its caller's is."""
    models = Cast(test=Script(asks("leaf", "l"), DONE), leaf=Script(LOOK, LOOK, LOOK, DONE))
    async with stack(
        client, sqlite, sub_agent(agent_of("leaf", bench.look)), model=models, limits=Limits(steps=2)
    ) as engine:
        run = await engine.ended(await engine.start())
        assert (run.outcome, run.step, (await engine.child(run, "l")).step) == ("completed", 2, 4)


def test_a_limit_of_cost_needs_the_prices_of_sub_agents() -> None:
    """Also of a deeply nested one: the app is refused at declaration, and the error names the agent and its model."""
    leaf = Agent(name="leaf", instructions="", toolkit=Toolkit.of(), model="openai:leaf")
    middle = agent_of("middle", sub_agent(leaf))
    top = Agent(
        name="top",
        instructions="",
        toolkit=Toolkit.of(sub_agent(middle)),
        model="scripted:test",
        limits=Limits(cost=Decimal(1)),
    )
    with pytest.raises(ConfigurationError, match="what 'openai:leaf' costs, which its sub-agent 'leaf' uses"):
        App(agents=[top], prices=PRICES)
    App(agents=[top], prices={**PRICES, "openai:leaf": PRICES["scripted:leaf"]})
