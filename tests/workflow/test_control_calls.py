"""Control calls: what a call asks of the loop (finish, wait, hand off, switch model) is carried out once, with its step."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel
from support.engine.stack import Cast, ListModel, Script, Stack, call, says, stack, until
from support.engine.tools import Bench
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.testing import ActivityEnvironment

from turngate import Agent, Finish, HandOff, Policy, Rule, Toolkit, WaitUntil, control_call_tool
from turngate.activities.call_model import CallModel
from turngate.activities.run_tool import RunTool
from turngate.approvals_api.runs import views as run_views
from turngate.domain.contract import AgentTurnInput, CallModelInput, RunLimits, RunToolInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.toolkits.control_calls import finish, hand_off, switch_model, wait_until

FINISHED = call("finish", '{"answer": "All is paid."}', "f")


class Nothing(BaseModel):
    """No parameters."""


def expert(bench: Bench) -> Agent:
    return Agent(
        name="expert", instructions="You are the expert.", toolkit=Toolkit.of(bench.pay), model="scripted:expert"
    )


async def stored(engine: Stack, run: runs.Run) -> runs.Run:
    async with engine.database.read() as conn:
        row = await runs.get(conn, run.id)
    assert row is not None
    return row


async def event_types(engine: Stack, run: runs.Run) -> list[str]:
    return [event.type for event in await engine.events(run)]


async def timers(engine: Stack, run: runs.Run) -> int:
    events = (await engine.workflow(run).fetch_history()).events
    return sum(event.event_type == EventType.EVENT_TYPE_TIMER_STARTED for event in events)


async def settled(engine: Stack, run: runs.Run, call_id: str) -> None:
    async def look() -> bool:
        return (await engine.results(run)).get(call_id) is not None

    await until(look, f"result of {call_id}")


async def test_finish_completes_the_run_once_the_steps_other_calls_are_settled(
    client: Client, database: Database, bench: Bench
) -> None:
    """``finish`` waits for a call at a gate; then its answer is the run's, the last message, and nothing more is asked.

    The conversation's next run sees call, result and answer, in the order a provider takes.
    """
    model = ListModel(says("Paying.", call("pay", '{"cents": 5}', "p"), FINISHED), says("You are welcome."))
    async with stack(client, database, bench.pay, finish, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.event(run, "execution.finished")
        assert (await engine.results(run))["f"] == Ok(value={"finished": True})
        assert (await stored(engine, run)).status == "running"
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert await engine.closed(run) == WorkflowExecutionStatus.COMPLETED
        assert bench.paid == [5]
        history = await engine.history(run)
        assert [message.role for message in history] == ["user", "assistant", "tool", "assistant"]
        assert history[-1].text == "All is paid."
        assert is_reconciled(history)
        async with database.read() as conn:
            detail = await run_views.run_detail(conn, run.id)
        assert (detail.final_text, len(detail.steps)) == ("All is paid.", 1)
        assert len(model.seen) == 1
        assert (await event_types(engine, run))[-1] == "run.ended"
        await engine.ended(await engine.start("thanks", conversation_id=run.conversation_id))
        sent = model.seen[1].messages[1:]
        assert [message.role for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
        assert is_reconciled(sent)


async def test_i12_finish_under_an_ask_rule_waits_for_a_person(client: Client, sqlite: Database) -> None:
    """I12: approved or edited, the (edited) answer ends the run; rejected or answered instead, the run continues.

    The same finish after a person rejected it is closed without asking a second time.
    """
    policy = Policy(rule=[Rule(name="read-first", verdict="ask", tools=["finish"])])
    other = [call("finish", f'{{"answer": "Paid {number}."}}', f"f{number}") for number in (2, 3)]
    again = call("finish", '{"answer":"All is paid."}', "again")
    script = Script(says(FINISHED), says(again), *(says(each) for each in other))
    async with stack(client, sqlite, finish, model=script, policy=policy) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "reject", message="Check it.")
        await engine.decide(await engine.request_about(run, "f2"), "respond", message="Check it.")
        edited = '{"answer": "All is paid, and checked."}'
        await engine.decide(await engine.request_about(run, "f3"), "edit", args=edited)
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.history(run))[-1].text == "All is paid, and checked."
        results = await engine.results(run)
        assert [results[each].kind for each in ("f", "again")] == ["rejected", "rejected"]
        assert len(script.seen) == 4
        approved = await engine.start()
        await engine.decide(await engine.request(approved), "approve")
        assert (await engine.ended(approved)).status == "completed"
        assert (await engine.history(approved))[-1].text == "All is paid."
        assert len(script.seen) == 5


async def test_nothing_runs_that_comes_after_finish(client: Client, sqlite: Database, bench: Bench) -> None:
    """Calls after ``finish`` in the same response are closed with the reason, a second ``finish``, too; those before it run."""
    after = call("pay", '{"cents": 7}', "p"), call("finish", '{"answer": "No, not all."}', "g")
    model = ListModel(says(call("look", '{"name": "x"}', "l"), FINISHED, *after))
    async with stack(client, sqlite, bench.look, bench.pay, finish, model=model) as engine:
        run = await engine.ended(await engine.start())
        results = await engine.results(run)
        why = "'finish' came before it in the same response, and nothing runs after that."
        assert [results[each] for each in ("p", "g")] == [Failure(kind="cancelled", reason=why)] * 2
        assert isinstance(results["l"], Ok)
        assert (bench.paid, run.status) == ([], "completed")
        assert (await engine.history(run))[-1].text == "All is paid."


async def test_i5_a_signal_whose_answer_was_lost_is_answered_again(client: Client, sqlite: Database) -> None:
    """I5: the attempt after a lost one returns the same finish or wait again; nothing counts twice."""
    model = ListModel(says(call("wait_until", '{"seconds": 60}', "w"), FINISHED))
    async with stack(client, sqlite, finish, wait_until, model=model, working=False) as engine:
        run = await engine.start()
        await ActivityEnvironment().run(CallModel(engine.engine).call_model, CallModelInput(run_id=run.id, step=1))
        for call_id in ("f", "w"):
            order = RunToolInput(run_id=run.id, call=call_id)
            first, again = [await ActivityEnvironment().run(RunTool(engine.engine).run_tool, order) for _ in range(2)]
            assert first == again
            assert (first.finishes, first.state) == ((True, "settled") if call_id == "f" else (False, "waits"))
        assert (await event_types(engine, run)).count("execution.started") == 2
        await engine.workflow(run).terminate()


async def test_i5_a_wait_is_a_durable_timer_and_outlives_its_worker(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: a waiting call occupies no worker; the step's other calls run meanwhile, and a restart changes nothing."""
    step = says(call("wait_until", '{"seconds": 1.5}', "w"), call("look", '{"name": "x"}', "l"))
    model = ListModel(step, says("Done."))
    async with stack(client, sqlite, bench.look, wait_until, model=model, working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            started = await engine.event(run, "execution.finished")
            assert started.payload["tool"] == "look"
            await engine.idle(run)
            assert (await engine.results(run))["w"] is None
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert (await engine.results(run))["w"] == Ok(value={"waited": True})
        assert await timers(engine, run) == 1
        execution = (await engine.executions(run))["w"]
        began, ended = (datetime.fromisoformat(str(at)) for at in (execution.started_at, execution.ended_at))
        assert (ended - began).total_seconds() >= 1.5
        assert execution.state == "succeeded"


async def test_i1_an_interrupt_ends_a_wait_at_once(client: Client, sqlite: Database) -> None:
    """I1: a wait of a day is over with the interrupt; its call is closed as interrupted, and the conversation is whole."""
    day_off = datetime.now(UTC) + timedelta(days=1)
    model = ListModel(says(call("wait_until", json.dumps({"until": day_off.isoformat()}), "w")), says("Later."))
    async with stack(client, sqlite, wait_until, model=model) as engine:
        run = await engine.start()
        await engine.event(run, "execution.started")
        await engine.interrupt(run, "no need")
        assert (await engine.ended(run)).status == "interrupted"
        result = (await engine.results(run))["w"]
        assert isinstance(result, Failure)
        assert (result.kind, result.fields["interrupted_by"]) == ("interrupted", "operator")
        assert (await engine.executions(run))["w"].state == "failed"
        await engine.ended(await engine.start("and now?", conversation_id=run.conversation_id))
        assert is_reconciled(model.seen[1].messages[1:])


async def test_i9_no_one_waits_for_an_instant_that_has_passed_or_is_too_far_away(
    client: Client, sqlite: Database
) -> None:
    """A past instant, and an author's wait without any, are over at once: no timer is started.

    I9: beyond a year (a timer Temporal may not even be able to hold) the model reads why; the run continues.
    """
    waits = {"rest": WaitUntil(), "sleep": {"seconds": 1e12}}
    tools = [
        control_call_tool(
            name=name, description="Rest.", params=Nothing, interpret=lambda _, w=wait: WaitUntil.model_validate(w)
        )
        for name, wait in waits.items()
    ]
    instants = {"past": "2020-01-01T00:00:00Z", "never": "9999-12-31T23:59:59Z"}
    calls = [call("wait_until", json.dumps({"until": until}), name) for name, until in instants.items()]
    step = says(*calls, *(call(name, "{}", name) for name in waits))
    async with stack(client, sqlite, wait_until, *tools, model=ListModel(step, says("Done."))) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert [results[each] for each in ("past", "rest")] == [Ok(value={"waited": True})] * 2
        assert [results[each].kind for each in ("never", "sleep")] == ["input_validation_error"] * 2
        assert "366 days" in results["never"].reason
        await engine.closed(run)
        assert await timers(engine, run) == 0


async def test_i8_waits_and_signals_across_continue_as_new(client: Client, sqlite: Database, bench: Bench) -> None:
    """I8: with a new execution after every step, waits are waited, a hand-off holds, and a finish ends the run."""
    cast = Cast(
        test=ListModel(
            says(call("wait_until", '{"seconds": 0.2}', "w1")),
            says(call("wait_until", '{"seconds": 0.2}', "w2"), call("hand_off", '{"agent": "closer"}', "h")),
        ),
        closer=ListModel(says(FINISHED)),
    )
    closer = Agent(name="closer", instructions="Close.", toolkit=Toolkit.of(finish), model="scripted:closer")
    options = {"model": cast, "agents": [closer], "working": False}
    async with stack(client, sqlite, wait_until, hand_off("closer"), **options) as engine:
        run = await engine.start()
        await engine.workflow(run).terminate()
        started = await client.start_workflow(
            "AgentTurn",
            AgentTurnInput(run_id=run.id, agent="agent", limits=RunLimits(continue_as_new_after_steps=1)),
            id=run.id,
            task_queue=engine.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        async with engine.worker():
            ended = await engine.ended(run)
        assert (ended.status, ended.agent, ended.step) == ("completed", "closer", 3)
        assert (await engine.history(run))[-1].text == "All is paid."
        assert (await engine.workflow(run).describe()).run_id != started.first_execution_run_id


async def test_hand_off_lets_another_agent_continue(client: Client, database: Database, bench: Bench) -> None:
    """From the next step on: the other's instructions, tools and model, over the whole conversation; its gates are its own."""
    first = ListModel(
        says("Not mine.", call("hand_off", '{"agent": "expert"}', "h"), call("look", '{"name": "x"}', "l"))
    )
    second = ListModel(says(call("pay", '{"cents": 5}', "p")), says("Done."))
    cast = Cast(test=first, expert=second)
    options = {"model": cast, "agents": [expert(bench)]}
    async with stack(client, database, bench.look, hand_off("expert"), **options) as engine:
        run = await engine.start()
        request = await engine.request(run, tool="pay")
        assert (request.agent, request.path) == ("expert", "expert")
        await engine.decide(request, "approve")
        ended = await engine.ended(run)
        assert (ended.status, ended.agent, ended.model) == ("completed", "expert", "scripted:expert")
        assert ended.agent_version == engine.engine.agent("expert").version
        assert bench.paid == [5]
        assert bench.looked == ["x"]
        sent = second.seen[0]
        assert sent.messages[0].text == "You are the expert."
        assert [tool.name for tool in sent.tools] == ["pay"]
        assert [message.role for message in sent.messages] == ["system", "user", "assistant", "tool"]
        assert sent.messages[-1].results[0].result == Ok(value={"handed_off_to": "expert"})
        assert len(first.seen) == 1
        handed_off = await engine.event(run, "run.handed_off")
        assert handed_off.payload == {"tool_call_id": "h", "from": "agent", "to": "expert"}


async def test_switch_model_lets_another_model_continue(client: Client, sqlite: Database, bench: Bench) -> None:
    """From the next step on the other model answers, with the same agent's instructions and tools."""
    cast = Cast(
        test=ListModel(says(call("switch_model", '{"model": "scripted:big"}', "s"))), big=ListModel(says("Ah!"))
    )
    async with stack(client, sqlite, bench.look, switch_model("scripted:big"), model=cast) as engine:
        run = await engine.start()
        ended = await engine.ended(run)
        assert (ended.status, ended.agent, ended.model) == ("completed", "agent", "scripted:big")
        big = cast.resolve("scripted:big")
        assert isinstance(big, ListModel)
        assert big.seen[0].messages[0].text == "Be brief."
        assert (await engine.history(run))[-1].text == "Ah!"
        switched = await engine.event(run, "run.model_switched")
        assert (switched.payload["from"], switched.payload["to"]) == ("scripted:test", "scripted:big")


async def test_of_several_control_calls_in_a_step_the_last_counts(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Of two hand-offs the second counts; a switch after a hand-off counts, one before it yields to the agent's model."""
    third = Agent(name="third", instructions="Third.", toolkit=Toolkit.of(), model="scripted:third")
    tools = [hand_off("expert", "third"), switch_model("scripted:big")]
    order = [("hand_off", '{"agent": "expert"}'), ("switch_model", '{"model": "scripted:big"}')]
    order.append(("hand_off", '{"agent": "third"}'))
    for control_calls, agent, model in ((order, "third", "scripted:third"), (order[:2], "expert", "scripted:big")):
        last = ListModel(says("Mine."))
        cast = Cast(test=ListModel(says(*(call(*each) for each in control_calls))), third=last, big=last)
        async with stack(client, sqlite, *tools, model=cast, agents=[expert(bench), third]) as engine:
            ended = await engine.ended(await engine.start())
            assert (ended.status, ended.agent, ended.model) == ("completed", agent, model)
            assert len(last.seen) == 1


def to(name: str, answer: HandOff | Finish | Exception) -> Tool:
    def interpret(_: BaseModel) -> HandOff | Finish:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return control_call_tool(name=name, description="Do it.", params=Nothing, interpret=interpret)


async def test_i9_a_signal_that_cannot_be_carried_out_is_the_models_to_read(client: Client, sqlite: Database) -> None:
    """I9: an agent or model there is not, a ValueError of the author's, a bug of the author's: results, and no failed run."""
    tools = [
        hand_off("ghost"),
        to("delegate", HandOff(agent="missing")),
        switch_model("scripted:none"),
        to("escalate", ValueError("only on weekdays")),
        to("broken", KeyError("secret")),
    ]
    step = says(
        call("hand_off", '{"agent": "other"}', "literal"),
        call("hand_off", '{"agent": "ghost"}', "hand_off"),
        call("delegate", "{}", "delegate"),
        call("switch_model", '{"model": "scripted:none"}', "switch"),
        call("escalate", "{}", "escalate"),
        call("broken", "{}", "broken"),
    )
    model = ListModel(step, says("I see."))
    async with stack(client, sqlite, *tools, model=Cast(test=model)) as engine:
        run = await engine.start()
        ended = await engine.ended(run)
        assert (ended.status, ended.agent, ended.model) == ("completed", "agent", "scripted:test")
        results = await engine.results(run)
        assert {result.kind for result in results.values()} == {"input_validation_error"}
        assert "the agents are: agent" in results["delegate"].reason
        assert "'scripted:none'" in results["switch"].reason
        assert results["escalate"].reason == "only on weekdays"
        assert "KeyError" in results["broken"].reason
        assert "secret" not in results["broken"].reason


async def test_i6_an_edit_is_read_as_the_signal_it_makes(client: Client, sqlite: Database) -> None:
    """I6: an edit into a control call that cannot be carried out is asked about again, like one that does not fit."""

    class Where(BaseModel):
        agent: str

    pass_on = control_call_tool(
        name="pass_on",
        description="Pass on.",
        params=Where,
        interpret=lambda params: HandOff(agent=params.agent),
        ask=True,
    )
    other = Agent(name="other", instructions="Other.", toolkit=Toolkit.of(), model="scripted:test")
    model = ListModel(says(call("pass_on", '{"agent": "agent"}', "c")), says("Mine now."))
    async with stack(client, sqlite, pass_on, model=model, agents=[other]) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.decide(request, "edit", args='{"agent": "missing"}')
        again = await engine.request(run)
        assert "no agent 'missing'" in again.reason
        assert again.input == request.input
        await engine.decide(again, "edit", args='{"agent": "other"}')
        assert (await engine.ended(run)).agent == "other"


async def test_signals_of_an_interrupted_step_change_nothing(client: Client, sqlite: Database, bench: Bench) -> None:
    """A hand-off or finish in a step that is then interrupted has no effect: same agent, no answer."""
    step = says(call("hand_off", '{"agent": "expert"}', "h"), call("pay", '{"cents": 5}', "p"), FINISHED)
    cast = Cast(test=ListModel(step, says("Still me.")), expert=ListModel(says("never")))
    async with stack(
        client, sqlite, bench.pay, finish, hand_off("expert"), model=cast, agents=[expert(bench)]
    ) as engine:
        run = await engine.start()
        await engine.request(run)
        for call_id in ("h", "f"):
            await settled(engine, run, call_id)
        await engine.interrupt(run)
        ended = await engine.ended(run)
        assert (ended.status, ended.agent, ended.model) == ("interrupted", "agent", "scripted:test")
        assert "run.handed_off" not in await event_types(engine, run)
        assert (await engine.history(run))[-1].role == "tool"
        following = await engine.start("continue", conversation_id=run.conversation_id)
        assert (await engine.ended(following)).agent == "agent"
