"""Runs whose workflow is gone continue from their last closed step; nothing is asked, decided or run a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest
from sqlalchemy import select
from support.engine.stack import OPERATOR, Cast, ListModel, Script, Stack, call, person, says, stack, until
from support.engine.tools import Bench
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client

from turngate import Agent, Limits, Policy, Rule, Toolkit, sub_agent, tool
from turngate.approvals_api.gateway.recovery import WorkflowRecovery
from turngate.approvals_api.recovery import recover as recover_runs
from turngate.approvals_api.recovery.recover import RunReport
from turngate.approvals_api.runs import control
from turngate.approvals_api.runs.lost import LostRun
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ConflictError, NotFoundError
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Effect, Tool
from turngate.models.port import ModelRequest
from turngate.store.clock import from_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import executions, runs
from turngate.store.tables import agents as agents_table

PAY = call("pay", '{"cents": 5}', "p")
WORK = call("work", "{}", "w")
DELEGATE = call("helper", '{"task": "Pay."}', "d")
ANN, BOB = person("ann"), person("bob")
DONE = says("Done.")
ME = "cli:me"


def working(bench: Bench, effect: Effect = "once") -> Tool:
    """A tool that counts its starts and works until it is released."""

    @tool(effect=effect, ask=False)
    async def work() -> str:
        bench.looked.append("start")
        bench.started.set()
        await bench.release.wait()
        return "whole"

    return work


def stopping_at(bench: Bench, before: Sequence[ModelResponse], after: Sequence[ModelResponse]) -> ListModel:
    """A model that does not answer after ``before`` until it is released; asked again, it continues with ``after``."""
    model = ListModel(*before, *after)
    answer = model.generate

    async def generate(request: ModelRequest) -> ModelResponse:
        if len(model.seen) == len(before) and not bench.started.is_set():
            bench.started.set()
            await bench.release.wait()
        return await answer(request)

    model.generate = generate  # type: ignore[method-assign]
    return model


async def true_now(holds: bool) -> bool:
    return holds


async def result_of(engine: Stack, run: runs.Run, call_id: str) -> object:
    return (await engine.results(run))[call_id]


async def is_open(engine: Stack, run: runs.Run) -> bool:
    return await WorkflowRecovery(engine.client).state_of(run.id) == "open"


async def is_absent(engine: Stack, run: runs.Run) -> bool:
    return await WorkflowRecovery(engine.client).state_of(run.id) == "absent"


def agent_of(name: str, *tools: Tool) -> Agent:
    return Agent(name=name, instructions="", toolkit=Toolkit.of(*tools), model=f"scripted:{name}")


async def lose(engine: Stack, *lost: runs.Run) -> None:
    """Terminate the workflows, as one can in Temporal's own pages."""
    for run in lost:
        await engine.workflow(run).terminate("by hand")


async def recover(engine: Stack, *run_ids: str) -> list[RunReport]:
    return await recover_runs.recover(engine.services, run_ids or None, by=ME)


async def recovered_at(engine: Stack, run: runs.Run, step: int) -> None:
    """Recover all there is to recover, which is this run."""
    assert await recover(engine) == [RunReport(run_id=run.id, outcome="recovered", step=step)]


async def forgotten(engine: Stack, *lost: runs.Run) -> None:
    """Let Temporal forget the workflows, as when its database is lost."""
    for run in lost:
        execution = WorkflowExecution(workflow_id=run.id)
        order = DeleteWorkflowExecutionRequest(namespace=engine.client.namespace, workflow_execution=execution)
        await engine.client.workflow_service.delete_workflow_execution(order)
        await until(partial(is_absent, engine, run), "Temporal that doesn't know the run")


