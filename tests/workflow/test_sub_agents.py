"""Sub-agents: a call answered by another agent's run, a child workflow, whatever happens to either of the two."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.engine.stack import OPERATOR, STARTER, Cast, ListModel, Script, Stack, call, says, stack, until
from support.engine.tools import Amount, Bench
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, RPCError, WorkflowExecutionStatus
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from turngate import Agent, Limits, Policy, Rule, Toolkit, sub_agent, tool
from turngate.activities.call_model import CallModel
from turngate.activities.close_step import CloseStep
from turngate.activities.run_tool import RunTool
from turngate.approvals_api.runs import start
from turngate.domain.contract import CallModelInput, CloseStepInput, RunToolInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import ModelResponse, user_message
from turngate.domain.errors import ForbiddenError, GoneError, ModelError
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.models.port import ModelRequest
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, messages, runs
from turngate.toolkits.control_calls import finish
from turngate.worker import SANDBOX
from turngate.workflows.agent_turn import AgentTurn
from turngate.workflows.lanes import Lanes

WORKFLOW_TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
}
CANCEL_REQUESTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
PAY = call("pay", '{"cents": 5}', "p")
DELEGATE = says("I delegate.", call("helper", '{"task": "Pay 5 cents."}', "d"))


def agent_of(name: str, *tools: Tool, **options: Any) -> Agent:
    options.setdefault("instructions", f"You are {name}.")
    return Agent(name=name, toolkit=Toolkit.of(*tools), model=f"scripted:{name}", **options)


def cast(*helper: ModelResponse, parent: Script | None = None) -> Cast:
    return Cast(test=parent or Script(DELEGATE, says("Done.")), helper=Script(*helper))


def paying() -> Cast:
    return cast(says("I will pay.", PAY), says("Paid 5 cents."))


def answered(child: runs.Run, answer: str = "Paid 5 cents.") -> Ok:
    return Ok(value={"answer": answer, "agent": "helper", "run_id": child.id})


async def end_of(engine: Stack, run: runs.Run) -> events.Event:
    return await engine.event(run, "run.ended")


async def request_row(engine: Stack, request: requests.Request) -> requests.Request:
    async with engine.database.read() as conn:
        row = await requests.get(conn, request.id)
    assert row is not None
    return row


async def test_i5_i8_i10_a_sub_agent_answers_a_call_by_a_run_of_its_own(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Own instructions, tools, model and conversation; its gate is in the one inbox; its answer is the call's result.

    I5: parent and child continue with another worker. I8: no content enters the history of either workflow. I10: who
    started the parent may not decide the child's call under a rule that bars the starter.
    """
    above = Script(says("Secret thought.", call("helper", '{"task": "Secret task."}', "d")), says("Secret end."))
    below = Script(says("Secret plan.", call("pay", '{"cents": 424242}', "p")), says("Secret answer."))
    models, helper = Cast(test=above, helper=below), sub_agent(agent_of("helper", bench.pay))
    policy = Policy(rule=[Rule(name="four-eyes", verdict="ask", tools=["pay"], starter_may_decide=False)])
    async with stack(client, sqlite, helper, model=models, policy=policy, working=False) as engine:
        async with engine.worker():
            run = await engine.start("Secret request.", by=STARTER)
            child = await engine.child(run, "d")
            request = await engine.request(child)
            await engine.idle(run)
            await engine.idle(child)
        assert (request.path, request.agent, request.run_id) == ("agent/helper", "helper", child.id)
        async with sqlite.read() as conn:
            inbox = await requests.page(conn, limit=10)
            delegated = await calls.get(conn, run.id, "d")
        assert [each.id for each in inbox] == [request.id]
        assert delegated is not None
        assert delegated.child_run_id == child.id
        assert (child.parent_run_id, child.parent_tool_call_id, child.path) == (run.id, "d", "agent/helper")
        assert (child.task, child.started_by) == ("Secret task.", "starter")
        assert child.conversation_id != run.conversation_id
        with pytest.raises(ForbiddenError):
            await engine.decide(request, "approve", by=STARTER)
        async with engine.worker():
            await engine.decide(request, "edit", by=OPERATOR, args='{"cents": 454545}', message="Secret reason.")
            assert (await engine.ended(run)).status == "completed"
            assert (await engine.ended(child)).status == "completed"
            for each in (run, child):
                await engine.closed(each)
        assert bench.paid == [454_545]
        assert (await engine.results(run))["d"] == answered(child, "Secret answer.")
        assert (await engine.executions(run))["d"].state == "succeeded"
        assert [message.text for message in below.seen[0].messages] == ["You are helper.", "Secret task."]
        assert [[each.name for each in seen.tools] for seen in (below.seen[0], above.seen[0])] == [["pay"], ["helper"]]
        for each in (run, child):
            roles = [message.role for message in await engine.history(each)]
            assert roles == ["user", "assistant", "tool", "assistant"]
        started = await engine.event(run, "execution.started")
        assert started.payload["child_run_id"] == child.id
        begun = await engine.event(child, "run.started")
        assert begun.payload["parent_run_id"] == run.id
        # The other order deadlocks on PostgreSQL: with the child's event the counter is taken, and then the parent's row.
        assert started.seq < begun.seq
        for each in (run, child):
            recorded = (await engine.workflow(each).fetch_history()).events
            history = b"".join(event.SerializeToString() for event in recorded)
            assert child.id.encode() in history
            for secret in (b"Secret", b"424242", b"454545"):
                assert secret not in history


