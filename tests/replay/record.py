"""Record the histories that ``test_recorded_histories.py`` replays: ``make histories``.

``.venv/bin/python tests/replay/record.py [STORY …]`` records the named stories only.

Each story is one run on a real Temporal server with a real worker and store; only the model is a script. The files go to
``histories/VERSION``, the version of ``pyproject.toml``. Raise that before you record: the folder of a released version
stays as it is for as long as its runs may live.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydantic import field_validator
from support.engine.stack import OPERATOR, STARTER, Cast, ListModel, Script, Stack, call, person, says, stack, until
from support.engine.tools import Amount, Bench
from temporalio.client import Client, ScheduleActionExecutionStartWorkflow
from temporalio.common import WorkflowIDReusePolicy

from turngate import Agent, Limits, Policy, Rule, Toolkit, __version__, interaction_tool, sub_agent, tool
from turngate.approvals_api.external_calls import service as external_service
from turngate.approvals_api.recovery import recover
from turngate.approvals_api.runs import control, send_message
from turngate.approvals_api.runs import fork as fork_run
from turngate.approvals_api.schedules import service as schedule_service
from turngate.domain.agents.schedules import Timetable
from turngate.domain.contract import AgentTurnInput, RunLimits
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ModelError
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.tools.external import ExternalTool
from turngate.domain.tools.results import Ok
from turngate.models.port import ModelRequest
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database
from turngate.store.policy import grants
from turngate.store.runs import runs
from turngate.store.schedules import schedule_fires
from turngate.store.schedules.schedule_fires import Fire
from turngate.toolkits import control_calls
from turngate.wire.orders import ExternalCallOrder, ForkOrder, MessageOrder, ReportOrder, ScheduleOrder

HISTORIES = Path(__file__).with_name("histories") / __version__.partition(".dev")[0]
"""Of the release that this version leads to."""
IDENTITY = "recorder"
BLANKED = {"stackTrace", "binaryChecksum", "buildId", "workerInstanceKey", "workerControlTaskQueue"}
"""What says where the recording was made. Replay reads none of it."""

Recording = dict[str, tuple[str, str | None]]
"""Name of the history → workflow id and execution run id (None: the newest)."""
Story = Callable[[Client, Database], Awaitable[Recording]]


class Even(Amount):
    """An amount with a rule that JSON Schema cannot say."""

    @field_validator("cents")
    @classmethod
    def even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value


def paying(*more: Any) -> ListModel:
    return ListModel(says("I will pay.", call("pay", '{"cents": 5}')), *more, says("Done."))


async def approve(client: Client, database: Database) -> Recording:
    """Two gates and an ungated call in one step; a repeated decision; the answer."""
    bench = Bench()
    step = says(call("pay", '{"cents": 1}'), call("look", '{"name": "x"}'), call("pay", '{"cents": 2}'))
    async with stack(client, database, bench.pay, bench.look, model=ListModel(step, says("Done."))) as engine:
        run = await engine.start()
        for number in range(2):
            request = await engine.request(run)
            await engine.idle(run)  # the usual order: the gate is open before it is decided
            await engine.decide(request, "approve", decision_id=f"d-{number}")
        return await completed(engine, run, "approve")


async def edit(client: Client, database: Database) -> Recording:
    """An edit that only the tool's own type refuses, so that it is asked about again; then one that fits."""

    @tool(effect="once", ask=True)
    async def pay(params: Even) -> int:
        """Pay."""
        return params.cents

    model = ListModel(says(call("pay", '{"cents": 4}')), says("Done."))
    async with stack(client, database, pay, model=model) as engine:
        run = await engine.start()
        for cents in ("7", "50"):
            await engine.decide(await engine.request(run), "edit", args=f'{{"cents": {cents}}}')
        return await completed(engine, run, "edit")


async def reject(client: Client, database: Database) -> Recording:
    """A rejection, the same call again (closed without asking), the answer."""
    again = says(call("pay", '{"cents":5}'))
    async with stack(client, database, Bench().pay, model=paying(again)) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "reject", message="Too much.")
        return await completed(engine, run, "reject")


async def expire(client: Client, database: Database) -> Recording:
    """No one decides in time."""
    policy = Policy(rule=[Rule(name="soon", verdict="ask", tools=["pay"], expires_after_seconds=1)])
    async with stack(client, database, Bench().pay, model=paying(), policy=policy) as engine:
        return await completed(engine, await engine.start(), "expire")


