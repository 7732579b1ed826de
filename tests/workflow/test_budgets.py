"""Budgets: a run that has used one up ends with a clear reason and can be retried with more, or asks a person for more."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from support.engine.stack import ListModel, call, person, says, stack
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Agent, App, ConfigurationError, Limits, Policy, Price, Rule, Toolkit, declare_tool
from turngate.approvals_api.recovery import recover
from turngate.approvals_api.runs.budgets import time_words
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import Usage
from turngate.domain.errors import ForbiddenError, InvalidInputError
from turngate.domain.tools.results import Failure
from turngate.store.database import Database
from turngate.toolkits.control_calls import wait_until

LOOK = says("Looking.", call("look", '{"name": "a"}', "a"), call("look", '{"name": "b"}', "b"))


@pytest.mark.parametrize(
    ("limits", "error_class", "reason"),
    [
        (Limits(tool_calls=3), "tool_call_cap", "made 4 of the 3 tool calls"),
        (Limits(tokens=2_500), "token_cap", "used 3,000 of the 2,500 tokens"),
        (Limits(wall_time=timedelta(microseconds=1)), "time_cap", "all the time it has"),
        (Limits(deadline=timedelta(microseconds=1)), "time_cap", "its deadline is over"),
    ],
    ids=["tool calls", "tokens", "time", "deadline"],
)
async def test_a_run_ends_when_a_budget_is_used_up(
    client: Client, database: Database, bench: Bench, limits: Limits, error_class: str, reason: str
) -> None:
    """It ends before the next model request, its calls answered; what is left of a budget is used to its end."""
    model = ListModel(LOOK.model_copy(update={"usage": Usage(input_tokens=1_000, output_tokens=500)}))
    async with stack(client, database, bench.look, model=model, limits=limits) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class) == ("failed", error_class)
        assert reason in run.reason
        assert len(model.seen) == (0 if error_class == "time_cap" else 2)
        assert is_reconciled(await engine.history(run))


# Budgets that ask

PRICES = {"scripted:test": Price(input=Decimal(3), output=Decimal(15))}
TOKENS = [(1_500, 1_000), (3_000, 2_000), (3_000, 3_000), (4_500, 4_000)]
EDITED = '{"budget": "tool_calls", "used": "", "limit": "", "extend_by": 100}'


def spends() -> ListModel:
    """Two calls and 1,500 tokens, or 0.0105, in each of three responses; then the answer."""
    looks = LOOK.model_copy(update={"usage": Usage(input_tokens=1_000, output_tokens=500)})
    return ListModel(looks, looks, looks, says("Done."))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"steps": 2}, [("steps", "2 steps", "2 steps", "2")]),
        ({"tool_calls": 3}, [("tool_calls", f"{n} tool calls", f"{m} tool calls", "3") for n, m in ((4, 3), (6, 6))]),
        ({"tokens": 1_000}, [("tokens", f"{n:,} tokens", f"{m:,} tokens", "1000") for n, m in TOKENS]),
        ({"cost": Decimal("0.02")}, [("cost", "0.021", "0.02", "0.02")]),
    ],
    ids=["steps", "tool calls", "tokens", "cost"],
)
async def test_a_budget_asks_to_be_extended(
    client: Client, sqlite: Database, bench: Bench, limits: dict[str, Any], expected: list[tuple[str, ...]]
) -> None:
    """I6: each used-up budget is one request, in no message; an approval grants the same amount again, and the run continues."""
    model = spends()
    more = Limits(when_used_up="ask", **limits)
    async with stack(client, sqlite, bench.look, model=model, limits=more, prices=PRICES) as engine:
        run = await engine.start()
        for budget, used, limit, extend_by in expected:
            request = await engine.request(run, tool="extend_budget")
            wants = json.loads(request.input)
            assert wants == {"budget": budget, "used": used, "limit": limit, "extend_by": extend_by}
            await engine.decide(request, "approve")
        ended = await engine.ended(run)
        assert (ended.status, ended.tokens_used, ended.cost_micros) == ("completed", 4_500, 31_500)
        assert [each.budget for each in ended.granted] == [each[0] for each in expected]
        history = await engine.history(run)
        assert is_reconciled(history)
        assert all("extend" not in call.tool_name for message in history for call in message.calls)
        assert len(model.seen) == 4


@pytest.mark.exhaustive
async def test_a_person_says_how_much_more(client: Client, sqlite: Database, bench: Bench) -> None:
    """An edit gives another amount; one that is no amount extends nothing, and is asked about again."""
    limits = Limits(tool_calls=1, when_used_up="ask")
    async with stack(client, sqlite, bench.look, model=spends(), limits=limits) as engine:
        run = await engine.start()
        request = await engine.request(run, tool="extend_budget")
        for wrong in (EDITED.replace("100", "-1"), EDITED.replace("tool_calls", "wishes")):
            with pytest.raises(InvalidInputError):
                await engine.decide(request, "edit", args=wrong)
        # What only the tool's own type can tell.
        await engine.decide(request, "edit", args=EDITED.replace("100", '"NaN"'))
        request = await engine.request(run, tool="extend_budget")
        assert "do not fit the tool" in request.reason
        with pytest.raises(InvalidInputError, match="takes: approve, edit, reject"):
            await engine.decide(request, "respond", args='{"budget": "tool_calls", "extended_by": "all"}')
        await engine.decide(request, "edit", args=EDITED)
        ended = await engine.ended(run)
        assert (ended.status, [int(each.by) for each in ended.granted]) == ("completed", [100])


@pytest.mark.parametrize("verb", ["reject", "expire"])
async def test_a_refused_extension_ends_the_run(client: Client, sqlite: Database, bench: Bench, verb: str) -> None:
    """The run ends with the budget's own class, and says who refused more of it."""
    expiry = timedelta(seconds=1) if verb == "expire" else None
    limits = Limits(tokens=1_000, when_used_up="ask", request_expiry=expiry)
    async with stack(client, sqlite, bench.look, model=spends(), limits=limits) as engine:
        run = await engine.start()
        request = await engine.request(run, tool="extend_budget", pending=verb == "reject")
        if verb == "reject":
            await engine.decide(request, "reject", message="too dear")
        ended = await engine.ended(run)
        assert (ended.status, ended.error_class, ended.granted) == ("failed", "token_cap", ())
        assert ended.reason.endswith(f"refused: {'rejected by operator' if verb == 'reject' else 'expired'}.")
        refused = (await engine.results(run))[request.tool_call_id]
        assert isinstance(refused, Failure)
        assert ("too dear" in refused.reason) == (verb == "reject")
        assert is_reconciled(await engine.history(run))


