"""The checks of a call whose worker was lost, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update
from support.engine.call_at_door import CallAtDoor

from turngate import DidNotHappen, Happened, Policy, Rule, ToolContext, tool
from turngate.activities.engine.error_log import Where, note
from turngate.activities.engine.lost_workers import LOST_WORKER
from turngate.activities.execution import lost_calls
from turngate.activities.execution.preflight import Findings, Inspection, inspect
from turngate.activities.execution.redemption import AskAgain, Redeemed, Settled
from turngate.domain.policy.terms import AskTerms, Rung
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import errors
from turngate.store.tables import executions as executions_table
from turngate.wire.orders import DecisionOrder


@tool(effect="once", ask=True)
async def pay(ctx: ToolContext) -> str:
    """Pay."""
    return ctx.run_id


@tool(effect="read", ask=False)
async def look(ctx: ToolContext) -> str:
    """Look."""
    return ctx.run_id


async def known(key: str) -> Happened | DidNotHappen | None:
    raise NotImplementedError(key)


def unsure(params: object) -> str:
    raise NotImplementedError(repr(params))


@tool(effect="once", ask=True, probe=known, check_with=unsure)
async def refund(ctx: ToolContext) -> str:
    """Refund."""
    return ctx.run_id


async def test_the_probe_of_a_lost_once_call_runs_first(sqlite: Database) -> None:
    """It runs once, between two transactions; a tool may have no probe."""
    at = CallAtDoor(sqlite, refund)
    await at.plan()
    await at.begin()
    async with at.door() as door:
        inspection = await lost_calls.ask_probe(door)
    assert isinstance(inspection, Inspection)
    assert inspection.purpose == "lost"
    async with at.door(Findings()) as door:
        assert await lost_calls.ask_probe(door) is None


class Ledger:
    """A service that can't be made here."""


async def asks_a_ledger(key: str, ledger: Ledger) -> Happened:
    return Happened(f"{key}{ledger}")


async def depends_on_a_ledger(ledger: Ledger) -> str:
    return str(ledger)


@tool(effect="once", ask=True, probe=asks_a_ledger, precondition=depends_on_a_ledger)
async def book(ctx: ToolContext) -> str:
    """Book."""
    return ctx.run_id


@pytest.mark.parametrize(
    ("declared", "why"), [(book, "its service Ledger could not be made"), (refund, "NotImplementedError")]
)
async def test_a_person_reads_that_the_tools_own_check_failed_and_whose_fault_it_is(
    sqlite: Database, declared: Tool, why: str
) -> None:
    """The question about the outcome says so, and a precondition that can't be checked blames the service, too."""
    at = CallAtDoor(sqlite, declared)
    at.engine.services.register_factory(Ledger, lambda: 1 / 0)
    await at.plan()
    await at.begin()
    async with at.door() as door:
        inspection = await lost_calls.ask_probe(door)
    assert isinstance(inspection, Inspection)
    findings = await inspect(at.engine, inspection)
    assert findings.check_with is None  # a function that fails says nothing about how to check
    async with at.door(findings) as door:
        outcome = await lost_calls.ask_a_person(door)
        assert isinstance(outcome, AskAgain)
        question = await requests.get(door.conn, outcome.again.request_id)
        start = replace(door.inspection("start"), approved_with="null")
    assert question is not None
    assert f"Its tool's own check failed ({why}). This was logged. It may or may not" in question.reason
    refusal = (await inspect(at.engine, start)).refusal
    assert (refusal is None) == (declared is refund)
    assert refusal is None or f"its precondition could not be checked again ({why})" in refusal.reason


def test_what_a_lost_call_reported_last_is_shown_as_it_was_written() -> None:
    """Progress that is an object is JSON for people: its letters aren't escaped."""
    assert lost_calls._words({"to": "Jörg"}) == '{"to": "Jörg"}'


async def test_i3_an_unknown_call_waits_for_its_answer(sqlite: Database) -> None:
    """I3: while the request is pending, every attempt gets it; with its resolution the call passes this check."""
    at = CallAtDoor(sqlite, pay)
    await at.plan()
    await at.begin()
    async with at.door() as door:
        assert await lost_calls.wait_for_answer(door) is None
        outcome = await lost_calls.ask_a_person(door)
    assert isinstance(outcome, AskAgain)
    async with at.door() as door:
        waiting = await lost_calls.resume(door)
        assert isinstance(waiting, AskAgain)
        request_id = outcome.again.request_id
        assert request_id is not None
        assert waiting.again.request_id == request_id
        order = DecisionOrder(verb="respond", digest=at.call.digest, outcome="did_not_happen")
        decision = requests.new_decision(order, decision_id="d2", request_id=request_id, by="vic")
        await requests.add_decision(door.conn, decision)
        won = {"decision_id": "d2", "verb": "respond", "by": "vic"}
        await requests.settle(door.conn, request_id, requests.Ending(status="responded", at=now(), **won))
    async with at.door() as door:
        assert await lost_calls.wait_for_answer(door) is None
        assert isinstance(await lost_calls.resume(door), Redeemed)


async def test_a_question_about_an_outcome_keeps_the_call_and_none_of_its_terms(sqlite: Database) -> None:
    """It waits without a clock for one answer by any operator, but keeps who may not decide the call."""
    at = CallAtDoor(sqlite, pay)
    await at.plan(disposition="ask")
    await at.approve(not_by="alice", quorum=2, expires_after_seconds=60, ladder=[Rung(after_seconds=5, do="remind")])
    await at.begin()
    async with at.door() as door:
        outcome = await lost_calls.ask_a_person(door)
        assert isinstance(outcome, AskAgain)
        again = outcome.again
        assert (again.call, again.expires_after_seconds, again.ladder) == ("c1", None, ())
        question = await requests.get(door.conn, again.request_id or "")
    assert question is not None
    assert (question.kind, question.quorum, question.ask_terms, question.not_by) == ("outcome", 1, AskTerms(), "alice")


