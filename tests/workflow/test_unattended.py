"""Unattended runs: what would be asked is refused, parked, or asked where a rule says so."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.engine.stack import STARTER, Cast, Clock, ListModel, Script, call, person, says, stack
from support.engine.tools import Amount, Bench
from temporalio.client import Client

from turngate import Agent, Limits, Policy, Rule, Toolkit, interaction_tool, sub_agent
from turngate.approvals_api.runs import fork as fork_run
from turngate.domain.errors import InvalidInputError
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database
from turngate.wire.orders import ForkOrder

ASKING = Rule(name="money", verdict="ask", tools=["pay"])
ask = interaction_tool(name="ask", description="Ask.", params=Amount, answer=Amount)


def doing(*calls: tuple[str, str]) -> ListModel:
    return ListModel(says(*(call(name, raw, f"c{place}") for place, (name, raw) in enumerate(calls))), says("Done."))


PAY, LOOK, QUESTION = ("pay", '{"cents": 5}'), ("look", '{"name": "x"}'), ("ask", '{"cents": 1}')


@pytest.mark.parametrize(
    ("mode", "policy", "says_what"),
    [
        pytest.param("deny", None, ['verdict = "allow", tools = ["pay"]'], id="deny: the tool's own ask"),
        pytest.param("deny", ASKING, ["rule 'money' asks", "Change rule 'money' to allow it"], id="deny: a rule's ask"),
        pytest.param("rules", None, ['verdict = "allow", tools = ["pay"]'], id="rules: what no rule asks for"),
    ],
)
async def test_i2_what_would_be_asked_is_refused_and_the_refusal_says_what_would_allow_it(
    client: Client, sqlite: Database, bench: Bench, mode: Any, policy: Rule | None, says_what: list[str]
) -> None:
    """I2: no request is opened and nothing runs; what needs no asking runs; the model reads which rule would let it."""
    rules = None if policy is None else Policy(rule=[policy])
    async with stack(client, sqlite, bench.pay, bench.look, ask, model=doing(PAY, LOOK), policy=rules) as engine:
        run = await engine.start(unattended=mode)
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        refused = results["c0"]
        assert isinstance(refused, Failure)
        assert (refused.kind, refused.fields["rule"]) == ("denied", "unattended")
        assert all(words in refused.reason for words in ["No one attends this run", *says_what]), refused.reason
        assert results["c1"] == Ok(value={"value": "seen x"})
        assert (bench.paid, bench.looked) == ([], ["x"])
        assert await engine.requests_of(run) == []
        closed = await engine.event(run, "call.closed")
        assert closed.payload["rule"] == "unattended"


async def test_a_question_without_anyone_to_answer_it(client: Client, sqlite: Database) -> None:
    """``deny`` refuses a question, saying that no rule could allow it; ``rules`` asks it, for only a person can answer."""
    async with stack(client, sqlite, ask, model=Script(says(call("ask", QUESTION[1], "q")), says("Done."))) as engine:
        run = await engine.start(unattended="deny")
        await engine.ended(run)
        refused = (await engine.results(run))["q"]
        assert refused.kind == "denied"
        assert "Nothing but a person may answer a question." in refused.reason
        run = await engine.start(unattended="rules")
        request = await engine.request(run, kind="question")
        await engine.decide(request, "respond", args='{"cents": 3}')
        await engine.ended(run)
        assert (await engine.results(run))["q"] == Ok(value={"cents": 3})


async def test_rules_asks_where_a_rule_says_so(client: Client, sqlite: Database, bench: Bench) -> None:
    """``rules``: what a rule asks for waits on that rule's terms, the clock among them, and runs when it is approved."""
    policy = Policy(rule=[ASKING.model_copy(update={"expires_after_seconds": 3600, "quorum": 2})])
    async with stack(client, sqlite, bench.pay, model=doing(PAY), policy=policy) as engine:
        run = await engine.start(unattended="rules")
        request = await engine.request(run)
        assert (request.rule, request.parked_at) == ("money", None)
        assert request.expires_at is not None
        for name in ("ann", "bob"):
            await engine.decide(request, "approve", by=person(name))
        await engine.ended(run)
        assert bench.paid == [5]


