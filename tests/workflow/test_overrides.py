"""A run with instructions, tools and a policy of its own: what it sees, what opens its gates, and who has it after it."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine.stack import Cast, Script, Stack, call, person, says, stack
from support.engine.tools import Bench
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from turngate import Agent, Policy, Rule, Toolkit, sub_agent
from turngate.activities.engine.overrides import OverridesCache
from turngate.approvals_api.policy import grants
from turngate.approvals_api.runs import fork as fork_run
from turngate.approvals_api.runs import retry, send_message
from turngate.approvals_api.runs.views import run_detail
from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.digest import keyed_sha256
from turngate.domain.errors import ForbiddenError, ModelError
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.tools.results import Failure, Ok
from turngate.store import tables
from turngate.store.database import Database
from turngate.store.runs import overrides, runs
from turngate.wire.orders import ForkOrder, GrantOrder, MessageOrder

ADMIN, PERSON = person("root", "admin"), person("ada")
PAY = says("Pay.", call("pay", '{"cents": 5}', "p"))
LOOK = says("Look.", call("look", '{"name": "x"}', "l"))
OPEN = '[[rule]]\nname = "open"\nverdict = "allow"\ntools = ["*"]\n'
SHUT = '[[rule]]\nname = "shut"\nverdict = "deny"\ntools = ["pay"]\nreason = "Not here."\n'


async def forked(
    engine: Stack, run: runs.Run, *, by: Any = ADMIN, agent: str | None = None, **changes: Any
) -> runs.Run:
    return await fork_run.fork(engine.services, by, run.id, ForkOrder(text="again", agent=agent, **changes))


async def first(engine: Stack, verb: str = "reject") -> runs.Run:
    """A completed run with one decided payment."""
    run = await engine.start()
    await engine.decide(await engine.request(run), verb)
    return await engine.ended(run)


async def verdicts(engine: Stack, run: runs.Run) -> list[tuple[str, str]]:
    async with engine.database.read() as conn:
        detail = await run_detail(conn, run.id)
    judged = [each.verdict for step in detail.steps for each in step.calls]
    return [("", "") if each is None else (each.answer, each.rule) for each in judged]


@pytest.mark.exhaustive
async def test_a_run_has_the_instructions_and_tools_it_was_given(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The model reads these instructions, is offered these tools, and reads that an omitted tool is unknown."""
    model = Script(PAY, says("Done."))
    async with stack(client, sqlite, bench.pay, bench.look, model=model) as engine:
        run = await first(engine)
        fork = await engine.ended(await forked(engine, run, by=PERSON, instructions="Pay no one.", tools=["look"]))
        request = model.seen[-1]
        assert request.messages[0].text == "Pay no one."
        assert [tool.name for tool in request.tools] == ["look"]
        (result,) = (await engine.results(fork)).values()
        assert isinstance(result, Failure)
        assert (result.kind, "The tools are: look." in result.reason) == ("unknown_tool", True)
        assert [tool.name for tool in model.seen[0].tools] == ["pay", "look"]
        none = await engine.ended(await forked(engine, run, by=PERSON, tools=[]))
        assert (model.seen[-1].tools, none.status) == ([], "completed")
        assert bench.paid == []