async def test_the_probes_resolution_becomes_the_result(sqlite: Database) -> None:
    """The first start took effect: the call succeeds with the probe's result, and the event names its source."""
    at = CallAtDoor(sqlite, refund)
    await at.plan()
    await at.begin()
    async with at.door(Findings(probed=Happened({"id": 7}))) as door:
        assert await lost_calls.take_probed_result(door) == Settled()
    assert (await at.stored()).settled_result == Ok(value={"id": 7})
    execution = await at.execution()
    assert execution is not None
    assert execution.state == "succeeded"


@pytest.mark.parametrize(
    ("probed", "starts", "asks"),
    [
        pytest.param(None, 1, True, id="the probe does not know"),
        pytest.param(DidNotHappen(), 1, False, id="it did not happen"),
        pytest.param(DidNotHappen(), lost_calls.MAX_STARTS, True, id="it kills its workers"),
    ],
)
async def test_i3_a_person_is_asked_about_a_lost_once_call(sqlite: Database, probed, starts: int, asks: bool) -> None:
    """I3: a person resolves it, unless the probe says that it will never take effect and starts are left."""
    at = CallAtDoor(sqlite, refund)
    await at.plan()
    await at.begin(starts=starts)
    async with at.door(Findings(probed=probed)) as door:
        redemption = await lost_calls.ask_a_person(door)
    execution = await at.execution()
    assert execution is not None
    assert isinstance(redemption, AskAgain) == asks
    assert execution.state == ("unknown" if asks else "executing")
    assert await at.event_types() == (["execution.unknown", "request.opened"] if asks else [])


async def is_ended(at: CallAtDoor) -> bool:
    """Look at a lost call as its next attempt does; whether that ended it."""
    async with at.door() as door:
        redemption = await lost_calls.resume(door)
    assert isinstance(redemption, Redeemed | Settled)
    return isinstance(redemption, Settled)


async def lose(at: CallAtDoor, worker: str) -> None:
    """Let the newest start of the call be on this worker, which is lost now."""
    async with at.database.write() as conn:
        await conn.execute(update(executions_table).values(worker=worker))


async def test_i14_a_call_that_alone_loses_two_workers_ends_with_a_reason(sqlite: Database) -> None:
    """I14: no third worker is lost to it; the model reads what happened, and people find an error with its worker."""
    at = CallAtDoor(sqlite, look)
    await at.plan()
    await at.begin()
    await lose(at, "w1")
    assert not await is_ended(at)
    await lose(at, "w2")
    assert await is_ended(at)
    result = (await at.stored()).settled_result
    assert isinstance(result, Failure)
    assert result.kind == "execution_error"
    assert "'look': its worker was lost 2 times while it ran" in result.reason
    async with sqlite.read() as conn:
        second, first = await errors.newest(conn, run_id=at.run.id, limit=5)
    assert [(each.worker, each.attempt) for each in (first, second)] == [("w1", 1), ("w2", 2)]
    assert ["may kill it" in each.message for each in (first, second)] == [False, True]


@pytest.mark.parametrize(
    ("others", "starts"),
    [
        pytest.param({"elsewhere": ["w8"]}, 5, id="workers are lost without it"),
        pytest.param({"beside": ["w1"]}, 2, id="another was there the first time"),
        pytest.param({"beside": ["w1", "w2"]}, 3, id="another was there both times"),
        pytest.param({"first": ["w1"], "second": ["w2"]}, 2, id="each time another was there"),
    ],
)
async def test_i5_i14_an_innocent_call_may_lose_more_workers(
    sqlite: Database, others: dict[str, list[str]], starts: int
) -> None:
    """I5, I14: while workers are lost elsewhere (chaos, a machine that fails), or another call is as suspect, it continues."""
    at = CallAtDoor(sqlite, look)
    await at.plan()
    await at.begin()
    async with sqlite.write() as conn:
        for call, workers in others.items():
            for attempt, worker in enumerate(workers, 1):
                where = Where(run_id="run_other", tool_call_id=call, attempt=attempt)
                await note(conn, at.engine, LOST_WORKER, "", where, process=(worker, "b"))
    for start in range(1, starts + 1):
        await lose(at, f"w{start}")
        assert await is_ended(at) == (start == starts)


async def test_i5_a_worker_that_stops_in_order_does_not_count(sqlite: Database) -> None:
    """I5: a call may see any number of deploys."""
    at = CallAtDoor(sqlite, look)
    await at.plan()
    await at.begin()
    for attempt in range(1, 9):
        place = Where(run_id=at.run.id, step=1, tool_call_id="c1", attempt=attempt)
        await lost_calls.note_orderly_stop(at.engine, place, "look")
        assert not await is_ended(at)
    await lose(at, "w1")
    assert not await is_ended(at)
    await lose(at, "w2")
    assert await is_ended(at)


async def test_i6_a_changed_call_is_not_started_again(sqlite: Database) -> None:
    """I6: a rule denies it now: it does not run, and its result says that the first start may have taken effect."""
    at = CallAtDoor(sqlite, look, policy=Policy(rule=[Rule(name="never", verdict="deny", tools=["*"])]))
    await at.plan()
    await at.begin()
    async with at.door() as door:
        assert await lost_calls.refuse_changed_call(door) == Settled()
    result = (await at.stored()).settled_result
    assert isinstance(result, Failure)
    assert result.kind == "unknown"
    assert "not started again" in result.reason
