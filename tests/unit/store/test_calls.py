"""Calls and executions: one result per call (I1), one start per call and per decision (I3)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from turngate.domain.tools import results
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database
from turngate.store.runs import calls, executions, runs

RAW = '{ "n" : 1.0, "big": 1208925819614629174706176, "s": "é\\u0000", "n": 1 }'


def planned(run: runs.Run, call_id: str, *, step: int = 1, position: int = 0, key: str = "k", **options) -> calls.Call:
    return calls.Call(
        run_id=run.id,
        tool_call_id=call_id,
        step=step,
        position=position,
        tool_name="pay",
        input=RAW,
        repeat_key=key,
        disposition="ask",
        verdict="",
        digest="d",
        policy_version="p",
        effect="once",
        **options,
    )


async def begin(database: Database, run: runs.Run, call_id: str, decision_id: str | None = None) -> None:
    async with database.write() as conn:
        await executions.begin(
            conn,
            executions.NewExecution(
                run_id=run.id, tool_call_id=call_id, digest="d", decision_id=decision_id, idempotency_key="key"
            ),
        )


async def test_i6_arguments_are_stored_to_the_byte(database: Database, run: runs.Run) -> None:
    """I6: the model's text comes back unchanged, with its spacing, repeated keys and number forms."""
    async with database.write() as conn:
        await calls.insert_planned(conn, [planned(run, "c1")])
        await calls.insert_planned(conn, [])
        await calls.set_edited_input(conn, run.id, "c1", RAW + " ", defaults=None)
    async with database.read() as conn:
        call = await calls.get(conn, run.id, "c1")
        assert await calls.get(conn, run.id, "c2") is None
    assert call is not None
    assert (call.input, call.edited_input, call.settled_result) == (RAW, RAW + " ", None)


async def test_calls_are_read_in_the_models_order(database: Database, new_run) -> None:
    """Calls are sorted by step and place, not by id or time, and other runs are left out."""
    run, other = await new_run(), await new_run()
    rows = [
        planned(run, "a", step=2, position=1),
        planned(run, "b", step=2, position=0),
        planned(run, "z", step=1, position=0),
        planned(other, "a"),
    ]
    async with database.write() as conn:
        await calls.insert_planned(conn, rows)
    async with database.read() as conn:
        assert [call.tool_call_id for call in await calls.of_run(conn, run.id)] == ["z", "b", "a"]
        assert [call.tool_call_id for call in await calls.of_step(conn, run.id, 2)] == ["b", "a"]


async def test_i1_the_first_result_of_a_call_stays(database: Database, run: runs.Run) -> None:
    """I1: of ten results written at once one is stored, and only its writer learns that it won."""
    async with database.write() as conn:
        await calls.insert_planned(conn, [planned(run, "c1")])

    async def settle(number: int) -> bool:
        async with database.write() as conn:
            return await calls.settle(conn, run.id, "c1", Ok(value={"number": number}), nonce=run.nonce) is not None

    won = await asyncio.gather(*(settle(number) for number in range(10)))
    assert won.count(True) == 1
    async with database.read() as conn:
        call = await calls.get(conn, run.id, "c1")
    assert call is not None
    assert call.settled_result == Ok(value={"number": won.index(True)})
    assert call.settled_at is not None