async def completed(engine: Stack, run: runs.Run, *, times: int = 1) -> None:
    """Every call of the run that ends well has one result, and its log is whole and says how often it was recovered."""
    ended = await engine.ended(run)
    assert (ended.status, ended.reason) == ("completed", "")
    assert is_reconciled(await engine.history(run))
    async with engine.database.read() as conn:
        assert (await events.chain_break(conn, run.id)) is None
    payloads = [each.payload for each in await engine.events(run) if each.type == "run.recovered"]
    assert [each["by"] for each in payloads] == [ME] * times


async def test_a_run_that_was_lost_before_its_first_step_begins(client: Client, sqlite: Database) -> None:
    """What was recorded and never began is begun, once its agent is published again; a model that was not asked is asked once."""
    model = ListModel(DONE)
    async with stack(client, sqlite, model=model, working=False) as engine:
        run = await engine.start()
        await lose(engine, run)
        async with sqlite.write() as conn:
            published = (await conn.execute(select(agents_table))).mappings().all()
            await conn.execute(agents_table.delete())
        (report,) = await recover(engine)
        assert (report.outcome, "'agent'" in report.detail) == ("not_published", True)
        async with sqlite.write() as conn:
            await conn.execute(agents_table.insert(), [dict(each) for each in published])
        await recovered_at(engine, run, 1)
        async with engine.worker():
            await completed(engine, run)
        assert len(model.seen) == 1


