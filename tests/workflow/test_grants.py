"""Grants in use: counted at the door, revocable until then, audited once."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from support.engine.stack import OPERATOR, Cast, ListModel, Script, Stack, call, says, stack, until
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Agent, Limits, Policy, Rule, Toolkit, sub_agent
from turngate.approvals_api.policy import grants as grant_operations
from turngate.approvals_api.policy import rules as policy_rules
from turngate.approvals_api.principal import Principal
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.identity import ALL_SCOPES
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.tools.results import Failure, Ok
from turngate.store import tables
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.policy import grants
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.wire.orders import GrantOrder

ADMIN = Principal(name="root", via="session", scopes=ALL_SCOPES, role="admin")
ANY_AMOUNT = GrantPattern(tool="pay", open=["cents"])


def pays(*cents: int) -> ModelResponse:
    return says(*(call("pay", json.dumps({"cents": each}), f"p{each}") for each in cents))


def wanted(**options: Any) -> WantedGrant:
    return WantedGrant(**{"pattern": ANY_AMOUNT, "scope": "everyone", **options})


async def granted(engine: Stack, **options: Any) -> str:
    target = {name: options.pop(name) for name in ("run_id", "agent") if name in options}
    order = GrantOrder(grant=wanted(**options), **target)
    grant = await grant_operations.create(engine.services, ADMIN, order)
    return grant.id


async def pending_requests(engine: Stack, run: runs.Run, count: int) -> list[requests.Request]:
    """The run's pending requests, once there are so many."""

    async def look() -> list[requests.Request] | None:
        async with engine.database.read() as conn:
            pending = [each for each in await requests.of_run(conn, run.id) if each.status == "pending"]
        return pending if len(pending) >= count else None

    return await until(look, f"{count} pending requests")


async def types(engine: Stack, run_id: str) -> list[str]:
    async with engine.database.read() as conn:
        assert await events.chain_break(conn, run_id) is None
        return [each.type for each in await events.after(conn, 0, run_id=run_id)]


@pytest.mark.exhaustive
async def test_a_grant_given_with_a_decision_lets_the_next_calls_through_until_it_is_used_up(
    client: Client, database: Database, bench: Bench
) -> None:
    """Approve with a grant of two: the next two run without asking, the one after them asks; each is audited once."""
    model = ListModel(pays(1), pays(2), pays(3), pays(4), says("Done."))
    async with stack(client, database, bench.pay, model=model) as engine:
        run = await engine.start()
        first = await engine.request(run)
        await engine.decide(first, "approve", grant=wanted(scope="run", max_uses=2))
        fourth = (await pending_requests(engine, run, 1))[0]
        assert bench.paid == [1, 2, 3]
        assert json.loads(fourth.input) == {"cents": 4}
        await engine.decide(fourth, "reject")
        await engine.ended(run)
        async with database.read() as conn:
            (grant,) = await grants.page(conn, limit=9)
            used = await grants.uses_of(conn, grant.id)
        assert (grant.request_id, grant.run_id, grant.created_by, grant.uses) == (first.id, run.id, OPERATOR.name, 2)
        assert sorted(each.tool_call_id for each in used) == ["p2", "p3"]
        event_types = await types(engine, run.id)
        assert (
            event_types.count("grant.created"),
            event_types.count("grant.used"),
            event_types.count("request.opened"),
        ) == (1, 2, 2)
        assert await types(engine, events.SYSTEM) == []


async def test_i2_of_four_calls_at_once_exactly_as_many_pass_as_a_grant_says(
    client: Client, database: Database, bench: Bench
) -> None:
    """I2: four parallel calls of one step, a grant of two: two run, two are asked after all, and none runs twice."""
    model = ListModel(pays(1, 2, 3, 4), says("Done."))
    async with stack(client, database, bench.pay, model=model, limits=Limits(concurrency=4)) as engine:
        grant_id = await granted(engine, max_uses=2)
        run = await engine.start()
        left = await pending_requests(engine, run, 2)
        assert len(left) == 2
        await until(lambda: _length(bench.paid, 2), "two payments")
        for each in left:
            assert f"grant:{grant_id}" in each.reason
            await engine.decide(each, "approve")
        await engine.ended(run)
        assert sorted(bench.paid) == [1, 2, 3, 4]
        event_types = await types(engine, run.id)
        assert (event_types.count("grant.used"), event_types.count("request.opened")) == (2, 2)
        assert await types(engine, events.SYSTEM) == ["grant.created"]
        async with database.read() as conn:
            stored = await grants.get(conn, grant_id)
        assert stored is not None
        assert (stored.uses, stored.max_uses) == (2, 2)


