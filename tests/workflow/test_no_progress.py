"""The no-progress breaker: repeated calls with repeated results get the model one nudge, and then end the run."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine.stack import STARTER, ListModel, Stack, call, says, stack, until
from support.engine.tools import Bench
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.testing import ActivityEnvironment

from turngate import Agent, Limits, NoProgress, Toolkit, sub_agent, tool
from turngate.activities.call_model import CallModel
from turngate.approvals_api.recovery import recover
from turngate.approvals_api.runs import retry, send_message
from turngate.domain.agents.no_progress import is_nudge
from turngate.domain.contract import AGENT_TURN, AgentTurnInput, CallModelInput, RunLimits
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.tools.tool import Tool
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.toolkits.control_calls import wait_until
from turngate.wire.orders import MessageOrder

A, DONE = says(call("look", '{"name": "a"}')), says("Done.")
EARLY = NoProgress(steps=1, after_nudge=1)


def counting() -> Tool:
    seen: list[int] = []

    @tool(effect="read", ask=False, name="poll")
    async def poll() -> int:
        """Answer another number each time."""
        seen.append(1)
        return len(seen)

    return poll


async def nudges(engine: Stack, run: runs.Run) -> list[int]:
    """The places of the nudges among the run's messages."""
    return [place for place, message in enumerate(await engine.history(run)) if is_nudge(message)]


async def test_a_call_that_spins_beside_others_ends_the_run(client: Client, sqlite: Database, bench: Bench) -> None:
    """One call again and again, beside one with other arguments each time: one nudge, and then the end."""
    lines = [says(call("look", '{"name": "a"}'), call("look", f'{{"name": "b{number}"}}')) for number in range(9)]
    model = ListModel(*lines)
    limits = Limits(no_progress=NoProgress(steps=2, calls=2, after_nudge=1))
    async with stack(client, sqlite, bench.look, model=model, limits=limits) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class, run.outcome, run.step) == ("failed", "no_progress", "no_progress", 4)
        assert len(model.seen) == 4
        assert is_reconciled(await engine.history(run))
        [place] = await nudges(engine, run)
        assert "the same call (look) 3 times" in (await engine.history(run))[place].text
        nudge = await engine.event(run, "run.nudged")
        assert (nudge.payload["step"], nudge.payload["repeats"]) == (3, 2)
        assert "one call of look 4 times" in run.reason


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("line", "no_progress"),
    [
        (says(call("poll", "{}")), EARLY),
        (says(call("wait_until", '{"seconds": 0}')), EARLY),
        (A, None),
    ],
    ids=["new results", "waits", "off"],
)
async def test_what_counts_as_progress(
    client: Client, sqlite: Database, bench: Bench, line: ModelResponse, no_progress: NoProgress | None
) -> None:
    """A poll with a new result and a wait count as progress; the limit can be off."""
    tools = (bench.look, counting(), wait_until)
    model, limits = ListModel(*[line] * 4, DONE), Limits(no_progress=no_progress)
    async with stack(client, sqlite, *tools, model=model, limits=limits) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.outcome, run.step) == ("completed", "completed", 5)
        assert await nudges(engine, run) == []


@pytest.mark.exhaustive
async def test_the_same_answer_of_a_sub_agent_is_no_progress(client: Client, sqlite: Database) -> None:
    """Its run is another one each time; what it answers is not."""
    helper = Agent(name="helper", instructions="", toolkit=Toolkit.of(), model="scripted:test")

    class Delegates(ListModel):
        async def generate(self, request: Any) -> ModelResponse:
            if request.messages[0].text == "Be brief.":
                return await super().generate(request)
            return says("I do not know.")

    model = Delegates(says(call("helper", '{"task": "Think."}')))
    async with stack(client, sqlite, sub_agent(helper), model=model, limits=Limits(no_progress=EARLY)) as engine:
        run = await engine.ended(await engine.start())
        assert (run.outcome, run.step) == ("no_progress", 3)


async def test_a_message_from_a_person_resets_the_count(client: Client, sqlite: Database, bench: Bench) -> None:
    """A message to the run counts as progress, whatever the calls are."""
    pay = says(call("pay", '{"cents": 1}'))
    model = ListModel(pay, pay, pay, DONE)
    async with stack(client, sqlite, bench.pay, model=model, limits=Limits(no_progress=EARLY)) as engine:
        run = await engine.start()
        for number in range(3):
            request = await engine.request(run)
            await send_message.send(
                engine.services, STARTER, run.id, MessageOrder(input="Continue.", while_running="inject")
            )
            await engine.decide(request, "approve")
            await until(lambda number=number: paid(bench, number + 1), "payment")
        ended = await engine.ended(run)
        assert (ended.outcome, await nudges(engine, ended)) == ("completed", [])


async def test_i5_a_retry_counts_a_step_once(client: Client, sqlite: Database, bench: Bench) -> None:
    """I5: if the activity runs again after its transaction, nothing is nudged twice, and it ends the run every time."""
    model = ListModel(A)
    async with stack(client, sqlite, bench.look, model=model, limits=Limits(no_progress=EARLY)) as engine:
        run = await engine.ended(await engine.start())
        before = await engine.history(run)
        again = CallModel(engine.engine).call_model
        for _ in range(2):
            with pytest.raises(Exception, match="same results"):
                await ActivityEnvironment().run(again, CallModelInput(run_id=run.id, step=4))
        assert await engine.history(run) == before
        assert len(model.seen) == 3


@pytest.mark.parametrize("how", ["continued as new", "recovered", "retried"])
async def test_i5_the_count_outlives_its_workflow(client: Client, sqlite: Database, bench: Bench, how: str) -> None:
    """I5: continued as new or recovered, a run keeps counting; a retry is nudged and ended by its own steps."""
    model, limits = ListModel(says(call("pay", '{"cents": 1}'))), Limits(no_progress=EARLY)
    async with stack(client, sqlite, bench.pay, model=model, limits=limits, working=False) as engine:
        run = await engine.start()
        if how == "continued as new":
            await continue_after_each_step(engine, run)
        async with engine.worker():
            for number in range(3):
                request = await engine.request(run)
                if how == "recovered" and number == 2:
                    await engine.workflow(run).terminate("lost")
                    report = await recover.recover(engine.services, None, by="cli:me")
                    assert [each.outcome for each in report] == ["recovered"]
                await engine.decide(request, "approve")
                await until(lambda number=number: paid(bench, number + 1), "payment")
            ended = await engine.ended(run)
            assert (ended.outcome, ended.step, len(await nudges(engine, ended))) == ("no_progress", 3, 1)
            if how == "retried":
                again = await retry.retry(engine.services, STARTER, ended.id)
                await engine.request(again)  # the model is asked, and the run is not ended at once


async def continue_after_each_step(engine: Stack, run: runs.Run) -> None:
    """Replace a run's workflow, which no worker has begun, by one that continues as new after each step."""
    await engine.workflow(run).terminate()
    await engine.client.start_workflow(
        AGENT_TURN,
        AgentTurnInput(run_id=run.id, agent="agent", limits=RunLimits(continue_as_new_after_steps=1)),
        id=run.id,
        task_queue=engine.task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    )


async def paid(bench: Bench, times: int) -> bool:
    return len(bench.paid) >= times