async def interrupt(client: Client, database: Database) -> Recording:
    """An interrupt while one call runs and another waits."""
    bench = Bench()
    step = says(call("slow", "{}"), call("pay", '{"cents": 1}'))
    async with stack(client, database, bench.slow, bench.pay, model=ListModel(step)) as engine:
        run = await engine.start()
        await engine.request(run)
        await asyncio.wait_for(bench.started.wait(), 10)
        await engine.interrupt(run, "wrong branch")
        return await completed(engine, run, "interrupt")


async def unknown_outcome(client: Client, database: Database) -> Recording:
    """A ``once`` call whose worker is lost; a person says that it did not happen; it runs."""
    attempts: list[int] = []

    @tool(effect="once", ask=True)
    async def pay(params: Amount) -> int:
        """Pay, and lose the worker the first time."""
        attempts.append(params.cents)
        if len(attempts) == 1:
            await asyncio.Event().wait()  # until the worker below is stopped
        return params.cents

    async def started() -> bool:
        return bool(attempts)

    async with stack(client, database, pay, model=paying(), working=False) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await engine.decide(await engine.request(run), "approve")
            await until(started, "start of the handler")
        async with engine.worker():
            request = await engine.request(run, kind="outcome")
            await engine.decide(request, "respond", outcome="did_not_happen")
            return await completed(engine, run, "unknown-outcome")


async def continue_as_new(client: Client, database: Database) -> Recording:
    """A new execution after every step: the first one, one in the middle, the last one."""
    steps = [says(call("nope", "{}")), *(says(call("pay", f'{{"cents": {cents}}}')) for cents in (1, 2))]
    async with stack(client, database, Bench().pay, model=ListModel(*steps, says("Done.")), working=False) as engine:
        run = await engine.start()
        await engine.workflow(run).terminate()
        start = AgentTurnInput(run_id=run.id, agent="agent", limits=RunLimits(continue_as_new_after_steps=1))
        first = await client.start_workflow(
            "AgentTurn",
            start,
            id=run.id,
            task_queue=engine.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        async with engine.worker():
            before = await engine.request(run)
            middle = (await engine.workflow(run).describe()).run_id
            await engine.decide(before, "approve")
            await engine.decide(await engine.request(run), "approve")
            histories = await completed(engine, run, "continue-as-new-last")
    return {
        "continue-as-new-first": (run.id, first.first_execution_run_id),
        "continue-as-new-middle": (run.id, middle),
        **histories,
    }


async def question(client: Client, database: Database) -> Recording:
    """A question answered in its own schema, and an approval answered instead of the tool."""
    ask = interaction_tool(name="ask", description="Ask.", params=Amount, answer=Amount)
    step = says(call("ask", '{"cents": 1}'), call("pay", '{"cents": 2}'))
    async with stack(client, database, ask, Bench().pay, model=ListModel(step, says("Thanks."))) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run, kind="question"), "respond", args='{"cents": 3}')
        await engine.decide(await engine.request(run), "respond", message="I paid it by hand.")
        return await completed(engine, run, "question")


