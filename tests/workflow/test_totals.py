"""A rule's total on the real engine: exact over many runs, and beyond it a person is asked."""

from __future__ import annotations

import asyncio
import json

from support.engine.stack import ListModel, Script, Stack, call, says, stack, until
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Limits, Policy, Rule
from turngate.domain.policy.totals import UNITS, Total
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database
from turngate.store.policy import totals
from turngate.store.requests import requests
from turngate.store.runs import runs

TOTAL = Total(at="/cents", most=10_000, per="week")
SMALL = Policy(rule=[Rule(name="small", verdict="allow", tools=["pay"], total=TOTAL)])


async def counted(database: Database) -> int:
    """What the rule's meter says."""
    meter = TOTAL.meter("rule:small")
    async with database.read() as conn:
        sums = await totals.sums(conn, [meter])
    return sums[meter].used // UNITS if sums else 0


async def pending(engine: Stack, run: runs.Run) -> list[requests.Request]:
    return [each for each in await engine.requests_of(run) if each.status == "pending"]


async def test_i2_calls_at_once_never_exceed_a_total(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2: four runs make four calls of 1,900 each: five fit into 10,000 and run, a person is asked about eleven.

    Every payment is in the sum, and nothing else; one that a person approves then is not.
    """
    payments = says(*(call("pay", '{"cents": 1900}', f"p{number}") for number in range(4)))
    model = Script(payments, says("Done."))
    async with stack(client, sqlite, bench.pay, model=model, policy=SMALL, limits=Limits(concurrency=4)) as engine:
        started = await asyncio.gather(*(engine.start() for _ in range(4)))

        async def all_asked() -> list[list[requests.Request]] | None:
            waiting = [await pending(engine, each) for each in started]
            return waiting if sum(map(len, waiting)) + len(bench.paid) == 16 else None

        waiting = await until(all_asked, "an answer to each call")
        assert bench.paid == [1_900] * 5
        assert await counted(sqlite) == 5 * 1_900
        request = next(each for of_run in waiting for each in of_run)
        assert (request.rule, request.ask_terms.grantable) == ("small", True)
        assert "allows a total of 10000 at /cents per week (UTC). With this call it would be more" in request.reason
        await engine.decide(request, "approve")
        await until(lambda: _paid(bench, 6), "the approved payment")
        assert await counted(sqlite) == 5 * 1_900
        for run in started:
            if await pending(engine, run):  # one whose calls all ran ends by itself
                await engine.interrupt(run)
            await engine.ended(run)
    assert bench.paid == [1_900] * 6


async def _paid(bench: Bench, number: int) -> bool:
    return len(bench.paid) == number


async def test_i2_beyond_a_total_an_unattended_run_is_refused(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2: where no one attends a run, and nothing is to wait, the call that no longer fits is denied; the agent reads why."""
    model = ListModel(
        says(*(call("pay", json.dumps({"cents": each}), f"p{each}") for each in (6_000, 4_001))), says("Done.")
    )
    async with stack(client, sqlite, bench.pay, model=model, policy=SMALL, limits=Limits(concurrency=1)) as engine:
        run = await engine.start(unattended="deny")
        await engine.ended(run)
        results = await engine.results(run)
        assert results["p6000"] == Ok(value={"paid": 6_000})
        assert isinstance(results["p4001"], Failure)
        assert results["p4001"].kind == "denied"
        assert (bench.paid, await counted(sqlite)) == ([6_000], 6_000)
        types = [each.type for each in await engine.events(run)]
        assert types.count("total.counted") == 1
