"""The checks of a call whose worker was lost, one at a time."""

from __future__ import annotations

import pytest
from support.call_at_door import CallAtDoor

from activities.execution import lost_calls
from activities.execution.preflight import Findings, Inspection
from activities.execution.redemption import AskAgain, Redeemed, Settled
from turngate import DidNotHappen, Happened, Policy, Rule, ToolContext, tool
from turngate.domain.policy.terms import AskTerms, Rung
from turngate.domain.tools.results import Failure, Ok
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.requests import requests
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


@tool(effect="once", ask=True, probe=known)
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


async def test_a_repeatable_call_fails_when_its_workers_keep_dying(sqlite: Database) -> None:
    """A ``read`` call starts again until its last allowed start is lost, too."""
    at = CallAtDoor(sqlite, look)
    await at.plan()
    await at.begin(starts=lost_calls.MAX_STARTS)
    async with at.door() as door:
        assert await lost_calls.resume(door) == Settled()
    result = (await at.stored()).settled_result
    assert isinstance(result, Failure)
    assert result.kind == "execution_error"
    assert f"lost {lost_calls.MAX_STARTS} times" in result.reason


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
