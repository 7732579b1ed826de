"""Calls of tools whose processes this machine can't confine: no rule and no grant lets them run unasked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.engine import ListModel, call, says, stack
from support.tools import Bench
from temporalio.client import Client

from turngate import Policy, Rule
from turngate.approvals_api.policy.grants import ungrantable
from turngate.domain.tools.tool import ProcessConfinement, Tool
from turngate.store.database import Database
from turngate.store.requests import requests

ALLOWED = Policy(rule=[Rule(tools=["pay"], verdict="allow", name="pay freely")])


def starting_processes(tool: Tool, *, confined: bool) -> Tool:
    return replace(
        tool, ask=False, confinement=lambda _params: ProcessConfinement(confined=confined, text="Where it runs.")
    )


@pytest.mark.parametrize("policy", [ALLOWED, Policy()], ids=["a rule allows it", "the tool asks for nothing"])
async def test_i13_an_unconfined_call_asks_whatever_allows_it(
    client: Client, sqlite: Database, bench: Bench, policy: Policy
) -> None:
    """I13: it asks, at high risk, and says where its processes would run; the approval lets it run."""
    model = ListModel(says("I will pay.", call("pay", json.dumps({"cents": 5}), "c1")), says("Done."))
    tool = starting_processes(bench.pay, confined=False)
    async with stack(client, sqlite, tool, model=model, policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert (request.rule, request.risk, request.reason) == ("unconfined", "high", "Where it runs.")
        assert request.process_confinement == ProcessConfinement(confined=False, text="Where it runs.")
        assert bench.paid == []
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]


async def test_i13_a_call_that_asks_for_the_network_asks_a_person(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I13: no rule lets a call have the network that its tool does not declare; the approval does."""
    model = ListModel(says("I will pay.", call("pay", json.dumps({"cents": 5}), "c1")), says("Done."))
    with_network = ProcessConfinement(confined=True, text="It has the network.", network_asked=True)
    tool = replace(bench.pay, ask=False, confinement=lambda params: with_network if params.cents == 5 else None)
    async with stack(client, sqlite, tool, model=model, policy=ALLOWED) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert (request.rule, request.risk, request.process_confinement) == ("network", "high", with_network)
        assert "needs a person each time" in (ungrantable(request) or "")
        assert bench.paid == []
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]


async def test_a_confined_call_runs_as_its_rule_says(client: Client, sqlite: Database, bench: Bench) -> None:
    """Where its processes are confined, an allow rule allows it."""
    model = ListModel(says("I will pay.", call("pay", json.dumps({"cents": 5}), "c1")), says("Done."))
    tool = starting_processes(bench.pay, confined=True)
    async with stack(client, sqlite, tool, model=model, policy=ALLOWED) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        async with sqlite.read() as conn:
            assert await requests.of_run(conn, run.id) == []
        assert bench.paid == [5]
