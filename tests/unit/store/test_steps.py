"""Steps: a response is stored once, a step is closed once, and then every call has one result (I1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from turngate.domain.agents.no_progress import Trail
from turngate.domain.contract import StepPlan
from turngate.domain.conversation.history import CLOSED_BY_REPAIR, is_reconciled
from turngate.domain.conversation.messages import Message, ModelResponse, TextPart, ToolCallPart, Usage
from turngate.domain.errors import ConflictError
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.runs import calls, executions, messages, runs, steps

OPEN = Failure(kind="interrupted", reason="stopped")


def response(*call_ids: str, text: str = "") -> ModelResponse:
    parts = (
        *([TextPart(text=text)] if text else []),
        *(ToolCallPart(tool_call_id=call_id, tool_name="pay", input="{}") for call_id in call_ids),
    )
    return ModelResponse(
        message=Message(role="assistant", parts=parts),
        finish_reason="tool_calls" if call_ids else "stop",
        usage=Usage(input_tokens=3, output_tokens=4),
        model="scripted:test",
    )


def planned(run: runs.Run, call_id: str, position: int, *, step: int = 1, key: str = "key") -> calls.Call:
    return calls.Call(
        run_id=run.id,
        tool_call_id=call_id,
        step=step,
        position=position,
        tool_name="pay",
        input='{ "cents": 1.0 }',
        repeat_key=key,
        disposition="ask",
        verdict="",
        digest="d",
        policy_version="p",
        effect="once",
    )


async def respond(database: Database, run: runs.Run, answer: ModelResponse, *, step: int = 1) -> None:
    """Store a response and plan its calls."""
    async with database.write() as conn:
        await steps.record_response(conn, run, steps.NewStep(number=step, response=answer))
        rows = [planned(run, call.tool_call_id, place, step=step) for place, call in enumerate(answer.message.calls)]
        await calls.insert_planned(conn, rows)
        assert await steps.plan_writes(run.id, step, StepPlan(final=False)).run(conn) == [1, 0, 0]


async def history(conn: Connection, run_id: str) -> list[Message]:
    run = await runs.get(conn, run_id)
    assert run is not None
    return [stored.message for stored in await messages.path_to(conn, run.head_message_id)]


async def test_i5_a_response_is_stored_once_per_step(database: Database, run: runs.Run) -> None:
    """I5: of six attempts to store a step's response one wins whole; the others leave nothing."""

    async def store(number: int) -> None:
        async with database.write() as conn:
            await steps.record_response(
                conn, run, steps.NewStep(number=1, response=response("c1", text=f"attempt {number}"))
            )

    stored = await asyncio.gather(*(store(number) for number in range(6)), return_exceptions=True)
    assert sorted(str(type(each).__name__) for each in stored) == ["IntegrityError"] * 5 + ["NoneType"]
    async with database.write() as conn:
        step = await steps.get(conn, run.id, 1)
        assert step is not None
        assert (await messages.get(conn, step.assistant_message_id)).text == f"attempt {stored.index(None)}"
        assert (step.model, step.finish_reason, step.input_tokens, step.output_tokens) == (
            "scripted:test",
            "tool_calls",
            3,
            4,
        )
        assert await steps.of_run(conn, run.id) == [step]
        await steps.record_trail(conn, run.id, 1, trail := Trail().then("a step"))
        closed = replace(step, trail=trail.model_dump_json())
        for at, before, previous, own in (
            (1, Trail(), None, closed),
            (2, Trail(), closed, None),
            (3, trail, None, None),
        ):
            position = await steps.position(conn, run.id, at)
            assert position is not None
            assert position.run == await runs.get(conn, run.id)
            assert (position.before, position.previous, position.stored) == (before, previous, own)
            assert not position.has_messages
        assert await steps.position(conn, "run_of_no_one", 1) is None


@pytest.mark.parametrize("final", [None, StepPlan(final=True)])
async def test_i5_a_response_that_comes_after_the_end_changes_nothing(
    database: Database, run: runs.Run, new_run, final: StepPlan | None
) -> None:
    """I5: a late attempt of an interrupted run cannot move a conversation that has continued."""
    async with database.write() as conn:
        await runs.end(conn, run.id, runs.Ending(status="interrupted"))
    following = await new_run(run.conversation_id, after=run.head_message_id)
    async with database.write() as conn:
        await messages.set_head(conn, run.conversation_id, following.head_message_id)
    with pytest.raises(ConflictError, match="has ended"):
        async with database.write() as conn:
            await steps.record_response(conn, run, steps.NewStep(number=1, response=response(text="late"), plan=final))
    async with database.read() as conn:
        assert await steps.get(conn, run.id, 1) is None
        assert await messages.head_of(conn, run.conversation_id) == following.head_message_id
        ended = await runs.get(conn, run.id)
    assert ended is not None
    assert (ended.status, ended.step) == ("interrupted", 0)