async def signalled(client: Client, database: Database) -> Recording:
    """Forged signals and news of a decision that was made while no worker ran, twice."""
    async with stack(client, database, Bench().pay, model=paying(), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
            for name in ("rq_unknown", request.id):
                await engine.workflow(run).signal("decided", name)
            await engine.idle(run)
        await engine.decide(request, "approve")
        await engine.services.gateway.tell_decided_again(run.id, request.id)
        async with engine.worker():
            return await completed(engine, run, "signalled")


async def failed(client: Client, database: Database) -> Recording:
    """A model that is rate-limited once, then calls only an unknown tool until the run ends."""
    away = ModelError("overloaded", error_class="rate_limited", retryable=True, retry_after_seconds=0.05)
    model = ListModel(away, says(call("nope", "{}")))
    async with stack(client, database, model=model, limits=Limits(malformed_in_a_row=2)) as engine:
        return await completed(engine, await engine.start(), "failed")


async def cancelled(client: Client, database: Database) -> Recording:
    """The workflow itself is cancelled in Temporal, past our API, while a gate waits."""
    async with stack(client, database, Bench().pay, model=paying()) as engine:
        run = await engine.start()
        await engine.request(run)
        await engine.workflow(run).cancel()
        return await completed(engine, run, "cancelled")


async def finish_signal(client: Client, database: Database) -> Recording:
    """A ``finish`` that waits for a gate of its step, then ends the run."""
    step = says(call("pay", '{"cents": 5}'), call("finish", '{"answer": "Paid."}'))
    async with stack(client, database, Bench().pay, control_calls.finish, model=ListModel(step)) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        return await completed(engine, run, "finish-signal")


async def wait_until(client: Client, database: Database) -> Recording:
    """A wait beside an ungated call, one for an instant that has passed, and one that an interrupt ends."""
    bench = Bench()
    past, short, long = ('{"until": "2020-01-01T00:00:00Z"}', '{"seconds": 0.5}', '{"seconds": 3600}')
    steps = [says(call("wait_until", short), call("look", '{"name": "x"}')), says(call("wait_until", past))]
    model = ListModel(*steps, says(call("wait_until", long, "last")))
    async with stack(client, database, bench.look, control_calls.wait_until, model=model) as engine:
        run = await engine.start()

        async def last_waits() -> bool:
            return "last" in await engine.executions(run)

        await until(last_waits, "the long wait")
        await engine.idle(run)
        await engine.interrupt(run, "no need")
        return await completed(engine, run, "wait-until")


async def hand_off(client: Client, database: Database) -> Recording:
    """Another agent continues and asks; a decision for its request."""
    expert = Agent(name="expert", instructions="", toolkit=Toolkit.of(Bench().pay), model="scripted:expert")
    first = ListModel(says(call("hand_off", '{"agent": "expert"}')))
    cast = Cast(test=first, expert=paying())
    async with stack(client, database, control_calls.hand_off("expert"), model=cast, agents=[expert]) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        return await completed(engine, run, "hand-off")


def helping(helper: Script | ListModel) -> tuple[Any, Cast]:
    """A sub-agent that plays this script, and an agent that gives it one task."""
    agent = Agent(name="helper", instructions="", toolkit=Toolkit.of(Bench().pay), model="scripted:helper")
    parent = Script(says(call("helper", '{"task": "Pay."}', "d")), says("Done."))
    return sub_agent(agent), Cast(test=parent, helper=helper)


async def sub_agents(client: Client, database: Database) -> Recording:
    """A sub-agent's run with a gate: the history of the parent, and that of the child."""
    tool_of_parent, cast = helping(Script(says(call("pay", '{"cents": 5}', "p")), says("Paid.")))
    async with stack(client, database, tool_of_parent, model=cast) as engine:
        run = await engine.start()
        child = await engine.child(run, "d")
        await engine.decide(await engine.request(child), "approve")
        histories = await completed(engine, run, "sub-agent-parent")
        return {**histories, **await completed(engine, child, "sub-agent-child")}


async def sub_agents_interrupted(client: Client, database: Database) -> Recording:
    """An interrupt of the parent while its sub-agent waits at a gate."""
    tool_of_parent, cast = helping(Script(says(call("pay", '{"cents": 5}', "p"))))
    async with stack(client, database, tool_of_parent, model=cast) as engine:
        run = await engine.start()
        child = await engine.child(run, "d")
        await engine.request(child)
        await engine.idle(child)
        await engine.interrupt(run, "wrong branch")
        histories = await completed(engine, run, "sub-agent-interrupted-parent")
        return {**histories, **await completed(engine, child, "sub-agent-interrupted-child")}


async def sub_agent_failed(client: Client, database: Database) -> Recording:
    """A sub-agent whose run fails: the parent continues."""
    refused = ModelError("the provider refused the key", error_class="authentication", retryable=False)
    tool_of_parent, cast = helping(ListModel(refused))
    async with stack(client, database, tool_of_parent, model=cast) as engine:
        return await completed(engine, await engine.start(), "sub-agent-failed-parent")


def asking(**terms: Any) -> Policy:
    """Ask for payments on these terms."""
    return Policy(rule=[Rule.model_validate({"name": "money", "verdict": "ask", "tools": ["pay"], **terms})])


async def quorum(client: Client, database: Database) -> Recording:
    """Two of three people, one of them twice and one approval repeated; then a veto after one approval."""
    step = says(call("pay", '{"cents": 1}', "c1"), call("pay", '{"cents": 2}', "c2"))
    model = ListModel(step, says("Done."))
    async with stack(client, database, Bench().pay, model=model, policy=asking(quorum=2)) as engine:
        run = await engine.start()
        first = await engine.request(run)
        await engine.decide(first, "approve", by=person("ann"), decision_id="d-ann")
        await engine.decide(first, "approve", by=person("ann"), decision_id="d-ann")
        await engine.decide(first, "approve", by=person("bob"))
        second = await engine.request(run)
        await engine.decide(second, "approve", by=person("ann"))
        await engine.decide(second, "reject", by=person("bob"))
        return await completed(engine, run, "quorum")


async def ladder(client: Client, database: Database) -> Recording:
    """Remind, escalate, delegate, expire; beside it a call that is decided between two rungs."""
    rungs = [
        {"after_seconds": 1, "do": "remind"},
        {"after_seconds": 2, "do": "escalate", "people": ["vic"]},
        {"after_seconds": 3, "do": "delegate", "roles": ["admin"]},
    ]
    step = says(call("pay", '{"cents": 1}', "c1"), call("pay", '{"cents": 2}', "c2"))
    policy = asking(ladder=rungs, expires_after_seconds=4)
    async with stack(client, database, Bench().pay, model=ListModel(step, says("Done.")), policy=policy) as engine:
        run = await engine.start()
        decided = await engine.request(run)
        await engine.event(run, "request.escalated")
        await engine.decide(decided, "approve", by=person("vic"))
        return await completed(engine, run, "ladder")


async def park(client: Client, database: Database) -> Recording:
    """Out of time, a request waits on; then it is approved."""
    policy = asking(on_expiry="park", expires_after_seconds=1)
    async with stack(client, database, Bench().pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.event(run, "request.parked")
        await engine.decide(request, "approve")
        return await completed(engine, run, "park")


async def asked_after_all(client: Client, database: Database) -> Recording:
    """Two calls planned on a grant of one use: one runs, the other is asked for at the door, and approved."""
    wanted = WantedGrant(pattern=GrantPattern(tool="pay", open=["cents"]), scope="everyone")
    step = says(call("pay", '{"cents": 1}', "c1"), call("pay", '{"cents": 2}', "c2"))
    async with stack(client, database, Bench().pay, model=ListModel(step, says("Done."))) as engine:
        async with database.write() as conn:
            await grants.create(conn, wanted, grants.Origin(created_by="ann", run_id=None, agent=None), key="one")
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        return await completed(engine, run, "asked-after-all")


async def unattended(client: Client, database: Database) -> Recording:
    """An unattended run: what would be asked is refused, and the run continues."""
    async with stack(client, database, Bench().pay, model=paying()) as engine:
        return await completed(engine, await engine.start(unattended="deny"), "unattended")


async def held(client: Client, database: Database) -> Recording:
    """Paused while a call waits, decided while it is paused, and resumed."""
    async with stack(client, database, Bench().pay, model=paying()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await control.pause(engine.services, OPERATOR, run.id, reason="lunch")
        await engine.idle(run)
        await engine.decide(request, "approve")
        await control.resume(engine.services, OPERATOR, run.id)
        return await completed(engine, run, "held")


async def superseded(client: Client, database: Database) -> Recording:
    """A newer message ends what waits; the model reads it, and a queued one is answered by the next run."""
    async with stack(client, database, Bench().pay, model=paying()) as engine:
        run = await engine.start()
        await engine.request(run)
        for how in ("queue", "supersede"):
            await send_message.send(
                engine.services, STARTER, run.id, MessageOrder(input="never mind", while_running=how)
            )
        return await completed(engine, run, "superseded")


async def budget(client: Client, database: Database) -> Recording:
    """The steps are used up: an edit gives one more, and a rejection ends the run after it."""
    looks = [says(call("look", '{"name": "x"}')) for _ in range(3)]
    limits = Limits(steps=1, when_used_up="ask")
    async with stack(client, database, Bench().look, model=ListModel(*looks), limits=limits) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.decide(request, "edit", args=request.input.replace('"extend_by":"1"', '"extend_by":"1.0"'))
        await engine.decide(await engine.request(run), "reject", message="enough")
        return await completed(engine, run, "budget")


async def fork(client: Client, database: Database) -> Recording:
    """A fork of a completed run: its past is shared, and the same call asks again."""
    async with stack(client, database, Bench().pay, model=ListModel(*paying().responses * 2)) as engine:
        source = await engine.start()
        await engine.decide(await engine.request(source), "approve")
        await engine.ended(source)
        run = await fork_run.fork(engine.services, STARTER, source.id, ForkOrder(text="Pay again.", step=1))
        await engine.decide(await engine.request(run), "approve")
        return await completed(engine, run, "fork")


async def recovered(client: Client, database: Database) -> Recording:
    """A run whose workflow was terminated at a gate: its next workflow, after a decision on the same request."""
    async with stack(client, database, Bench().pay, model=paying()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.workflow(run).terminate("lost")
        await recover.recover(engine.services, None, by="recorder")
        await engine.decide(request, "approve")
        return await completed(engine, run, "recovered")


async def scheduled_start(client: Client, database: Database) -> Recording:
    """A fire by Temporal's own clock: it waits for the end of a run, and opens one."""
    async with stack(client, database, Bench().pay, model=paying()) as engine:
        wanted = ScheduleOrder(
            name="often", agent="agent", input="go", timetable=Timetable(every_seconds=1), overlap="buffer_one"
        )
        schedule = await schedule_service.create(engine.services, STARTER, wanted)
        handle = client.get_schedule_handle(schedule.id)

        async def fired() -> tuple[Fire, Fire] | None:
            async with database.read() as conn:
                fires = await schedule_fires.newest(conn, schedule.id, limit=9)
            return (fires[1], fires[0]) if len(fires) > 1 else None

        first, _second = await until(fired, "second fire, which waits")
        await handle.pause()
        before = await run_of(database, first)
        await engine.interrupt(before)

        async def opened() -> runs.Run | None:
            async with database.read() as conn:
                newest = (await schedule_fires.newest(conn, schedule.id, limit=1))[0]
            return await run_of(database, newest) if newest.run_id else None

        await engine.ended(await until(opened, "its run"))
        (_first, action) = [each.action for each in (await handle.describe()).info.recent_actions][:2]
        assert isinstance(action, ScheduleActionExecutionStartWorkflow)
        await client.get_workflow_handle(action.workflow_id).result()
        await handle.delete()
        return {"scheduled-start": (action.workflow_id, None)}


async def external_call(client: Client, database: Database) -> Recording:
    """An external call: approved, started and reported; then one whose sender does not know its outcome, so a person is asked."""
    tool = ExternalTool(name="pay", timeout_seconds=60)
    async with stack(client, database, model=ListModel()) as engine:

        async def sent(call_id: str) -> runs.Run:
            order = ExternalCallOrder(source="shop", tool_call_id=call_id, tool=tool, input="{}")
            view = await external_service.send(engine.services, STARTER, order, wait_seconds=0)
            async with database.read() as conn:
                run = await runs.get(conn, view.id)
            assert run is not None
            await engine.decide(await engine.request(run), "approve")
            return run

        async def started(run: runs.Run, attempt: str) -> bool:
            return (await external_service.start(engine.services, STARTER, run.id, attempt=attempt)).run is not None

        async def report(run: runs.Run, attempt: str, result: Ok | None) -> None:
            order = ReportOrder(attempt=attempt, result=result)
            await external_service.report(engine.services, STARTER, run.id, order)

        paid = await sent("c1")
        assert await started(paid, "attempt-1")
        await report(paid, "attempt-1", Ok(value={"paid": 5}))
        lost = await sent("c2")
        assert await started(lost, "attempt-1")
        await report(lost, "attempt-1", None)
        await engine.decide(await engine.request(lost, kind="outcome"), "respond", outcome="did_not_happen")
        await until(lambda: started(lost, "attempt-2"), "second start")
        await report(lost, "attempt-2", Ok(value={"paid": 5}))
        return {
            **await completed(engine, paid, "external-call"),
            **await completed(engine, lost, "external-call-lost"),
        }


async def marked_gates(client: Client, database: Database) -> Recording:
    """Gates without a clock, whose opening leaves a memo: two at once, then one that comes while another call runs."""
    bench = Bench()
    steps = [
        says(call("pay", '{"cents": 1}'), call("pay", '{"cents": 2}')),
        says(call("look", '{"name": "x"}'), call("pay", '{"cents": 3}')),
    ]
    model = ListModel(*steps, says("Done."))
    limits = Limits(request_expiry=None)
    async with stack(client, database, bench.pay, bench.look, model=model, limits=limits) as engine:
        run = await engine.start()
        for _ in range(3):
            await engine.decide(await engine.request(run), "approve")
        return await completed(engine, run, "marked-gates")


class Refusing(Script):
    """A script whose model is rate-limited when it is asked for the second step, once."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        if len(self.seen) == 1:
            self.seen.append(request)
            raise ModelError("overloaded", error_class="rate_limited", retryable=True, retry_after_seconds=0.05)
        return await super().generate(request)


async def fused(client: Client, database: Database) -> Recording:
    """Steps that are taken by the last call's activity: after an approval, of three calls at once, and the answer."""
    bench = Bench()
    steps = [says(call("pay", '{"cents": 1}')), says(*(call("look", f'{{"name": "{name}"}}') for name in "xyz"))]
    async with stack(client, database, bench.pay, bench.look, model=ListModel(*steps, says("Done."))) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.idle(run)
        await engine.decide(request, "approve")
        return await completed(engine, run, "fused")


async def fused_in_vain(client: Client, database: Database) -> Recording:
    """The model is rate-limited when the last call's activity asks it, so its own activity asks it again."""
    model = Refusing(says(call("pay", '{"cents": 5}')), says("Done."))
    async with stack(client, database, Bench().pay, model=model) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        return await completed(engine, run, "fused-in-vain")


async def fused_interrupted(client: Client, database: Database) -> Recording:
    """An interrupt while the last call's activity asks the model."""
    request_came = asyncio.Event()

    async def hold(_request: ModelRequest) -> ModelResponse:
        request_came.set()
        await asyncio.Event().wait()
        return says("Never.")

    async with stack(client, database, Bench().look, model=Script(says(call("look", '{"name": "x"}')), hold)) as engine:
        run = await engine.start()
        await asyncio.wait_for(request_came.wait(), 20)
        await engine.interrupt(run, "enough")
        return await completed(engine, run, "fused-interrupted")


STORIES: list[Story] = [
    approve,
    edit,
    reject,
    expire,
    interrupt,
    unknown_outcome,
    continue_as_new,
    question,
    signalled,
    failed,
    cancelled,
    finish_signal,
    wait_until,
    hand_off,
    sub_agents,
    sub_agents_interrupted,
    sub_agent_failed,
    quorum,
    ladder,
    park,
    asked_after_all,
    unattended,
    held,
    superseded,
    scheduled_start,
    budget,
    fork,
    recovered,
    external_call,
    marked_gates,
    fused,
    fused_in_vain,
    fused_interrupted,
]


async def run_of(database: Database, fire: Fire) -> runs.Run:
    async with database.read() as conn:
        run = await runs.get(conn, fire.run_id or "")
    assert run is not None
    return run


async def completed(engine: Stack, run: runs.Run, name: str) -> Recording:
    """Wait until the run and its workflow have ended, whichever way."""
    await engine.ended(run)

    async def closed() -> bool:
        return (await engine.workflow(run).describe()).close_time is not None

    await until(closed, f"end of the workflow of {name}")
    return {name: (run.id, None)}


def scrubbed(value: Any) -> Any:
    """Return the history without what says where it was made."""
    if isinstance(value, list):
        return [scrubbed(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: scrubbed(each) for key, each in value.items() if key not in BLANKED}


async def record(client: Client, story: Story) -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Database(f"sqlite:///{directory}/turngate.db")
        await database.migrate()
        histories = await story(client, database)
        await database.close()
    for name, (workflow_id, execution_run_id) in histories.items():
        handle = client.get_workflow_handle(workflow_id, run_id=execution_run_id)
        history = scrubbed((await handle.fetch_history()).to_json_dict())
        path = HISTORIES / f"{name}.json"
        path.write_text(json.dumps({"workflow_id": workflow_id, "history": history}, indent=1) + "\n", encoding="utf-8")
        print(f"{path.name}: {len(history['events'])} events")


async def main(names: list[str]) -> None:
    """Record the named stories; all when none is named, replacing every file of this version."""
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)  # activities fail and are lost: that is in the stories
    Stack.cached_workflows = 0  # a cache would put sticky queues into the histories
    if not names:
        shutil.rmtree(HISTORIES, ignore_errors=True)
    HISTORIES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedTemporal(Path(directory)) as server:
            client = await Client.connect(server.address, data_converter=data_converter(), identity=IDENTITY)
            for story in STORIES:
                if not names or story.__name__ in names:
                    await record(client, story)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