async def _length(items: list[int], wanted_length: int) -> bool:
    return len(items) == wanted_length


ASK = '[[rule]]\nname = "careful"\nverdict = "ask"\ntools = ["pay"]\n'
DENY = '[[rule]]\nname = "closed"\nverdict = "deny"\ntools = ["pay"]\nreason = "No more."\n'


@pytest.mark.parametrize("what", ["revoked", "expired", "asked by a rule", "denied by a rule"])
async def test_i2_a_grant_that_ended_before_the_door_lets_nothing_through(
    client: Client, sqlite: Database, bench: Bench, what: str
) -> None:
    """I2: allowed when it was planned, and revoked, expired or overruled while it waited for its turn: it does not run."""
    model = ListModel(says(call("slow", "{}", "s"), call("pay", '{"cents": 5}', "p")), says("Done."))
    async with stack(client, sqlite, bench.slow, bench.pay, model=model, limits=Limits(concurrency=1)) as engine:
        grant_id = await granted(engine)
        run = await engine.start()
        await bench.started.wait()
        match what:
            case "revoked":
                await grant_operations.revoke(engine.services, OPERATOR, grant_id)
            case "expired":
                async with sqlite.write() as conn:
                    past = as_text(now() - timedelta(seconds=1))
                    await conn.execute(update(tables.grants).values(expires_at=past))
            case _:
                source = ASK if what.startswith("asked") else DENY
                await policy_rules.store_rules(engine.services, ADMIN, source=source)
        bench.release.set()
        if what == "denied by a rule":
            await engine.ended(run)
            result = (await engine.results(run))["p"]
            assert isinstance(result, Failure)
            assert (result.kind, bench.paid) == ("denied", [])
        else:
            request = await engine.request(run)
            assert bench.paid == []
            await engine.decide(request, "approve")
            await engine.ended(run)
            assert (await engine.results(run))["p"] == Ok(value={"paid": 5})
        assert "grant.used" not in await types(engine, run.id)
        expected = ["grant.created", "grant.revoked"] if what == "revoked" else ["grant.created"]
        assert await types(engine, events.SYSTEM) == (expected if "rule" not in what else [*expected, "policy.changed"])


async def test_a_grant_never_beats_a_rule_of_the_policy(client: Client, sqlite: Database, bench: Bench) -> None:
    """Under a deny rule for large sums and an ask rule for middling ones, only the small one passes on the grant."""
    policy = Policy(
        rule=[
            Rule(name="large", verdict="deny", tools=["pay"], args=[{"at": "/cents", "op": "gt", "value": 100}]),
            Rule(name="middling", verdict="ask", tools=["pay"], args=[{"at": "/cents", "op": "gt", "value": 10}]),
        ]
    )
    model = ListModel(pays(5, 50, 500), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model, policy=policy) as engine:
        await granted(engine, max_uses=9)
        run = await engine.start()
        (request,) = await pending_requests(engine, run, 1)
        assert (request.rule, json.loads(request.input)) == ("middling", {"cents": 50})
        await engine.decide(request, "reject")
        await engine.ended(run)
        results = await engine.results(run)
        assert bench.paid == [5]
        assert {name: getattr(each, "kind", "ok") for name, each in results.items()} == {
            "p5": "ok",
            "p50": "rejected",
            "p500": "denied",
        }


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scope", "asks"), [("run", True), ("agent", False), ("everyone", False)])
async def test_a_grant_of_a_run_does_not_reach_its_sub_agents(
    client: Client, sqlite: Database, bench: Bench, scope: Any, asks: bool
) -> None:
    """A sub-agent's run is a run of its own: what was granted to the run above it asks there; to the agent, it does not."""
    helper = Agent(name="helper", instructions="Pay.", toolkit=Toolkit.of(bench.pay), model="scripted:helper")
    cast = Cast(
        test=Script(says(call("helper", '{"task": "Pay."}', "d"), call("slow", "{}", "s")), says("Done.")),
        helper=Script(pays(5), says("Paid.")),
    )
    policy = Policy(rule=[Rule(name="helpers", verdict="allow", tools=["helper"])])
    async with stack(client, sqlite, sub_agent(helper), bench.slow, model=cast, policy=policy, working=False) as engine:
        run = await engine.start()
        target = {"run": {"run_id": run.id}, "agent": {"agent": "helper"}, "everyone": {}}[scope]
        await granted(engine, scope=scope, **target)
        async with engine.worker():
            child = await engine.child(run, "d")
            if asks:
                await engine.decide(await engine.request(child), "approve")
            bench.release.set()
            await engine.ended(run)
            assert bench.paid == [5]
            assert ("request.opened" in await types(engine, child.id)) is asks
