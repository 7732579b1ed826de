"""Preconditions: what a call depends on is looked at when a person is asked, and again before it runs.

Changed: the person is asked again, and their first yes is not redeemed (I3). Unchanged: it runs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.engine.stack import ListModel, Stack, call, says, stack, until
from support.engine.tools import Amount
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Hooks, Policy, Preview, Rule, ToolContext, tool
from turngate import worker as composition
from turngate.activities.engine import author_code
from turngate.activities.run_tool import RunTool
from turngate.domain.contract import RunToolInput, RunToolResult
from turngate.domain.errors import ConflictError
from turngate.domain.tools.results import Ok
from turngate.domain.tools.tool import Tool
from turngate.runtime.workflow_code import build_replayer
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.workflows.agent_turn import AgentTurn

PAY, OTHER = call("pay", '{"cents": 5}', "p"), call("pay", '{"cents": 6}', "q")


@pytest.fixture(autouse=True)
def log() -> Iterator[list[Any]]:
    """What is logged, unrendered: structlog's default draws tracebacks with every local, which takes long."""
    with capture_logs() as logs:
        yield logs


@dataclass
class World:
    """What payments depend on: a value, or a function of a payment's parameters that returns one.

    An exception is raised; with ``asyncio.sleep`` the look hangs.
    """

    balance: Any = 100
    accounts: dict[int, Any] = field(default_factory=dict)
    """What payments of so many cents depend on, in place of the balance."""
    paid: list[int] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)
    preconditions: list[str | None] = field(default_factory=list)
    """The precondition, as the handler's context has it."""

    async def look(self, params: Amount, ctx: ToolContext) -> Any:
        assert ctx.idempotency_key
        self.looks.append(params.cents)
        value = self.accounts.get(params.cents, self.balance)
        if isinstance(value, BaseException):
            raise value
        if value is asyncio.sleep:
            await asyncio.sleep(60)
        return value(params) if callable(value) else value

    def show(self, params: Amount, _workspace: object) -> Preview:
        return Preview(kind="text", text=f"{params.cents} of {self.accounts.get(params.cents, self.balance)}")

    def tool(self, *, ask: bool = True, task_queue: str | None = None) -> Tool:
        @tool(
            effect="once",
            ask=ask,
            task_queue=task_queue,
            precondition=self.look,
            preview=self.show,
        )
        async def pay(params: Amount, ctx: ToolContext) -> dict[str, int]:
            """Pay."""
            self.preconditions.append(ctx.precondition)
            self.paid.append(params.cents)
            return {"paid": params.cents}

        return pay


def paying(*calls: Any) -> ListModel:
    return ListModel(says("I pay.", *(calls or (PAY,))), says("Done."))


async def test_what_is_unchanged_runs(client: Client, database: Database) -> None:
    """An unchanged precondition is checked twice and asked about once; no request replaces another.

    So it is with values that JSON or a database has trouble with: each equals itself, or the request would be repeated forever.
    """
    odd = ["file\udc80", "a\x00b", "ünïcode", float("nan"), 10**30, None]
    values: dict[int, Any] = {5: {"b": [1, {"c": "ü"}], "a": None}, 6: odd}
    world = World(accounts=values)
    async with stack(client, database, world.tool(), model=paying(PAY, OTHER)) as engine:
        run = await engine.start()
        first, second = [await engine.request_about(run, each) for each in ("p", "q")]
        values[5] = {"a": None, "b": [1, {"c": "ü"}]}  # the same JSON value in another order
        for request in (first, second):
            await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert (sorted(world.paid), sorted(world.looks)) == ([5, 6], [5, 5, 6, 6])
        assert '{"a": null, "b": [1, {"c": "ü"}]}' in world.preconditions
        assert [each.status for each in await engine.requests_of(run)] == ["approved"] * 2


