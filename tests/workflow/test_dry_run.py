"""Dry runs: a run repeated from its record. Nothing runs, no one is asked, and what differs is closed as a divergence."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import func, select, update
from support.engine.stack import Cast, ListModel, Script, Stack, call, person, says, stack
from support.engine.tools import Amount, Bench, Name
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import (
    Agent,
    Deny,
    HookedCall,
    Hooks,
    Policy,
    Rule,
    RunScope,
    ToolFailure,
    Toolkit,
    interaction_tool,
    provider_tool,
    sub_agent,
    tool,
)
from turngate.activities.run_tool import RunTool
from turngate.approvals_api.runs import dry_run, retry, send_message
from turngate.approvals_api.runs import fork as fork_run
from turngate.approvals_api.runs.views import run_detail
from turngate.domain.contract import RunToolInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.errors import ConflictError
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.results import Failure, Ok
from turngate.notifications.items import item_of
from turngate.store import tables
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.toolkits.control_calls import finish, hand_off, wait_until
from turngate.wire.calls import CallView
from turngate.wire.orders import DryRunOrder, ForkOrder, MessageOrder

PERSON = person("ada")
OPEN = '[[rule]]\nname = "open"\nverdict = "allow"\ntools = ["*"]\n'
SHUT = '[[rule]]\nname = "shut"\nverdict = "deny"\ntools = ["*"]\n'


async def replayed(engine: Stack, run: runs.Run, **options: Any) -> runs.Run:
    """Do a dry run of the run, and wait for its end."""
    started = await dry_run.start_dry_run(engine.services, PERSON, run.id, DryRunOrder(**options))
    return await engine.ended(started)


async def views_of(engine: Stack, run: runs.Run) -> list[CallView]:
    async with engine.database.read() as conn:
        return [each for step in (await run_detail(conn, run.id)).steps for each in step.calls]


async def traces(engine: Stack, run: runs.Run) -> int:
    """How many requests, executions and runs below the run there are."""
    async with engine.database.read() as conn:
        counts = [len(await requests.of_run(conn, run.id)), len(await engine.executions(run))]
        below = select(func.count()).select_from(tables.runs).where(tables.runs.c.parent_run_id == run.id)
        return sum(counts) + int((await conn.execute(below)).scalar_one())


def pay(cents: int) -> Any:
    return call("pay", f'{{"cents": {cents}}}')


def look(name: str) -> Any:
    return call("look", f'{{"name": "{name}"}}')


def results_of(views: list[CallView]) -> list[Any]:
    return [each.result.value if isinstance(each.result, Ok) else each.result.kind for each in views if each.result]


class Noting(Hooks):
    """Writes down what it is called for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def before_tool(self, scope: RunScope, call: HookedCall) -> Deny | None:
        self.calls.append(f"before {call.tool_name}")
        return None

    async def after_tool(self, scope: RunScope, call: HookedCall, result: Any) -> None:
        self.calls.append(f"after {call.tool_name}")

    async def after_step(self, scope: RunScope, results: Any) -> None:
        self.calls.append("step")


