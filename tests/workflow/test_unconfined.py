"""Calls of tools whose processes this machine can't confine: no rule and no grant lets them run unasked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import delete
from support.engine.stack import ListModel, call, says, stack
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Policy, Rule
from turngate.approvals_api.policy.grants import ungrantable
from turngate.domain.errors import ConflictError
from turngate.domain.tools.tool import ProcessConfinement, Tool
from turngate.store.database import Database
from turngate.store.tables import published_policies
from turngate.toolkits.coding import coding_toolkit

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


@pytest.mark.parametrize("is_known", [True, False])
async def test_i6_an_edit_that_turns_the_network_on_is_asked_about_again(
    client: Client, sqlite: Database, *, is_known: bool
) -> None:
    """I6: under a rule that asks on the same terms. The API takes no such edit; where it knows no tool, the door stops it."""
    asks = Policy(rule=[Rule(name="each", verdict="ask", tools=["bash"], risk="high", grace_seconds=0)])
    bash, command = coding_toolkit().find("bash"), '{"command": "true"}'
    model = ListModel(says("I will.", call("bash", command, "c1")), says("Done."))
    async with stack(client, sqlite, bash, model=model, policy=asks) as engine:
        request = await engine.request(run := await engine.start())
        edited = '{"command": "true", "network": true}'
        if is_known:
            with pytest.raises(ConflictError, match="of the edited call, it gets the network"):
                await engine.decide(request, "edit", args=edited)
        else:
            async with sqlite.write() as conn:
                await conn.execute(delete(published_policies))
            await engine.decide(request, "edit", args=edited)
        again = await engine.request(run)
        assert (again.input, again.rule) == (edited, "each")
        assert "of the edited one: it gets the network" in again.reason
        assert again.process_confinement is not None
        assert again.process_confinement.network_asked
        await engine.decide(again, "reject")
        assert (await engine.ended(run)).status == "completed"


async def test_a_confined_call_runs_as_its_rule_says(client: Client, sqlite: Database, bench: Bench) -> None:
    """Where its processes are confined, an allow rule allows it."""
    model = ListModel(says("I will pay.", call("pay", json.dumps({"cents": 5}), "c1")), says("Done."))
    tool = starting_processes(bench.pay, confined=True)
    async with stack(client, sqlite, tool, model=model, policy=ALLOWED) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        assert await engine.requests_of(run) == []
        assert bench.paid == [5]