@pytest.mark.exhaustive
async def test_what_a_person_approved_runs_though_its_rule_asks_no_more(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """``rules``: an approval still counts when the rule that asked for it is gone, and so does an edit."""
    for verb, content, paid in (("approve", {}, 5), ("edit", {"args": '{"cents": 9}'}, 9)):
        policy = Policy(rule=[ASKING])
        async with stack(client, sqlite, bench.pay, model=doing(PAY), policy=policy, working=False) as engine:
            async with engine.worker():
                run = await engine.start(unattended="rules")
                request = await engine.request(run)
                await engine.idle(run)
            engine.engine = replace(engine.engine, policy=Policy())
            async with engine.worker():
                assert (await engine.decide(request, verb, **content)).status == "approved"
                assert (await engine.ended(run)).status == "completed"
            assert bench.paid.pop() == paid


@pytest.mark.parametrize("tool", [PAY, QUESTION], ids=["a call", "a question"])
async def test_what_is_parked_waits_without_a_clock(
    clock: Clock, sqlite: Database, bench: Bench, tool: tuple[str, str]
) -> None:
    """``park``: neither the rule's expiry nor the agent's nor a rung of the ladder comes; a month later it is answered."""
    rung = {"after_seconds": 60, "do": "remind"}
    rule = {"name": "money", "verdict": "ask", "tools": ["*"], "expires_after_seconds": 120, "ladder": [rung]}
    policy = Policy(rule=[Rule.model_validate(rule)])
    limits = Limits(request_expiry=timedelta(minutes=5))
    async with stack(clock, sqlite, bench.pay, ask, model=doing(tool), policy=policy, limits=limits) as engine:
        run = await engine.start(unattended="park")
        request = await engine.request(run)
        assert (request.parked_at is None, request.expires_at) == (False, None)
        await clock.forward(run, days=31)
        assert [event.type for event in await engine.events(run) if event.type.startswith("request.")] == [
            "request.opened"
        ]
        if tool == PAY:
            await engine.decide(request, "approve")
        else:
            await engine.decide(request, "respond", args='{"cents": 3}')
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == ([5] if tool == PAY else [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["deny", "park"])
async def test_sub_agents_are_as_unattended_as_the_run_above(
    client: Client, sqlite: Database, bench: Bench, mode: Any
) -> None:
    """What a sub-agent would ask is refused or parked as its parent's run says."""
    helper = Agent(name="helper", instructions="", toolkit=Toolkit.of(bench.pay), model="scripted:helper")
    parent = Script(says(call("helper", '{"task": "Pay."}', "d")), says("Done."))
    child = Script(says(call("pay", '{"cents": 5}', "p")), says("That was it."))
    # The sub-agent itself is a call that would be asked for, so a rule allows it.
    policy = Policy(rule=[Rule(name="helpers", verdict="allow", tools=["helper"])])
    cast = Cast(test=parent, helper=child)
    async with stack(client, sqlite, sub_agent(helper), model=cast, policy=policy) as engine:
        run = await engine.start(unattended=mode)
        below = await engine.child(run, "d")
        assert (below.attended, below.unattended_asks) == (False, mode)
        if mode == "park":
            request = await engine.request(below)
            assert (request.parked_at is None, request.expires_at) == (False, None)
            await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == ([5] if mode == "park" else [])
        result = (await engine.results(below))["p"]
        assert isinstance(result, Ok) or result.fields["rule"] == "unattended"


@pytest.mark.exhaustive
async def test_a_fork_is_as_unattended_as_its_run(client: Client, sqlite: Database, bench: Bench) -> None:
    """A fork inherits who attends it; what it asks is refused as it was there."""
    model = Script(says(call("look", LOOK[1])), says(call("pay", PAY[1])), says("Done."))
    async with stack(client, sqlite, bench.pay, bench.look, model=model) as engine:
        run = await engine.start(unattended="deny")
        await engine.ended(run)
        fork = await fork_run.fork(engine.services, STARTER, run.id, ForkOrder(text="again", step=1))
        assert (fork.attended, fork.unattended_asks) == (False, "deny")
        assert (await engine.ended(fork)).status == "completed"
        kinds = [each.kind for each in (await engine.results(fork)).values() if isinstance(each, Failure)]
        assert kinds == ["denied"]
        assert bench.paid == []


async def test_a_rule_that_is_stored_during_an_unattended_run_refuses_at_the_door(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """A call that was allowed when it was planned, and would be asked for by now, is refused: there is no one to ask."""
    policy = Policy(rule=[Rule(name="ok", verdict="allow", tools=["pay", "slow"])])
    model = ListModel(says(call("slow", "{}", "s"), call("pay", PAY[1], "p")), says("Done."))
    limits = Limits(concurrency=1)
    async with stack(client, sqlite, bench.slow, bench.pay, model=model, policy=policy, limits=limits) as engine:
        run = await engine.start(unattended="deny")
        await bench.started.wait()
        await engine.store_rules('[[rule]]\nname = "closed"\nverdict = "ask"\ntools = ["pay"]\n')
        bench.release.set()
        await engine.ended(run)
        results = await engine.results(run)
        assert results["s"] == Ok(value={"value": "whole"})
        assert (results["p"].kind, results["p"].fields["rule"]) == ("denied", "unattended")
        assert "rule 'closed' asks" in results["p"].reason
        assert bench.paid == []


async def test_an_edit_of_what_is_asked_may_become_anything_that_no_rule_denies(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """``rules``: an edit is judged as the edited call: a rule that denies it refuses it; being unattended does not."""
    over = [{"at": "/cents", "op": "gt", "value": 100}]
    rules = [
        {"name": "large", "verdict": "ask", "tools": ["pay"], "args": over},
        {"name": "huge", "verdict": "deny", "tools": ["pay"], "args": [{"at": "/cents", "op": "gt", "value": 9_000}]},
    ]
    policy = Policy.model_validate({"rule": rules})
    large = ("pay", json.dumps({"cents": 5_000}))
    async with stack(client, sqlite, bench.pay, model=doing(large), policy=policy) as engine:
        run = await engine.start(unattended="rules")
        request = await engine.request(run)
        with pytest.raises(InvalidInputError, match="huge"):
            await engine.decide(request, "edit", args='{"cents": 9001}')
        await engine.decide(request, "edit", args='{"cents": 50}')  # of which only the tool itself asks
        await engine.ended(run)
        assert bench.paid == [50]