async def test_an_ask_on_the_sub_agent_gates_its_start_and_an_edit_is_what_it_reads(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I6: a person who edits the call edits the task; nothing of the child exists before."""
    models = cast(says("Nothing to do."))
    async with stack(client, sqlite, sub_agent(agent_of("helper"), ask=True), model=models) as engine:
        run = await engine.start()
        request = await engine.request(run, tool="helper")
        async with sqlite.read() as conn:
            assert [each.id for each in await runs.page(conn, limit=9)] == [run.id]
        await engine.decide(request, "edit", args='{"task": "Pay nothing."}')
        await engine.ended(run)
        assert (await engine.child(run, "d")).task == "Pay nothing."
        assert (await engine.history(run))[2].results[0].edited_input == '{"task": "Pay nothing."}'


async def test_i3_a_sub_agent_that_failed_after_it_paid(client: Client, sqlite: Database, bench: Bench) -> None:
    """I3: the agent above reads which calls took effect or may have, and its own call is unknown, not failed."""

    @tool(effect="once", ask=False)
    async def transfer() -> str:
        """Pay, and lose the answer."""
        bench.paid.append(2)
        raise TimeoutError

    @tool(effect="once", ask=False)
    async def pay() -> str:
        """Pay."""
        bench.paid.append(1)
        return "paid"

    models = cast(says(call("pay", "{}", "p"), call("transfer", "{}", "t"), call("look", '{"name": "x"}', "l")))
    helper = agent_of("helper", pay, transfer, bench.look, limits=Limits(steps=1))
    async with stack(client, sqlite, sub_agent(helper), model=models) as engine:
        run = await engine.start()
        child = await engine.child(run, "d")
        await engine.decide(await engine.request(child, kind="outcome"), "respond", outcome="tell_model")
        assert (await engine.ended(run)).status == "completed"
        result = (await engine.results(run))["d"]
        assert isinstance(result, Failure)
        assert result.kind == "agent_failed"
        assert "is not undone: pay (it happened), transfer (it may have happened)." in result.reason
        assert (await engine.executions(run))["d"].state == "unknown"
    assert sorted(bench.paid) == [1, 2]


async def test_i9_a_sub_agent_that_fails_is_a_result(client: Client, sqlite: Database, bench: Bench) -> None:
    """I9: its own step limit, a model that refuses it, a ``brief`` that raises: the parent reads which and continues.

    The one whose task can't be written starts no run, and the exception is only logged.
    """

    def brief(params: Amount) -> str:
        raise RuntimeError(f"secret {params.cents}")

    capped = agent_of("capped", bench.look, limits=Limits(steps=2))
    tools = [
        sub_agent(capped),
        sub_agent(agent_of("refused")),
        sub_agent(agent_of("unwritten"), params=Amount, brief=brief),
    ]
    step = says(
        call("capped", '{"task": "Look."}', "c"),
        call("refused", '{"task": "Go."}', "r"),
        call("unwritten", '{"cents": 5}', "u"),
    )
    refusal = ModelError("the provider refused the key", error_class="authentication", retryable=False)
    models = Cast(
        test=Script(step, says("Oh.")),
        capped=Script(says(call("look", '{"name": "x"}'))),
        refused=ListModel(refusal),
        unwritten=Script(says("never")),
    )
    async with stack(client, sqlite, *tools, model=models) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results, executed = await engine.results(run), await engine.executions(run)
        assert {executed[each].state for each in "cru"} == {"failed"}
        for call_id, error_class in (("c", "step_cap"), ("r", "authentication")):
            child, result = await engine.child(run, call_id), results[call_id]
            assert (child.status, child.error_class) == ("failed", error_class)
            assert isinstance(result, Failure)
            assert result.kind == "agent_failed"
            assert result.fields == {"run_id": child.id, "error_class": error_class}
            assert child.reason in result.reason
            assert await engine.closed(child) == WorkflowExecutionStatus.FAILED
        assert isinstance(results["u"], Failure)
        assert (results["u"].kind, "secret" in results["u"].reason) == ("execution_error", False)
        async with sqlite.read() as conn:
            assert len(await runs.page(conn, limit=9)) == 3
    assert len(bench.looked) == 2


async def test_a_sub_agents_long_answer_is_clipped_and_can_be_read_on(client: Client, sqlite: Database) -> None:
    """The parent gets head and tail of what ``finish`` gives, within its own limit, and reads on with ``read_result``."""
    words = " ".join(f"word{number}" for number in range(2_000))

    async def read_on(request: ModelRequest) -> ModelResponse:
        clipped = request.messages[-1].results[0].result
        assert isinstance(clipped, Ok)
        arguments = {"result_id": clipped.value["result_id"], "offset": 8_000, "limit": 500}
        return says(call("read_result", json.dumps(arguments), "r"))

    finished = says(call("finish", json.dumps({"answer": words})))
    models, limits = cast(finished, parent=Script(DELEGATE, read_on, says("Done."))), Limits(result_chars=1_000)
    async with stack(client, sqlite, sub_agent(agent_of("helper", finish)), model=models, limits=limits) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert results["d"].value["truncated"] is True
        assert len(json.dumps(results["d"].value)) < 2_000
        assert results["r"].value["text"] in words
        assert len(results["r"].value["text"]) == 500


def three_deep(bench: Bench) -> tuple[Tool, Cast]:
    """A tool ``middle`` whose agent calls ``leaf``, which pays while it does something slow."""
    middle = agent_of("middle", sub_agent(agent_of("leaf", bench.slow, bench.pay)))
    models = Cast(
        test=Script(says(call("middle", '{"task": "1"}', "m")), says("Top done.")),
        middle=Script(says(call("leaf", '{"task": "2"}', "l")), says("Middle done.")),
        leaf=Script(says(call("slow", "{}", "s"), PAY), says("I continue.")),
    )
    return sub_agent(middle), models


async def test_i1_interrupting_the_parent_interrupts_everything_below(
    client: Client, database: Database, bench: Bench
) -> None:
    """I1: three deep, the tool at work is cancelled, the gate is closed, and all runs end, from the deepest up.

    The gate is one request, of the run that asks. Each of their calls is closed, and the conversations can continue.
    """
    top, models = three_deep(bench)
    async with stack(client, database, top, model=models) as engine:
        run = await engine.start()
        middle = await engine.child(run, "m")
        leaf = await engine.child(middle, "l")
        request = await engine.request(leaf)
        assert request.path == "agent/middle/leaf"
        assert [len(await engine.requests_of(each)) for each in (run, middle, leaf)] == [0, 0, 1]
        await asyncio.wait_for(bench.started.wait(), 60)
        await engine.interrupt(run, "wrong branch")
        family = [leaf, middle, run]
        ended = [await engine.ended(each) for each in family]
        assert [(each.status, each.reason) for each in ended] == [("interrupted", "wrong branch")] * 3
        assert bench.cancelled.is_set()
        assert (await request_row(engine, request)).status == "cancelled"
        with pytest.raises(GoneError):
            await engine.decide(request, "approve")
        below, above = await engine.results(leaf), (await engine.results(run))["m"]
        assert isinstance(above, Failure)
        interrupted = above.kind, above.fields["interrupted_by"], above.fields["started"]
        assert interrupted == ("interrupted", "operator", True)
        assert (below["s"].fields["partial_output"], below["s"].fields["interrupted_by"]) == ("half done", "operator")
        assert (below["p"].kind, below["p"].fields["started"]) == ("interrupted", False)
        ends = [(await end_of(engine, each)).seq for each in family]
        assert ends == sorted(ends)
        assert bench.paid == []
        for each in family:
            assert is_reconciled(await engine.history(each))
        for agent, conversation in (("agent", run.conversation_id), ("leaf", leaf.conversation_id)):
            following = await engine.start("continue", agent=agent, conversation_id=conversation)
            model = models.resolve("test" if agent == "agent" else agent)
            assert isinstance(model, Script)
            await until(lambda seen=model.seen: asyncio.sleep(0, len(seen) > 1), "next request")
            assert is_reconciled(model.seen[1].messages[1:])
            await engine.interrupt(following)
            await engine.ended(following)


@pytest.mark.parametrize("by", ["operator", "temporal"])
async def test_i1_an_interrupt_at_the_moment_of_a_result_waits_for_the_child_all_the_same(
    client: Client, sqlite: Database, bench: Bench, by: str
) -> None:
    """I1: a result and the interrupt (ours, or Temporal's) come in one workflow task; the parent ends after its child."""
    attempts: list[int] = []

    @tool(effect="read", ask=False)
    async def blink() -> str:
        """Hang until the worker is stopped; the next time, return."""
        attempts.append(1)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return "seen"

    step = says(call("helper", '{"task": "Wait."}', "d"), call("blink", "", "b"))
    models = cast(says(PAY), says("never"), parent=Script(step))
    async with stack(
        client, sqlite, blink, sub_agent(agent_of("helper", bench.pay)), model=models, working=False
    ) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            child = await engine.child(run, "d")
            await engine.request(child)
            await until(lambda: asyncio.sleep(0, attempts), "start of the tool")
            await engine.idle(child)
        only_tools = [RunTool(engine.engine).run_tool]
        async with Worker(engine.client, task_queue=engine.task_queue, activities=only_tools):
            await engine.event(run, "execution.finished")

            async def reported() -> bool:
                return not (await engine.workflow(run).describe()).raw_description.pending_activities

            await until(reported, "end of the activity")
        await (engine.interrupt(run) if by == "operator" else engine.workflow(run).cancel())
        async with engine.worker():
            assert (await engine.ended(run)).status == "interrupted"
            assert (await engine.ended(child)).status == "interrupted"
        assert (await end_of(engine, child)).payload["by"] == by
        assert (await end_of(engine, child)).seq < (await end_of(engine, run)).seq


@pytest.mark.exhaustive
async def test_interrupting_the_child_alone_is_a_result_the_parent_reads(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The sub-agent stops, its parent continues."""
    async with stack(client, sqlite, sub_agent(agent_of("helper", bench.pay)), model=paying()) as engine:
        run = await engine.start()
        child = await engine.child(run, "d")
        await engine.request(child)
        await engine.interrupt(child, "not this one")
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.ended(child)).status == "interrupted"
        result = (await engine.results(run))["d"]
        assert isinstance(result, Failure)
        assert (result.kind, result.fields["run_id"]) == ("interrupted", child.id)
        assert "not this one" in result.reason
        assert (await engine.history(run))[-1].text == "Done."


@pytest.mark.exhaustive
async def test_agents_that_call_each_other_are_stopped_at_the_fifth(client: Client, sqlite: Database) -> None:
    """Two agents that name each other go five deep; the last must do the task itself, and all of them complete."""
    helper = agent_of("helper", sub_agent("agent"))
    parent = Script(says(call("helper", '{"task": "Your turn."}', "h")), says("Done."))
    child = Script(says(call("agent", '{"task": "No, yours."}', "a")), says("Done."))
    async with stack(
        client, sqlite, sub_agent("helper"), model=Cast(test=parent, helper=child), agents=[helper]
    ) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        async with sqlite.read() as conn:
            family = sorted(await runs.page(conn, limit=20), key=lambda each: len(each.path))
        assert len(family) == 5
        assert family[-1].path == "agent/helper/agent/helper/agent"
        assert {each.status for each in family} == {"completed"}
        refused = (await engine.results(family[-1]))["h"]
        assert isinstance(refused, Failure)
        assert (refused.kind, refused.fields["refused_by"]) == ("denied", "engine")


@pytest.mark.exhaustive
async def test_two_children_at_once(client: Client, sqlite: Database, bench: Bench) -> None:
    """Both wait at their gates at the same time, also where a step has one place only; each result goes to its own call."""

    async def pay_per_task(request: ModelRequest) -> ModelResponse:
        return says(call("pay", json.dumps({"cents": int(request.messages[1].text)}), "p"))

    async def report(request: ModelRequest) -> ModelResponse:
        return says(f"Paid {request.messages[1].text}.")

    step = says(call("helper", '{"task": "1"}', "d1"), call("helper", '{"task": "2"}', "d2"))
    models = Cast(test=Script(step, says("Done.")), helper=Script(pay_per_task, report))
    options = {"model": models, "limits": Limits(concurrency=1)}
    async with stack(client, sqlite, sub_agent(agent_of("helper", bench.pay)), **options) as engine:
        run = await engine.start()
        first, second = [await engine.child(run, call_id) for call_id in ("d1", "d2")]
        waiting = [await engine.request(each) for each in (first, second)]
        for request in reversed(waiting):
            await engine.decide(request, "approve")
            await until(lambda: asyncio.sleep(0, len(bench.paid) > waiting[::-1].index(request)), "payment")  # noqa: B023
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [2, 1]
        results = await engine.results(run)
        assert (results["d1"], results["d2"]) == (answered(first, "Paid 1."), answered(second, "Paid 2."))
        assert [part.tool_call_id for part in (await engine.history(run))[2].results] == ["d1", "d2"]


async def recorded_child(engine: Stack) -> tuple[runs.Run, runs.Run]:
    """Leave what a crash leaves between recording the child and starting it: its row, and no workflow of it."""
    run = await engine.start()
    await ActivityEnvironment().run(CallModel(engine.engine).call_model, CallModelInput(run_id=run.id, step=1))
    order = RunToolInput(run_id=run.id, call="d")
    first, again = [await ActivityEnvironment().run(RunTool(engine.engine).run_tool, order) for _ in range(2)]
    child = await engine.child(run, "d")
    assert first == again
    assert (first.state, first.child.run_id, first.child.agent) == ("child", child.id, "helper")
    return run, child


async def test_i5_only_its_parent_starts_a_sub_agents_run(client: Client, sqlite: Database, bench: Bench) -> None:
    """I5: an API that starts does not start a child that was recorded; its parent does, once, when a worker is back."""
    options = {"model": paying(), "working": False}
    async with stack(client, sqlite, sub_agent(agent_of("helper", bench.pay)), **options) as engine:
        run, child = await recorded_child(engine)
        assert await start.start_recorded(engine.services) == 0
        with pytest.raises(RPCError, match="not found"):
            await engine.workflow(child).describe()
        async with engine.worker():
            await engine.decide(await engine.request(child), "approve")
            assert (await engine.ended(run)).status == "completed"
        assert (await engine.results(run))["d"] == answered(child)
        assert bench.paid == [5]


async def test_a_child_that_was_recorded_and_never_started_ends_with_its_parent(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """An interrupt between the two leaves no run that lives forever, and no conversation that is occupied forever."""
    options = {"model": paying(), "working": False}
    async with stack(client, sqlite, sub_agent(agent_of("helper", bench.pay)), **options) as engine:
        run, child = await recorded_child(engine)
        await engine.workflow(run).terminate()
        await engine.interrupt(run)
        order = CloseStepInput(run_id=run.id, status="interrupted", reason="", by="temporal", at=now())
        for _ in range(2):
            await ActivityEnvironment().run(CloseStep(engine.engine).close_step, order)
        assert [(await engine.ended(each)).status for each in (run, child)] == ["interrupted"] * 2
        assert (await end_of(engine, child)).payload["by"] == "operator"
        assert (await engine.results(run))["d"].kind == "interrupted"
        async with sqlite.read() as conn:
            assert await runs.live_of_conversation(conn, child.conversation_id) is None


@pytest.mark.exhaustive
async def test_a_child_whose_parent_is_terminated_ends_by_itself(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Temporal asks it to stop (parent close policy): tool cancelled, gate closed, run interrupted, nothing left open."""
    models = cast(says(call("slow", "{}", "s"), PAY), says("never"))
    async with stack(client, sqlite, sub_agent(agent_of("helper", bench.slow, bench.pay)), model=models) as engine:
        run = await engine.start()
        child = await engine.child(run, "d")
        request = await engine.request(child)
        await asyncio.wait_for(bench.started.wait(), 60)
        await engine.workflow(run).terminate()
        assert (await engine.ended(child)).status == "interrupted"
        assert bench.cancelled.is_set()
        assert (await end_of(engine, child)).payload["by"] == "temporal"
        assert (await request_row(engine, request)).status == "cancelled"
        assert is_reconciled(await engine.history(child))
        assert await engine.closed(child) == WorkflowExecutionStatus.COMPLETED


async def test_a_cancellation_while_a_run_is_being_closed_does_not_leave_it_open(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The workflow cancelled while it waits for the store to close its run: every call is closed and the run ends."""
    model = ListModel(says(PAY))
    async with stack(client, sqlite, bench.pay, model=model, working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)

        async def closing() -> bool:
            described = (await engine.workflow(run).describe()).raw_description
            return not described.HasField("pending_workflow_task") and len(described.pending_activities) == 1

        async def noticed() -> bool:
            history = (await engine.workflow(run).fetch_history()).events
            kinds = [event.event_type for event in history]
            return EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds[kinds.index(CANCEL_REQUESTED) :]

        only_workflows = Worker(
            engine.client,
            task_queue=engine.task_queue,
            workflows=[AgentTurn],
            workflow_runner=SANDBOX,
            interceptors=[Lanes(models_apart=False)],
            max_cached_workflows=0,
        )
        async with only_workflows:
            await engine.interrupt(run)
            await until(closing, "close_step that no worker takes")
            await engine.workflow(run).cancel()
            await until(noticed, "workflow task for the cancellation")
        async with engine.worker():
            assert (await engine.ended(run)).status == "interrupted"
        assert (await end_of(engine, run)).payload["by"] == "operator"
        assert (await request_row(engine, request)).status == "cancelled"
        assert (await engine.results(run))["p"].kind == "interrupted"


@pytest.mark.exhaustive
async def test_a_child_whose_own_workflow_is_terminated_is_a_result(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Parent reads ``agent_failed``; the child's row and gate are closed, and what worked below it ends too."""
    top, models = three_deep(bench)
    async with stack(client, sqlite, top, model=models) as engine:
        run = await engine.start()
        middle = await engine.child(run, "m")
        leaf = await engine.child(middle, "l")
        request = await engine.request(leaf)
        await engine.workflow(middle).terminate()
        assert (await engine.ended(run)).status == "completed"
        result = (await engine.results(run))["m"]
        assert isinstance(result, Failure)
        assert (result.kind, result.fields["error_class"]) == ("agent_failed", "workflow_gone")
        gone, below = await engine.ended(middle), await engine.ended(leaf)
        assert (gone.status, gone.error_class, below.status) == ("failed", "workflow_gone", "interrupted")
        assert (await request_row(engine, request)).status == "cancelled"
        await engine.closed(leaf)
        assert is_reconciled(await engine.history(middle))
        assert is_reconciled(await engine.history(leaf))
        assert bench.paid == []


async def delegated_bytes(engine: Stack, conversation_id: str | None) -> tuple[int, int]:
    """Run one delegated turn; return the bytes of the parent's and the child's history."""
    run = await engine.start(conversation_id=conversation_id)
    child = await engine.child(run, "d")
    await engine.ended(run)
    sizes: list[int] = []
    for each in (run, child):
        await engine.closed(each)
        history = await engine.workflow(each).fetch_history()
        # How many workflow tasks the same events are spread over is a matter of timing; what they carry is not.
        sizes.append(sum(event.ByteSize() for event in history.events if event.event_type not in WORKFLOW_TASKS))
    return sizes[0], sizes[1]


async def test_i8_history_bytes_do_not_grow_with_conversation_or_task(client: Client, sqlite: Database) -> None:
    """I8: a delegated turn costs parent and child the same history after 40 earlier messages and with a long task."""

    async def delegate(request: ModelRequest) -> ModelResponse:
        task = "x" * 20_000 if len(request.messages) > 20 else "x"
        return says(call("helper", json.dumps({"task": task}), "d"))

    async with sqlite.write() as conn:
        earlier = [user_message("x" * 200) if number % 2 == 0 else says("x" * 200).message for number in range(40)]
        await messages.create_with_past(conn, "long", earlier)
    models = cast(says("Paid."), parent=Script(delegate, says("Done.")))
    async with stack(client, sqlite, sub_agent(agent_of("helper")), model=models) as engine:
        short = await delegated_bytes(engine, None)
        long = await delegated_bytes(engine, "long")
        for before, after in zip(short, long, strict=True):
            assert abs(before - after) <= 60, (short, long)