async def test_i2_a_dry_run_reads_what_was_recorded_and_nothing_runs(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I2: no handler, hook, preview or precondition is called and no one is asked; the model reads what it read then."""
    noted: list[str] = []

    def previewed(_params: Any, _workspace: Any) -> Preview:
        noted.append("preview")
        return Preview(kind="text", text="p")

    def presented(_params: Any, _result: Any) -> tuple[()]:
        noted.append("present")
        return ()

    @tool(
        effect="once",
        ask=True,
        preview=previewed,
        precondition=lambda: noted.append("precondition") or 1,
        present=presented,
    )
    async def send(params: Amount) -> dict[str, int]:
        """Send an amount."""
        noted.append("send")
        return {"sent": params.cents}

    hooks = Noting()
    model = Script(
        says("I pay.", pay(5), look("x"), call("send", '{"cents": 1}')), says("And again.", pay(7)), says("All done.")
    )
    async with stack(client, sqlite, bench.pay, bench.look, send, model=model, hooks=[hooks]) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run, tool="send"), "approve")
        await engine.decide(await engine.request(run, tool="pay"), "edit", args='{"cents": 4}')
        await engine.decide(await engine.request(run), "reject", message="no")
        assert (await engine.ended(run)).status == "completed"
        await engine.closed(run)  # its last hook has run
        before = [*noted, *hooks.calls]
        first_requests = model.seen.copy()
        again = await replayed(engine, run)
        assert (again.status, again.is_dry, again.conversation_id == run.conversation_id) == ("completed", True, False)
        assert [*noted, *hooks.calls] == before
        assert (bench.paid, bench.looked, await traces(engine, again)) == ([4], ["x"], 0)
        then, now = await views_of(engine, run), await views_of(engine, again)
        assert [each.recorded_call_id for each in now] == [each.tool_call_id for each in then]
        assert [each.result for each in now] == [each.result for each in then]
        assert [each.edited_input for each in now] == ['{"cents": 4}', None, None, None]
        assert [(each.verdict.answer, each.verdict.rule) for each in now if each.verdict] == [
            ("ask", "tool:ask"), ("allow", "tool:ask"), ("ask", "tool:ask"), ("ask", "tool:ask"),
        ]  # fmt: skip
        assert {each.disposition for each in now} == {"closed"}
        assert [each.messages for each in model.seen[len(first_requests) :]] == [
            each.messages for each in first_requests
        ]
        assert is_reconciled(await engine.history(again))
        replayed_events = await engine.events(again)
        assert replayed_events[0].payload["replay_of"] == {"run_id": run.id, "step": 0}
        async with sqlite.read() as conn:
            assert [await item_of(conn, each) for each in replayed_events] == [None] * len(
                replayed_events
            )  # no channel gets it
            assert any([await item_of(conn, each) for each in await engine.events(run)])


async def test_i2_what_differs_is_closed_as_a_divergence(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2: other arguments, a call too many, a tool that was not called: the model reads so; never run, even if allowed."""
    answers = iter(["first", "second"])

    @tool(name="look", effect="read", ask=False)
    async def look_up(params: Name) -> str:
        """Look something up."""
        return next(answers)

    then = Script(says(look("x"), look("x"), pay(5)), says("Done."))
    now = Script(
        says(pay(6), look("x"), call("look", '{ "name" : "x" }'), call("nope", "{}"), call("look", "{}")),
        says(look("x"), pay(5)),
        says("Done, differently."),
    )
    async with stack(client, sqlite, bench.pay, look_up, model=Cast(test=then, now=now)) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        await engine.ended(run)
        again = await replayed(engine, run, model="scripted:now", policy=OPEN)
        views = await views_of(engine, again)
        assert results_of(views) == [
            "diverged", {"value": "first"}, {"value": "second"}, "unknown_tool", "input_validation_error",
            "diverged", {"paid": 5},
        ]  # fmt: skip
        assert [each.recorded_call_id is None for each in views] == [True, False, False, True, True, True, False]
        assert {each.verdict.rule for each in views if each.verdict} == {"open"}
        assert "not executed" in now.seen[1].messages[-1].results[0].result.reason
        assert (bench.paid, await traces(engine, again)) == ([5], 0)


@pytest.mark.parametrize("disposition", ["run", "ask"])
async def test_i2_redemption_refuses_every_call_of_a_dry_run(
    client: Client, sqlite: Database, bench: Bench, disposition: str
) -> None:
    """I2: if a call of a dry run reaches the door, allowed or approved, its handler does not start."""
    model = Script(says(pay(5)), says("Done."))
    rules = Policy(rule=[Rule(name="open", verdict="allow", tools=["pay"])]) if disposition == "run" else None
    tampered = "a run becomes a dry one"
    async with stack(client, sqlite, bench.pay, model=model, policy=rules, working=False, tampered=tampered) as engine:
        run = await engine.start()
        async with engine.worker():
            if disposition == "ask":
                await engine.decide(await engine.request(run), "approve", decision_id="d1")
            await engine.ended(run)
        assert bench.paid == [5]
        (call_id,) = await engine.results(run)
        async with sqlite.write() as conn:
            await conn.execute(tables.executions.delete())
            await conn.execute(update(tables.calls).values(result=None))
            await conn.execute(update(tables.runs).values(replay_of_run_id="run_other", status="running"))
        order = RunToolInput(run_id=run.id, call=call_id, decision_id="d1" if disposition == "ask" else None)
        assert (await ActivityEnvironment().run(RunTool(engine.engine).run_tool, order)).state == "settled"
        result = (await engine.results(run))[call_id]
        assert isinstance(result, Failure)
        assert (result.kind, bench.paid, await engine.executions(run)) == ("diverged", [5], {})


class Question(BaseModel):
    text: str


class Answer(BaseModel):
    answer: str


@pytest.mark.exhaustive
async def test_every_kind_of_tool_is_answered_from_the_record(client: Client, sqlite: Database, bench: Bench) -> None:
    """A question, a sub-agent, a wait of an hour and a hand-over come from the record; `finish` ends the replay, too."""
    ask = interaction_tool(name="ask_person", description="Ask.", params=Question, answer=Answer)
    search = provider_tool(name="search", description="Search.", provider={"scripted": {"type": "search"}})
    helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(bench.pay), model="scripted:helper")
    other = Agent(name="other", instructions="End.", toolkit=Toolkit.of(finish), model="scripted:other")
    script = Script(
        says(
            call("ask_person", '{"text": "?"}'),
            call("helper", '{"task": "Pay."}'),
            call("wait_until", '{"seconds": 0.1}'),
        ),
        says(call("hand_off", '{"agent": "other"}')),
        says("never"),
    )
    ends = Script(says("?"), says("?"), says(call("finish", '{"answer": "It is 42."}')))
    cast = Cast(test=script, helper=Script(says(pay(5)), says("Paid.")), other=ends)
    tools = (ask, search, sub_agent(helper), wait_until, hand_off("other"))
    rules = Policy(rule=[Rule(name="search", verdict="allow", tools=["search"])])
    async with stack(client, sqlite, *tools, model=cast, agents=[other], policy=rules) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run, kind="question"), "respond", args='{"answer": "yes"}')
        await engine.decide(await engine.request(await engine.started_below(run)), "approve")
        assert (await engine.ended(run)).status == "completed"
        assert any(each.name == "search" for each in script.seen[0].tools)
        again = await replayed(engine, run)
        then, now = await views_of(engine, run), await views_of(engine, again)
        assert [each.result for each in now] == [each.result for each in then]
        assert (again.status, again.agent, again.model) == ("completed", "other", "scripted:other")
        async with sqlite.read() as conn:
            assert (await run_detail(conn, again.id)).final_text == "It is 42."
        assert (bench.paid, await traces(engine, again)) == ([5], 0)
        assert all(each.name != "search" for each in script.seen[-1].tools)
        shut = await replayed(engine, run, policy=SHUT, step=1)
        assert [each.recorded_call_id for each in await views_of(engine, shut)] == [
            each.tool_call_id for each in then[3:]
        ]