@pytest.mark.unencrypted  # it reads Temporal's history itself
async def test_i3_i4_i11_what_changed_is_asked_about_again(client: Client, sqlite: Database) -> None:
    """I3, I6: the first approval runs nothing; the second request says what changed, and its approval runs the call once.

    Stray orders with the first decision start nothing, before and after the second one was made. The call holds up no other of
    its step. I4: the first request stays decided, and who repeats the decision gets the same answer. I11: the history replays.
    """
    world = World(100)
    async with stack(client, sqlite, world.tool(), model=paying(PAY, OTHER)) as engine:
        run = await engine.start()
        first, other = [await engine.request_about(run, each) for each in ("p", "q")]
        world.accounts[5] = 3
        await engine.decide(first, "approve", decision_id="first")
        second = await engine.request(run, first, other)
        assert (world.paid, await engine.executions(run)) == ([], {})
        assert second.reason.startswith("operator approved this, but what it depends on changed before it could run")
        assert "it was 100, and is now 3" in second.reason
        assert (first.preview, second.preview) == ("5 of 100", "5 of 3")
        assert (second.digest, second.input, second.agent_words) == (first.digest, first.input, "I pay.")
        await engine.decide(other, "approve")
        await engine.event(run, "execution.finished")
        assert world.paid == [6], "a call that is asked about again holds up its neighbour"
        assert (await engine.decide(first, "approve", decision_id="first")).status == "approved"
        with pytest.raises(ConflictError):
            await engine.decide(first, "reject", decision_id="e")
        world.accounts[5] = 100  # as it was when the first approval was given
        assert (await ask_directly(engine, run)).state == "asks"
        assert world.paid == [6], "a stray order redeemed the first approval"
        world.accounts[5] = 3
        await engine.decide(second, "approve", decision_id="second")
        assert (await engine.ended(run)).status == "completed"
        assert (await ask_directly(engine, run)).state == "settled"
        assert world.paid == [6, 5]
        execution = (await engine.executions(run))["p"]
        assert (execution.decision_id, execution.attempts) == ("second", 1)
        opened = [event.payload for event in await engine.events(run) if event.type == "request.opened"]
        assert [each.get("instead_of") for each in opened] == [None, None, first.id]
        await engine.closed(run)
        history = await engine.workflow(run).fetch_history()
    replayer = build_replayer(AgentTurn)
    await replayer.replay_workflow(history)


async def test_i12_the_second_no_closes_the_call(client: Client, sqlite: Database) -> None:
    """I12: what a person says to the second request is the call's result; the first yes counts for nothing.

    An interrupt cancels a second request that still waits: every request that was issued is closed with its run.
    """
    world, calls = World(1), [call("pay", f'{{"cents": {cents}}}', f"c{cents}") for cents in (5, 6, 7)]
    async with stack(client, sqlite, world.tool(), model=paying(*calls)) as engine:
        run = await engine.start()
        firsts = [await engine.request_about(run, each.tool_call_id) for each in calls]
        world.balance = 2
        for request in firsts:
            await engine.decide(request, "approve")
        seconds = [await engine.request(run, each, call_id=each.tool_call_id) for each in firsts]
        await engine.decide(seconds[0], "reject", message="Not any more.")
        await engine.decide(seconds[1], "respond", message="Not any more.")
        await until(lambda: are_settled(engine, run, "c5", "c6"), "results of two calls")
        await engine.idle(run)
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        results = await engine.results(run)
        assert (results["c5"].kind, isinstance(results["c6"], Ok)) == ("rejected", True)
        assert all("Not any more." in str(results[each]) for each in ("c5", "c6"))
        assert results["c7"].fields["started"] is False
        statuses = {each.id: each.status for each in await engine.requests_of(run)}
        assert [statuses[each.id] for each in seconds] == ["rejected", "responded", "cancelled"]
        assert [statuses[each.id] for each in firsts] == ["approved"] * 3
        assert (world.paid, await engine.executions(run)) == ([], {})


async def are_settled(engine: Stack, run: runs.Run, *call_ids: str) -> bool:
    results = await engine.results(run)
    return all(results[each] is not None for each in call_ids)


@pytest.mark.exhaustive
async def test_an_edited_call_depends_on_other_things(client: Client, database: Database) -> None:
    """What the person saw must still be so when an edited call starts; if not, they see what the edited call depends on."""
    accounts = {5: "full", 7: "empty"}
    world = World(lambda params: accounts[params.cents])
    async with stack(client, database, world.tool(), model=paying()) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "edit", args='{"cents": 7}')
        await engine.ended(run)
        assert (world.paid, world.preconditions, len(await engine.requests_of(run))) == ([7], ['"empty"'], 1)

        world.paid.clear()
        engine.engine.models.model = paying()  # type: ignore[attr-defined]
        changing = iter(["full", "half full", "overdrawn", "overdrawn"])
        world.balance = lambda _: next(changing)
        run = await engine.start()
        first = await engine.request(run)
        await engine.decide(first, "edit", args='{"cents": 7}')
        second = await engine.request(run, first)
        assert second.input == '{"cents": 7}'
        assert 'it was "full", and is now "overdrawn"' in second.reason
        await engine.decide(second, "approve")
        await engine.ended(run)
        assert world.paid == [7]
        result = (await engine.history(run))[2].results[0]
        assert result.edited_input == '{"cents": 7}'


async def test_a_call_that_policy_allows_is_not_looked_at(client: Client, sqlite: Database) -> None:
    """No one saw the call, so nothing can have changed since; a hook beside it makes no difference."""
    for hooks in ((), (Hooks(),)):
        world = World(RuntimeError("never looked"))
        async with stack(client, sqlite, world.tool(ask=False), model=paying(), hooks=hooks) as engine:
            await engine.ended(await engine.start())
            assert (world.paid, world.looks) == ([5], [])


# Looks that fail