async def test_i5_a_waiting_run_is_decided_on_the_request_it_had(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: a decision counts while the workflow is lost; the model is not paid twice; a second recovery changes nothing."""
    model = ListModel(says("I pay.", PAY), DONE)
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await lose(engine, run)
        decided = await engine.decide(request, "approve", decision_id="early", message="fine")
        assert decided.status == "approved"
        lost = LostRun(run_id=run.id, agent="agent", created_at=run.created_at, workflow="closed", step=1)
        assert await recover_runs.lost_runs(engine.services) == [lost]
        planned = await recover_runs.recover(engine.services, None, by=ME, dry_run=True)
        assert [(each.outcome, each.step) for each in planned] == [("would_recover", 1)]
        both = await asyncio.gather(recover(engine, run.id), recover(engine))
        assert sorted(each.outcome for reports in both for each in reports) == ["alive", "recovered"]
        assert [each.outcome for each in await recover(engine)] == ["alive"]
        assert await recover_runs.lost_runs(engine.services) == []
        assert await engine.decide(request, "approve", decision_id="early", message="fine") == decided
        await completed(engine, run)
        assert (bench.paid, len(model.seen)) == ([5], 2)
        assert [each.outcome for each in await recover(engine, run.id)] == ["ended"]
        with pytest.raises(NotFoundError):
            await recover(engine, run.id, "run_nowhere")


async def test_i3_i4_a_decided_call_runs_and_a_started_one_becomes_unknown(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I3, I4: a recorded decision counts and is not asked for again; a call that had started goes to a person.

    The lost workflow's worker lives, and its handler is still at work: it is not started again, and comes too late. Lost
    once more, the run finds the answered and the open requests alike.
    """
    model = ListModel(says(WORK, PAY), DONE)
    limits = Limits(concurrency=1)
    async with stack(client, sqlite, working(bench), bench.pay, model=model, limits=limits) as engine:
        run = await engine.start()
        await bench.started.wait()
        request = await engine.request(run, tool="pay")
        await engine.decide(request, "edit", decision_id="mine", args='{"cents": 7}')
        assert bench.paid == []  # its place is taken
        await lose(engine, run)
        await recovered_at(engine, run, 1)
        outcome = await engine.request(run, kind="outcome")
        await until(lambda: true_now(bench.paid == [7]), "payment on the recorded decision")
        executions = await engine.executions(run)
        assert (executions["p"].decision_id, executions["w"].state, executions["w"].attempts) == ("mine", "unknown", 1)
        await lose(engine, run)
        assert [each.outcome for each in await recover(engine)] == ["recovered"]
        await engine.decide(outcome, "respond", outcome="happened", args='"seen"')
        assert (await engine.ended(run)).status == "completed"
        assert is_reconciled(await engine.history(run))
        assert (bench.looked, bench.paid, len(model.seen)) == (["start"], [7], 2)
        assert (await engine.results(run))["w"] == Ok(value={"value": "seen"})
        assert len(await engine.requests_of(run)) == 2


async def test_i3_a_call_that_was_stopped_and_never_closed_is_unknown(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I3: a handler that an interrupt or a termination stopped is asked about, with its partial output, and not started again.

    A person's word that it did not happen starts it again once, though the workflow was lost with the word.
    """
    async with stack(client, sqlite, working(bench), model=ListModel(says(WORK), DONE), working=False) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await bench.started.wait()
        await lose(engine, run)
        async with sqlite.write() as conn:
            named = {"run_id": run.id, "tool_call_id": "w"}
            assert not await executions.stop(conn, **named, attempt=2, partial_output="of another start")
            assert await executions.stop(conn, **named, attempt=1, partial_output="half")
        await recovered_at(engine, run, 1)
        async with engine.worker():
            outcome = await engine.request(run, kind="outcome")
        execution = (await engine.executions(run))["w"]
        assert (execution.state, execution.partial_output, execution.attempts) == ("unknown", "half", 1)
        assert bench.looked == ["start"]
        await lose(engine, run)
        await engine.record(outcome, "respond", decision_id="dec", outcome="did_not_happen")
        bench.release.set()
        await recovered_at(engine, run, 1)
        async with engine.worker():
            await completed(engine, run, times=2)
        execution = (await engine.executions(run))["w"]
        assert (bench.looked, execution.attempts, execution.decision_id) == (["start", "start"], 2, "dec")


@pytest.mark.parametrize("rest", ["answers", "goes_on_wrong"])
async def test_a_run_lost_between_steps_continues_with_the_next(
    client: Client, sqlite: Database, bench: Bench, rest: str
) -> None:
    """The closed steps remain, and so does the count of malformed responses in a row.

    The model that was being asked may still answer; its response is ignored.
    """
    wrong = says(call("nope", "{}"))
    before = [wrong, wrong]
    model = stopping_at(bench, before, [DONE] if rest == "answers" else [wrong])
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.start()
        await bench.started.wait()
        await lose(engine, run)
        await recovered_at(engine, run, 3)
        if rest == "answers":
            await completed(engine, run)
        ended = await engine.ended(run)
        bench.release.set()
        assert (ended.step, ended.error_class) == (3, "" if rest == "answers" else "malformed")
        assert is_reconciled(await engine.history(run))


@pytest.mark.exhaustive
async def test_a_request_keeps_its_clock_and_its_ladder(client: Client, sqlite: Database, bench: Bench) -> None:
    """What was reminded of is not reminded of again, and what ran out of time while its run was lost expires at once."""
    ladder = [{"after_seconds": 1, "do": "remind"}]
    rule = {"name": "r", "verdict": "ask", "tools": ["pay"], "ladder": ladder, "expires_after_seconds": 2}
    policy = Policy(rule=[Rule.model_validate(rule)])
    async with stack(client, sqlite, bench.pay, model=ListModel(says(PAY), DONE), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.event(run, "request.reminded")
        await lose(engine, run)
        over = from_text(request.expires_at or "")
        await until(lambda: true_now(now() > over), "end of its time")
        await recovered_at(engine, run, 1)
        recovered_in = now()
        await completed(engine, run)
        assert (now() - recovered_in).total_seconds() < 2  # not once more as long
        result = (await engine.results(run))["p"]
        assert isinstance(result, Failure)
        assert (result.kind, bench.paid) == ("expired", [])
        history = (await engine.workflow(run).fetch_history()).events
        assert "climb_ladder" not in {
            each.activity_task_scheduled_event_attributes.activity_type.name for each in history
        }


async def test_a_paused_run_stays_paused(client: Client, sqlite: Database, bench: Bench) -> None:
    """What was paused stays so until it is resumed; its requests can be decided meanwhile."""
    async with stack(client, sqlite, bench.pay, model=ListModel(says(PAY), DONE)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await control.pause(engine.services, OPERATOR, run.id, reason="wait")
        await engine.event(run, "run.paused")
        await lose(engine, run)
        await recovered_at(engine, run, 1)
        await engine.decide(request, "approve")
        await engine.idle(run)
        assert bench.paid == []
        await control.resume(engine.services, OPERATOR, run.id)
        await completed(engine, run)
        assert bench.paid == [5]


async def test_i5_everything_continues_when_temporal_has_lost_its_database(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: where Temporal knows no run, parent, sub-agent, half a quorum and an edited call continue as they were.

    The child's run and its request are the same as before.
    """
    helper = agent_of("helper", bench.look, bench.pay)
    models = Cast(
        test=Script(says(DELEGATE, call("look", '{"name": "x"}', "l")), DONE),
        helper=Script(says(call("look", '{"name": "y"}', "l1")), says(PAY), says("Paid.")),
    )
    rule = {"name": "two", "verdict": "ask", "tools": ["pay"], "quorum": 2}
    policy = Policy(rule=[Rule.model_validate(rule)])
    tools = (sub_agent(helper), bench.look)
    async with stack(client, sqlite, *tools, model=models, policy=policy, working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            child = await engine.child(run, "d")
            request = await engine.request(child)
            await engine.decide(request, "approve", by=ANN)
            await until(lambda: result_of(engine, run, "l"), "result of the call beside it")
        await forgotten(engine, run, child)
        async with engine.worker():
            lost = await recover_runs.lost_runs(engine.services)
            assert [(each.run_id, each.workflow, each.below) for each in lost] == [(run.id, "absent", (child.id,))]
            # Naming the sub-agent's run means the tree.
            reports = await recover(engine, child.id)
            assert reports == [RunReport(run_id=run.id, outcome="recovered", step=1)]
            assert await recover_runs.lost_runs(engine.services) == []
            assert (await engine.event(child, "run.recovered")).payload["step"] == 2
            await until(lambda: is_open(engine, child), "workflow of the sub-agent's run")
            with pytest.raises(ConflictError):
                await engine.decide(request, "approve", by=ANN)
            await engine.decide(request, "approve", by=BOB)
            await completed(engine, run)
            await completed(engine, child)
            assert (bench.paid, sorted(bench.looked)) == ([5], ["x", "y"])
            answer = {"answer": "Paid.", "agent": "helper", "run_id": child.id}
            assert (await engine.results(run))["d"] == Ok(value=answer)
            async with sqlite.read() as conn:
                assert len(await runs.page(conn, limit=9)) == 2


@pytest.mark.exhaustive
async def test_a_sub_agent_that_stopped_with_its_parent_is_not_started_again(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Terminated, a parent takes its child's workflow along, which stops in order: its ending is the call's result.

    Until it has stopped, the parent is not recovered.
    """
    models = Cast(test=Script(says(DELEGATE), DONE), helper=Script(says(PAY), says("Paid.")))
    async with stack(client, sqlite, sub_agent(agent_of("helper", bench.pay)), model=models, working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            child = await engine.child(run, "d")
            await engine.request(child)
            await engine.idle(run)
            await engine.idle(child)
        await lose(engine, run)
        reports = await recover(engine)
        assert [(each.outcome, child.id in each.detail) for each in reports] == [("stopping", True)]
        async with engine.worker():
            assert (await engine.ended(child)).status == "interrupted"
            await recovered_at(engine, run, 1)
            await completed(engine, run)
        result = (await engine.results(run))["d"]
        assert isinstance(result, Failure)
        assert (result.fields["run_id"], bench.paid) == (child.id, [])