@pytest.mark.exhaustive
async def test_a_fork_continues_with_the_agent_of_its_step(client: Client, sqlite: Database, bench: Bench) -> None:
    """After step 1 it is the agent that began; after the hand-off in step 2 the one that took over."""
    other = Agent(name="other", instructions="End.", toolkit=Toolkit.of(bench.look), model="scripted:other")
    script = Script(says(look("x")), says(call("hand_off", '{"agent": "other"}')))
    cast = Cast(test=script, other=Script(says("Ended.")))
    async with stack(client, sqlite, bench.look, hand_off("other"), model=cast, agents=[other]) as engine:
        run = await engine.ended(await engine.start())
        forks = [
            await fork_run.fork(engine.services, PERSON, run.id, ForkOrder(text="again", step=step)) for step in (1, 2)
        ]
        assert [(each.agent, each.model) for each in forks] == [("agent", "scripted:test"), ("other", "scripted:other")]
        for each in forks:
            assert (await engine.ended(each)).status == "completed"


class Broken(ToolFailure):
    """It broke."""

    reason: str


@pytest.mark.exhaustive
async def test_a_replay_ends_as_the_run_did_or_when_it_only_diverges(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """A recorded failure that ended the run ends the replay; three responses with divergences alone end it, too."""

    @tool(effect="once", ask=False, failures=[Broken], failure_mode="raise")
    async def fails() -> str:
        """Fail."""
        bench.looked.append("failed")
        raise Broken(reason="broken")

    cast = Cast(test=Script(says(call("fails", "{}"))), lost=Script(*(says(pay(cents)) for cents in range(9))))
    async with stack(client, sqlite, fails, bench.pay, model=cast) as engine:
        run = await engine.ended(await engine.start())
        again = await replayed(engine, run)
        assert (again.status, again.error_class, again.reason) == (run.status, "tool_raised", run.reason)
        assert bench.looked == ["failed"]
        lost = await replayed(engine, run, model="scripted:lost")
        assert (lost.status, lost.error_class, lost.step) == ("failed", "malformed", 3)
        assert "diverged (1)" in lost.reason
        assert bench.paid == []


@pytest.mark.exhaustive
async def test_a_dry_run_cannot_be_continued(client: Client, sqlite: Database, bench: Bench) -> None:
    """It takes no retry, message or dry run of itself; a fork of it is a normal run, whose calls are gated."""
    model = ListModel(says(pay(5)), says("Done."), says(pay(5)), says("Done."), says(pay(9)), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start()
        live = await replayed(engine, run)  # of a live run: what has no result yet answers nothing
        await engine.interrupt(run)
        await engine.ended(run)
        del live
        again = await dry_run.start_dry_run(engine.services, PERSON, run.id, DryRunOrder(), idempotency_key="k")
        twice = await dry_run.start_dry_run(engine.services, PERSON, run.id, DryRunOrder(), idempotency_key="k")
        assert again.id == twice.id
        await engine.ended(again)
        for refused in (
            send_message.send(engine.services, PERSON, again.id, MessageOrder(input="more")),
            dry_run.start_dry_run(engine.services, PERSON, again.id, DryRunOrder()),
        ):
            with pytest.raises(ConflictError, match="is a dry run"):
                await refused
        await engine.change(tables.runs, {"id": again.id}, status="failed")
        with pytest.raises(ConflictError, match="is a dry run"):
            await retry.retry(engine.services, PERSON, again.id)
        fork = await fork_run.fork(engine.services, PERSON, again.id, ForkOrder(text="for real", step=1))
        assert not fork.is_dry
        await engine.decide(await engine.request(fork), "approve")
        await engine.ended(fork)
        assert bench.paid == [9]