async def test_i2_an_overriding_policy_replaces_every_other_rule(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I2: it allows what the app denies and denies what a grant allows; no grant counts beside it. What runs is redeemed."""
    app_rules = Policy(rule=[Rule(name="never", verdict="deny", tools=["look"])])
    model = Script(PAY, LOOK, says("Done."))
    async with stack(client, sqlite, bench.pay, bench.look, model=model, policy=app_rules) as engine:
        run = await first(engine)
        wanted = WantedGrant(pattern=GrantPattern(tool="pay", open=["cents"]), scope="everyone")
        await grants.create(engine.services, ADMIN, GrantOrder(grant=wanted))
        await engine.store_rules('[[rule]]\nname = "stored"\nverdict = "ask"\ntools = ["look"]\n')

        opened = await engine.ended(await forked(engine, run, policy=OPEN))
        assert await verdicts(engine, opened) == [("allow", "open"), ("allow", "open")]
        assert (bench.paid, bench.looked) == ([5], ["x"])
        assert {each.state for each in (await engine.executions(opened)).values()} == {"succeeded"}

        shut = await engine.ended(await forked(engine, run, policy=SHUT))
        assert (await verdicts(engine, shut))[0] == ("deny", "shut")
        empty = await forked(engine, run, policy="")
        assert (await engine.request(empty)).rule == "tool:ask"  # the grant does not count
        await engine.interrupt(empty)
        assert bench.paid == [5]

        plain = await engine.ended(await forked(engine, shut, plain=True))
        assert [rule for _, rule in await verdicts(engine, plain)][1] == "never"
        assert bench.paid == [5, 5]  # by the grant


async def test_i2_a_run_policy_that_shuts_is_asked_again_at_the_door(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I2: the run's own policy is asked at redemption too: what it denies by then does not run, approved or not."""
    async with stack(client, sqlite, bench.pay, model=Script(PAY, says("Done."))) as engine:
        run = await engine.start()
        request = await engine.request(run)
        async with sqlite.write() as conn:
            digest = await overrides.keep(conn, RunOverrides(agent="agent", policy=SHUT))
        await engine.change(tables.runs, {"id": run.id}, world=digest)
        await engine.decide(request, "approve")
        await engine.ended(run)
        result = (await engine.results(run))["p"]
        assert isinstance(result, Failure)
        assert (result.kind, result.fields["rule"], bench.paid) == ("denied", "shut", [])


@pytest.mark.exhaustive
async def test_a_fork_a_retry_and_the_next_message_keep_the_overrides(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """They inherit them; a fork by someone who may not set a policy is refused, unless it drops the policy."""
    gone = ModelError("gone", error_class="authentication", retryable=False)

    async def fails_once(_request: Any) -> Any:
        if not failed:
            failed.append(True)
            raise gone
        return says("Done.")

    failed: list[bool] = [True]
    async with stack(client, sqlite, bench.pay, bench.look, model=Script(fails_once)) as engine:
        run = await engine.ended(await engine.start())
        failed.clear()
        fork = await engine.ended(await forked(engine, run, tools=["look"], policy=SHUT))
        assert (fork.status, fork.world is not None) == ("failed", True)
        again = await engine.ended(await retry.retry(engine.services, PERSON, fork.id))
        with pytest.raises(ForbiddenError, match="policy of its own"):
            await send_message.send(engine.services, PERSON, again.id, MessageOrder(input="more"))
        answered = await engine.ended(
            (await send_message.send(engine.services, ADMIN, again.id, MessageOrder(input="more"))).run
        )
        third = await engine.ended(await forked(engine, answered))
        assert {each.world for each in (again, answered, third)} == {fork.world}
        with pytest.raises(ForbiddenError, match="policy of its own"):
            await forked(engine, answered, by=PERSON)
        dropped = await engine.ended(await forked(engine, answered, by=PERSON, plain=True))
        assert dropped.world is None
        started = (await engine.events(fork))[0].payload
        assert set(started["own"]) == {"digest", "tools", "policy"}
        assert started["own"]["digest"] == keyed_sha256(fork.nonce, fork.world or "")


@pytest.mark.exhaustive
async def test_a_message_that_waits_for_the_next_run_keeps_the_world(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Queued while a fork waits for a person: the run that the workflow starts for it has what the fork has of its own."""
    async with stack(client, sqlite, bench.pay, bench.look, model=Script(PAY, says("Done."))) as engine:
        fork = await forked(engine, await first(engine), tools=["pay"], policy="")
        request = await engine.request(fork)
        with pytest.raises(ForbiddenError, match="policy of its own"):
            await send_message.send(
                engine.services, PERSON, fork.id, MessageOrder(input="and then?", while_running="queue")
            )
        await send_message.send(engine.services, ADMIN, fork.id, MessageOrder(input="and then?", while_running="queue"))
        await engine.decide(request, "reject")
        await engine.ended(fork)
        async with sqlite.read() as conn:
            follows = await runs.live_of_conversation(conn, fork.conversation_id)
        assert follows is not None
        assert (follows.world, follows.id != fork.id) == (fork.world, True)
        await engine.decide(await engine.request(follows), "reject")
        await engine.ended(follows)


@pytest.mark.exhaustive
async def test_sub_agents_live_under_the_policy_of_the_run_above_them(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The policy applies to all sub-agents; instructions and tools only to the agent that they were set for."""
    helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(bench.pay), model="scripted:helper")
    delegate = says("I delegate.", call("helper", '{"task": "Pay."}', "d"))
    cast = Cast(test=Script(delegate, says("Done.")), helper=Script(PAY, says("Paid.")))
    async with stack(client, sqlite, sub_agent(helper), model=cast) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(await engine.started_below(run)), "reject")
        await engine.ended(run)
        fork = await engine.ended(await forked(engine, run, instructions="Delegate.", policy=OPEN))
        assert all(isinstance(result, Ok) for result in (await engine.results(fork)).values())
        assert bench.paid == [5]
        assert cast.resolve("scripted:helper").seen[-1].messages[0].text == "Help."
        other = await engine.ended(await forked(engine, fork, agent="helper"))
        async with sqlite.read() as conn:
            assert await overrides.get(conn, other.world) == RunOverrides(agent="helper", policy=OPEN)


async def test_a_policy_that_cannot_be_read_asks_and_missing_or_changed_overrides_stop(
    sqlite: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Fail closed: rules of another release ask for everything; without its overrides it is unknown what a run may do."""
    async with sqlite.write() as conn:
        digest = await overrides.keep(conn, RunOverrides(agent="a", policy="[[rule]]\nname = 1"))
        assert await overrides.keep(conn, RunOverrides(agent="a")) is None

    def run(world: str | None) -> Any:
        return type("Run", (), {"id": "run_1", "world": world})()

    cache = OverridesCache()
    async with sqlite.read() as conn:
        own = await cache.of_run(conn, run(digest))
        assert own is not None
        assert own.policy is not None
        assert [(rule.verdict, rule.tools) for rule in own.policy.rule] == [("ask", ["*"])]
        assert "a run's own policy cannot be read" in caplog.text
        with pytest.raises(ApplicationError, match="does not have what a run has of its own"):
            await cache.of_run(conn, run("gone"))
        with pytest.raises(ApplicationError, match="was erased"):
            await cache.of_run(conn, run(""))
        assert await cache.of_run(conn, run(None)) is None
    for content in (RunOverrides(agent="a", policy=OPEN).model_dump_json(), "{", ""):
        async with sqlite.write() as conn:
            await conn.execute(tables.worlds.update().values(content=content))
            with pytest.raises(ApplicationError, match="not as it was stored"):
                await OverridesCache().of_run(conn, run(digest))