async def test_a_final_response_ends_the_run(database: Database, run: runs.Run) -> None:
    """One transaction stores the response, closes the step, completes the run and moves both heads to the reply."""
    async with database.write() as conn:
        await steps.record_response(
            conn, run, steps.NewStep(number=1, response=response(text="Done."), plan=StepPlan(final=True))
        )
    async with database.read() as conn:
        step, ended = await steps.get(conn, run.id, 1), await runs.get(conn, run.id)
        assert step is not None
        assert ended is not None
        assert step.stored_plan == StepPlan(final=True)
        assert step.closed_at is not None
        assert (ended.status, ended.step, ended.head_message_id) == ("completed", 1, step.assistant_message_id)
        assert await messages.head_of(conn, run.conversation_id) == step.assistant_message_id
    async with database.write() as conn:
        assert not await steps.close(conn, ended, 1, OPEN)


async def test_the_first_plan_counts(database: Database, run: runs.Run) -> None:
    """A second plan for a step changes nothing, and its writer learns so."""
    async with database.write() as conn:
        await steps.record_response(conn, run, steps.NewStep(number=1, response=response("c1")))
        malformed = StepPlan(final=False, malformed=True)
        assert await steps.plan_writes(run.id, 1, malformed).run(conn) == [1, 0, 0]
        assert await steps.plan_writes(run.id, 1, StepPlan(final=False)).run(conn) == [0, 0, 0]
        assert await steps.plan_writes(run.id, 2, StepPlan(final=False)).run(conn) == [0, 0, 0]
        step = await steps.get(conn, run.id, 1)
    assert step is not None
    assert step.stored_plan == StepPlan(final=False, malformed=True)


async def test_i1_closing_gives_every_call_one_result_in_the_models_order(database: Database, run: runs.Run) -> None:
    """I1: settled calls keep their result and say what ran, open ones get the closure, all in one message."""
    await respond(database, run, response("c", "a", "b"))
    async with database.write() as conn:
        await calls.set_edited_input(conn, run.id, "a", '{"cents":2}', defaults=None)
        assert await calls.settle(conn, run.id, "a", Ok(value={"n": 1.0}), nonce=run.nonce)
        closed = await steps.close(conn, run, 1, OPEN)
        assert closed is not None
        assert closed.head_message_id == await messages.head_of(conn, run.conversation_id)
        path = await history(conn, run.id)
        settled = {call.tool_call_id: call for call in await calls.of_run(conn, run.id)}
    assert is_reconciled(path)
    assert [(part.tool_call_id, part.result, part.edited_input) for part in path[-1].results] == [
        ("c", OPEN, None),
        ("a", Ok(value={"n": 1.0}), '{"cents":2}'),
        ("b", OPEN, None),
    ]
    assert {call_id: call.settled_result for call_id, call in settled.items()} == {
        part.tool_call_id: part.result for part in path[-1].results
    }
    assert {call.tool_call_id: call.result for call in closed.calls} == {
        call_id: call.result for call_id, call in settled.items()
    }


async def test_i1_closing_again_changes_nothing(database: Database, run: runs.Run) -> None:
    """I1: a second close changes nothing, even with another closure or after a late result."""
    await respond(database, run, response("c1"))
    async with database.write() as conn:
        assert await steps.close(conn, run, 1, OPEN)
        before = await history(conn, run.id)
    async with database.write() as conn:
        assert not await calls.settle(conn, run.id, "c1", Ok(value={}), nonce=run.nonce)
        assert not await steps.close(conn, run, 1, CLOSED_BY_REPAIR)
        assert not await steps.close(conn, run, 2, OPEN)
        assert await history(conn, run.id) == before


async def test_i1_of_two_that_close_at_once_one_writes(database: Database, run: runs.Run) -> None:
    """I1: two activities closing the same step leave one results message."""
    await respond(database, run, response("c1", "c2"))

    async def close(closure: Failure) -> steps.Closed | None:
        async with database.write() as conn:
            return await steps.close(conn, run, 1, closure)

    closed = await asyncio.gather(close(OPEN), close(CLOSED_BY_REPAIR))
    assert closed.count(None) == 1
    async with database.read() as conn:
        path = await history(conn, run.id)
    assert is_reconciled(path)
    assert len({part.result.model_dump_json() for part in path[-1].results}) == 1