@pytest.mark.exhaustive
async def test_rules_judge_an_extension(client: Client, sqlite: Database, bench: Bench) -> None:
    """By rule: one denies it, which ends the run; one allows it; one says who may approve it, as of any call."""
    limits = Limits(tool_calls=1, when_used_up="ask")

    def ruled(verdict: str, **terms: Any) -> Policy:
        return Policy(rule=[Rule(name="budgets", verdict=verdict, tools=["extend_budget"], **terms)])

    async with stack(client, sqlite, bench.look, model=spends(), limits=limits, policy=ruled("deny")) as engine:
        ended = await engine.ended(await engine.start())
        assert (ended.error_class, "budgets" in ended.reason) == ("tool_call_cap", True)
    async with stack(client, sqlite, bench.look, model=spends(), limits=limits, policy=ruled("allow")) as engine:
        ended = await engine.ended(await engine.start())
        assert (ended.status, len(ended.granted)) == ("completed", 6)
    async with stack(
        client, sqlite, bench.look, model=spends(), limits=limits, policy=ruled("ask", roles=["admin"])
    ) as engine:
        run = await engine.start()
        request = await engine.request(run, tool="extend_budget")
        with pytest.raises(ForbiddenError):
            await engine.decide(request, "approve")
        await engine.decide(request, "edit", args=EDITED, by=person("boss", "admin"))
        assert (await engine.ended(run)).status == "completed"


async def test_i1_an_interrupt_ends_what_waits_for_more(client: Client, sqlite: Database, bench: Bench) -> None:
    """I1: the engine's own call is closed with the run, and its request cancelled."""
    limits = Limits(tool_calls=1, when_used_up="ask")
    async with stack(client, sqlite, bench.look, model=spends(), limits=limits) as engine:
        run = await engine.start()
        request = await engine.request(run, tool="extend_budget")
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        closed = (await engine.results(run))[request.tool_call_id]
        assert isinstance(closed, Failure)
        assert closed.kind == "interrupted"
        assert is_reconciled(await engine.history(run))