async def test_i2_one_that_fails_before_the_call_runs_stops_it(
    client: Client, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: an error on the gate path means not executed; the model reads that, and the run continues.

    One that failed when a person was asked, and works when the call is to run, asks again: what was not known can't be known to
    be unchanged.
    """
    monkeypatch.setattr(author_code, "AUTHOR_SECONDS", 0.3)
    failing = {
        10: RuntimeError("secret"),
        11: SystemExit(1),
        12: asyncio.CancelledError(),
        13: asyncio.sleep,
        14: object(),
        15: {1: "a", "b": 2},
    }
    values: dict[int, Any] = {**dict.fromkeys(failing, 100), 5: RuntimeError("away")}
    world = World(accounts=values)
    calls = [PAY, *(call("pay", f'{{"cents": {cents}}}', str(cents)) for cents in failing)]
    async with stack(client, sqlite, world.tool(), model=paying(*calls)) as engine:
        run = await engine.start()
        waiting = [await engine.request_about(run, each.tool_call_id) for each in calls]
        values.update({**failing, 5: 100})
        for request in waiting:
            await engine.decide(request, "approve")
        second = await engine.request(run, waiting[0], call_id="p")
        assert "RuntimeError" in second.reason
        assert "away" not in second.reason
        assert "is now 100" in second.reason
        await engine.decide(second, "approve")
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        for cents in failing:
            result = results[str(cents)]
            assert (result.kind, "did not run" in result.reason) == ("execution_error", True), cents
            assert "secret" not in result.reason
        assert (world.paid, set(await engine.executions(run))) == ([5], {"p"})


@pytest.mark.exhaustive
async def test_a_long_value_is_shown_in_part(client: Client, sqlite: Database) -> None:
    """The reason stays readable however much the call depends on."""
    world = World("x" * 10_000)
    async with stack(client, sqlite, world.tool(), model=paying()) as engine:
        run = await engine.start()
        first = await engine.request(run)
        world.balance = "x" * 10_000 + "y"
        await engine.decide(first, "approve")
        assert len((await engine.request(run, first)).reason) < 1_000
        await engine.interrupt(run)
        await engine.ended(run)


# Time, crashes, replays


@pytest.mark.exhaustive
async def test_the_second_request_expires_by_itself(client: Client, sqlite: Database) -> None:
    """It waits as long as the first did, from when it was opened; expired, the call is closed and nothing has run."""
    policy = Policy(rule=[Rule(name="hurry", verdict="ask", tools=["pay"], expires_after_seconds=2)])
    world = World(1)
    async with stack(client, sqlite, world.tool(), model=paying(), policy=policy) as engine:
        run = await engine.start()
        first = await engine.request(run)
        world.balance = 2
        await engine.decide(first, "approve")
        second = await engine.request(run, first)
        assert second.expires_at is not None
        assert first.expires_at is not None
        assert second.expires_at > first.expires_at
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.results(run))["p"].kind == "expired"
        assert [each.status for each in await engine.requests_of(run)] == ["approved", "expired"]
        assert world.paid == []


async def ask_directly(engine: Stack, run: runs.Run) -> RunToolResult:
    """Run the activity as a worker does that is killed before it can answer: the workflow never gets the result."""
    order = RunToolInput(run_id=run.id, call="p")
    return await ActivityEnvironment().run(RunTool(engine.engine).run_tool, order)


@pytest.mark.parametrize("by_now", ["changed", "changed back", "unreadable"])
async def test_i5_a_worker_killed_after_asking_again_asks_once(client: Client, sqlite: Database, by_now: str) -> None:
    """I5, I3: a worker asks again and dies before the workflow gets the result, and the world changes again.

    The next attempt finds the request instead of asking again, and an operator decides it.
    """
    world = World(1)
    apart = f"apart-{secrets.token_hex(4)}"  # no worker polls there yet, so the test can be the worker that dies
    async with stack(client, sqlite, world.tool(task_queue=apart), model=paying()) as engine:
        run = await engine.start()
        first = await engine.request(run)
        await engine.decide(first, "approve", decision_id="first")
        world.balance = 2
        assert (await ask_directly(engine, run)).state == "asks"
        second = await engine.request(run, first)
        world.balance = {"changed": 3, "changed back": 1, "unreadable": RuntimeError("away")}[by_now]
        again = await ask_directly(engine, run)
        assert again.again is not None
        assert (again.state, again.again.request_id) == ("asks", second.id)
        assert (await engine.results(run))["p"] is None
        world.balance = 2
        await engine.decide(second, "approve", decision_id="second")
        async with composition.build_worker(
            engine.client, engine.engine, apart, composition.WorkerOptions(max_cached_workflows=0)
        ):
            assert (await engine.ended(run)).status == "completed"
        assert world.paid == [5]
        assert (await engine.executions(run))["p"].decision_id == "second"
        assert len(await engine.requests_of(run)) == 2