CASES = {
    "the last": True,
    "another call is open": False,
    "the run has changed": False,
    "the execution has ended": False,
    "something follows": False,
}


@pytest.mark.parametrize("case", CASES)
async def test_i1_i5_the_last_result_closes_its_step_or_is_not_stored(
    database: Database, run: runs.Run, case: str
) -> None:
    """I1, I5: result, close and event are stored together if nothing has happened since; else none of them is."""
    await respond(database, run, response("c1", "c2"))
    async with database.write() as conn:
        await executions.begin(
            conn,
            executions.NewExecution(
                run_id=run.id, tool_call_id="c2", digest="d", decision_id=None, idempotency_key="k"
            ),
        )
        if case != "another call is open":
            await calls.settle(conn, run.id, "c1", Ok(value={"n": 1}), nonce=run.nonce)
        if case == "the execution has ended":
            await executions.finish(conn, run_id=run.id, tool_call_id="c2", state="unknown")
        before = await runs.get(conn, run.id)
    assert before is not None
    if case == "the run has changed":
        async with database.write() as conn:
            await events.append(conn, run.id, [("run.noted", {})])
    async with database.write() as conn:
        settled = calls.settle_writes(run.id, "c2", Ok(value={"text": "a\x00\ud800"}))
        closed = await steps.close_with_result(
            conn,
            before,
            1,
            executions.finish_writes(settled, "succeeded"),
            ("execution.finished", {"tool_call_id": "c2"}),
            seen=before.event_count,
            trail_of=lambda all_calls: Trail().then(f"{len(all_calls)} results"),
            is_last=lambda _trail: case != "something follows",
        )
    async with database.read() as conn:
        step, execution = await steps.get(conn, run.id, 1), await executions.get(conn, run.id, "c2")
        by_id = {each.tool_call_id: each for each in await calls.of_run(conn, run.id)}
        after, path = await runs.get(conn, run.id), await history(conn, run.id)
        kinds = [each.type for each in await events.after(conn, 0, run_id=run.id)]
        assert await events.chain_break(conn, run.id) is None
    assert step is not None
    assert execution is not None
    assert after is not None
    together = CASES[case]
    assert (closed is not None, step.closed_at is not None, kinds.count("execution.finished")) == (
        together,
        together,
        together,
    )
    assert (by_id["c2"].result is not None, path[-1].role) == (together, "tool" if together else "user")
    if closed is None:
        assert after.head_message_id == run.head_message_id
        assert execution.state == ("unknown" if case == "the execution has ended" else "executing")
        return
    assert (execution.state, step.decoded_trail) == ("succeeded", Trail().then("2 results"))
    assert (after.head_message_id, after.event_count) == (closed.head_message_id, before.event_count + 1)
    assert is_reconciled(path)
    assert closed.calls == (by_id["c1"], by_id["c2"])
    assert [part.result for part in path[-1].results] == [each.settled_result for each in closed.calls]


async def test_i1_a_response_that_was_never_planned_is_closed_too(database: Database, run: runs.Run) -> None:
    """I1: a crash between storing and planning leaves no call rows; closing still answers the calls."""
    async with database.write() as conn:
        await steps.record_response(conn, run, steps.NewStep(number=1, response=response("a", "b")))
        assert await steps.close(conn, run, 1, OPEN)
        path = await history(conn, run.id)
    assert is_reconciled(path)
    assert [part.result for part in path[-1].results] == [OPEN, OPEN]


async def test_i9_an_empty_response_is_answered_by_a_correction(database: Database, run: runs.Run) -> None:
    """I9: a response without text and calls is followed by a message to the model, not sent again unchanged."""
    await respond(database, run, response())
    async with database.write() as conn:
        assert await steps.close(conn, run, 1, OPEN)
        assert not await steps.close(conn, run, 1, OPEN)
        path = await history(conn, run.id)
    assert [message.role for message in path] == ["user", "assistant", "user"]
    assert path[-1].text == steps.EMPTY_RESPONSE


async def test_a_step_has_no_trail_until_one_is_recorded(database: Database, run: runs.Run) -> None:
    """An attempt that finds its step closed by another one reads the trail, and a step may have none."""
    await respond(database, run, response("c1"))
    trail = Trail(recent=("digest",))
    async with database.write() as conn:
        assert await steps.trail(conn, run.id, 1) == Trail()
        await steps.record_trail(conn, run.id, 1, trail)
        assert await steps.trail(conn, run.id, 1) == trail