@pytest.mark.parametrize(
    ("limits", "status", "left"),
    [
        (Limits(wall_time=timedelta(hours=1)), "completed", r"At \S+ \S+ UTC it had .+ left for its own work\. .+"),
        (Limits(deadline=timedelta(hours=1)), "failed", r"Its deadline is at \S+ \S+ UTC\."),
    ],
    ids=["wall_time", "deadline"],
)
async def test_waits_use_up_no_working_time(
    client: Client, sqlite: Database, bench: Bench, limits: Limits, status: str, left: str
) -> None:
    """A run that waits for a person, or on its own timer, has all of its time left; one with a deadline has not.

    Both say so, with times.
    """
    model = ListModel(
        says(call("look", '{"name": "x"}', "x"), call("wait_until", '{"seconds": 1}', "w")), says("Done.")
    )
    policy = Policy(rule=[Rule(name="look", verdict="ask", tools=["look"])])
    async with stack(client, sqlite, bench.look, wait_until, model=model, limits=limits, policy=policy) as engine:
        request = await engine.request(run := await engine.start())
        async with engine.database.read() as conn:
            assert re.fullmatch(left, await time_words(conn, run) or "")
        await engine.age(run, hours=2)
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == status


async def test_an_extension_of_time_counts_from_its_approval(client: Client, sqlite: Database, bench: Bench) -> None:
    """However long a person takes, the run gets the whole granted time after the approval; then it asks again, and says so."""
    limits = Limits(wall_time=timedelta(minutes=1), when_used_up="ask")
    async with stack(
        client, sqlite, bench.look, model=ListModel(LOOK, LOOK, says("Done.")), limits=limits, working=False
    ) as engine:
        run = await engine.start()
        await engine.age(run, minutes=2)
        async with engine.worker():
            request = await engine.request(run, tool="extend_budget")
            assert json.loads(request.input)["extend_by"] == "60"
            hour = json.dumps({**json.loads(request.input), "extend_by": "3600"})
            await engine.decide(request, "edit", args=hour)
            assert (await engine.ended(run)).status == "completed"


async def test_i2_a_model_cannot_extend_its_budget(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2: to a model the engine's tool is one it does not have, also when policy would allow it."""
    tries = says(call("extend_budget", EDITED, "x"))
    rule = Rule(name="budgets", verdict="allow", tools=["extend_budget"])
    async with stack(
        client, sqlite, bench.look, model=ListModel(tries, says("Done.")), policy=Policy(rule=[rule])
    ) as engine:
        ended = await engine.ended(run := await engine.start())
        assert (ended.status, ended.granted) == ("completed", ())
        result = (await engine.results(run))["x"]
        assert isinstance(result, Failure)
        assert result.kind == "unknown_tool"


@pytest.mark.parametrize("decided", [False, True], ids=["pending", "decided"])
async def test_i5_a_lost_run_still_asks_for_more(client: Client, sqlite: Database, bench: Bench, decided: bool) -> None:
    """I5: a recovered run waits at the same request; one approved meanwhile is carried out, once."""
    limits = Limits(steps=2, when_used_up="ask")
    async with stack(client, sqlite, bench.look, model=spends(), limits=limits) as engine:
        run = await engine.start()
        request = await engine.request(run, tool="extend_budget")
        await engine.workflow(run).terminate("lost")
        if decided:  # recorded, and the workflow that would have carried it out is gone
            await engine.record(request, "approve", decision_id="d", by="boss")
        report = await recover.recover(engine.services, None, by="cli:me")
        assert [each.outcome for each in report] == ["recovered"]
        if not decided:
            await engine.decide(request, "approve")
        ended = await engine.ended(run)
        assert (ended.status, [int(each.by) for each in ended.granted]) == ("completed", [2])


@pytest.mark.parametrize(
    ("agent", "app", "error"),
    [
        ({"limits": Limits(cost=Decimal(1))}, {}, "no one says what 'openai:x' costs"),
        ({"toolkit": ["extend_budget"]}, {}, "the engine's own"),
    ],
    ids=["no price", "reserved name"],
)
def test_what_cannot_work_is_refused_when_declared(agent: dict[str, Any], app: dict[str, Any], error: str) -> None:
    """A limit of cost needs a price, and the engine's own tool keeps its name."""
    names = agent.pop("toolkit", [])
    kit = Toolkit.of(*(declare_tool(name=name, description="x") for name in names))
    with pytest.raises(ConfigurationError, match=error):
        App(agents=[Agent(name="a", instructions="", toolkit=kit, model="openai:x", **agent)], **app)