async def test_i3_a_call_is_started_once(database: Database, run: runs.Run) -> None:
    """I3: ten redemptions of one call at once insert one execution."""
    begun = await asyncio.gather(*(begin(database, run, "c1") for _ in range(10)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in begun) == ["IntegrityError"] * 9 + ["NoneType"]
    async with database.read() as conn:
        assert [execution.attempts for execution in await executions.of_run(conn, run.id)] == [1]


async def test_i3_a_decision_is_redeemed_once(database: Database, new_run) -> None:
    """I3: one approval starts one call, whatever call or run presents it; calls allowed by policy share no id."""
    run, other = await new_run(), await new_run()
    attempts = [begin(database, run, f"c{number}", "dec_1") for number in range(5)]
    begun = await asyncio.gather(*attempts, begin(database, other, "c1", "dec_1"), return_exceptions=True)
    assert sorted(type(each).__name__ for each in begun) == ["IntegrityError"] * 5 + ["NoneType"]
    for call_id in ("x", "y"):
        await begin(database, run, call_id)


async def test_i3_an_execution_moves_only_from_where_it_is(database: Database, run: runs.Run) -> None:
    """I3: finishing, restarting and resolving each move the row from one state, once."""
    where = {"run_id": run.id, "tool_call_id": "c1"}
    await begin(database, run, "c1", "dec_1")
    async with database.write() as conn:
        assert not await executions.resolve_unknown(conn, **where, state="succeeded")
        assert await executions.finish(conn, **where, state="unknown")
        assert not await executions.finish(conn, **where, state="succeeded", partial_output="late")
        lost = await executions.get(conn, run.id, "c1")
        assert lost is not None
        here = {"worker": "2@there", "build": "b2"}
        moved = replace(lost, state="executing")
        assert not await executions.begin_again(conn, moved, decision_id="dec_2", **here)
        assert await executions.begin_again(conn, lost, decision_id="dec_2", **here)
        assert not await executions.begin_again(conn, lost, decision_id="dec_3", **here)
        assert await executions.finish(conn, **where, state="failed", partial_output="half")
        assert not await executions.resolve_unknown(conn, **where, state="succeeded")
        execution = await executions.get(conn, run.id, "c1")
    assert execution is not None
    assert (execution.state, execution.attempts, execution.decision_id) == ("failed", 2, "dec_2")
    assert (execution.worker, execution.build) == ("2@there", "b2")
    assert (execution.partial_output, execution.idempotency_key) == ("half", "key")


async def test_i3_an_execution_moves_alone(database: Database, new_run) -> None:
    """I3: no move of an execution touches another call of its run, or a call of the same id in another run."""
    run, other = await new_run(), await new_run()
    names = [{"run_id": each.id, "tool_call_id": call} for each, call in ((run, "c1"), (run, "c2"), (other, "c1"))]
    mine = names[0]
    for each, call_id in ((run, "c1"), (run, "c2"), (other, "c1")):
        await begin(database, each, call_id)
    async with database.write() as conn:

        async def states() -> list[str]:
            stored = [await executions.get(conn, **each) for each in names]
            return [each.state for each in stored if each is not None]

        assert await executions.stop(conn, **mine, attempt=1, partial_output="half")
        assert await states() == ["failed", "executing", "executing"]
        for each in names[1:]:
            assert await executions.finish(conn, **each, state="failed")
        assert await executions.reopen_stopped(conn, **mine)
        assert await states() == ["executing", "failed", "failed"]
        assert await executions.finish(conn, **mine, state="unknown")
        assert await states() == ["unknown", "failed", "failed"]
        assert await executions.resolve_unknown(conn, **mine, state="succeeded")
        assert await states() == ["succeeded", "failed", "failed"]


async def test_i3_one_of_two_may_restart_an_unknown_call(database: Database, run: runs.Run) -> None:
    """I3: a ``once`` call that a person resolved as not happened is started once more, not twice."""
    await begin(database, run, "c1", "dec_1")
    async with database.write() as conn:
        await executions.finish(conn, run_id=run.id, tool_call_id="c1", state="unknown")
        lost = await executions.get(conn, run.id, "c1")
    assert lost is not None

    async def again() -> bool:
        async with database.write() as conn:
            return await executions.begin_again(conn, lost, decision_id="dec_2", worker="w", build="b")

    assert sorted(await asyncio.gather(*(again() for _ in range(6)))) == [False] * 5 + [True]


async def test_i12_refusals_are_looked_up_by_the_calls_meaning(database: Database, new_run) -> None:
    """I12: refusals of this run, by rules and operators, are looked up by key; the first one counts, not a repeat."""
    run, other = await new_run(), await new_run()
    first = results.rejected("ann", "no")
    endings: list[Ok | Failure] = [
        results.repeated(first),
        first,
        results.denied("r", "off"),
        results.expired(),
        Ok(value={}),
        results.outcome_unknown("pay"),
    ]
    keys = ["again", "again", "denied", "expired", "ran", "perhaps"]
    rows = [
        planned(run, f"c{place}", step=9 - place, key=key, result=ending.model_dump_json())
        for place, (key, ending) in enumerate(zip(keys, endings, strict=True))
    ]
    async with database.write() as conn:
        await calls.insert_planned(conn, [*rows, planned(run, "open", key="open")])
        refusals = await calls.refusals_by_key(conn, run.id, [*keys, "open", "unknown"])
        assert refusals == {"again": first, "denied": endings[2]}
        assert await calls.refusals_by_key(conn, other.id, keys) == {}
        assert await calls.refusals_by_key(conn, run.id, []) == {}


async def test_a_call_id_is_unique_in_its_run(database: Database, run: runs.Run) -> None:
    """A plan with two calls of one id is refused whole."""
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await calls.insert_planned(conn, [planned(run, "c1"), planned(run, "c1", step=2)])
    async with database.read() as conn:
        assert await calls.of_run(conn, run.id) == []
