"""Requests that several people have to approve: who counts, how often, and what ends them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.engine.stack import OPERATOR, STARTER, ListModel, Stack, call, person, says, stack
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Policy, Rule
from turngate.approvals_api.principal import OPERATOR_SCOPES, Principal
from turngate.approvals_api.requests import claim, decide
from turngate.approvals_api.requests.decide import DecisionAnswer
from turngate.domain.errors import ConflictError, ForbiddenError, GoneError, InvalidInputError
from turngate.domain.runs.event_chain import ChainBreak
from turngate.domain.tools.results import Failure
from turngate.store.database import Database
from turngate.store.evidence import first_difference
from turngate.store.requests import requests
from turngate.store.runs import runs


async def differences_in(engine: Stack, run: runs.Run) -> ChainBreak | None:
    async with engine.database.read() as conn:
        return await first_difference(conn, run.id)


ANN, BOB, EVE, ZOE = (person(name) for name in ("ann", "bob", "eve", "zoe"))


def paying() -> ListModel:
    return ListModel(says("I will pay.", call("pay", '{"cents": 5}', "c1")), says("Done."))


def needing(quorum: int, **terms: Any) -> Policy:
    rule = {"name": "several", "verdict": "ask", "tools": ["pay"], "quorum": quorum, **terms}
    return Policy(rule=[Rule.model_validate(rule)])


async def approvers(engine: Stack, request: requests.Request) -> list[str]:
    """Who is counted, by the rows; the request's own number must agree with them."""
    async with engine.database.read() as conn:
        counted = [each.decided_by for each in await requests.of_request(conn, request.id)]
        row = await requests.get(conn, request.id)
    assert row is not None
    assert row.approvals == len(counted)
    return counted


async def partial_approvals(engine: Stack, run: runs.Run) -> list[tuple[str, int, int]]:
    """The logged approvals that did not decide: by whom, their number, and the quorum."""
    payloads = [event.payload for event in await engine.events(run) if event.type == "request.approved_once"]
    return [(str(each["by"]), int(str(each["approvals"])), int(str(each["quorum"]))) for each in payloads]


async def test_one_rejection_is_a_veto(client: Client, sqlite: Database, bench: Bench) -> None:
    """Two of three have approved; one who rejects ends it, and the model reads their reason."""
    async with stack(client, sqlite, bench.pay, model=paying(), policy=needing(3)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        for who in (ANN, BOB):
            await engine.decide(request, "approve", by=who)
        assert (await engine.decide(request, "reject", by=EVE, message="Not today.")).status == "rejected"
        with pytest.raises(ConflictError) as late:
            await engine.decide(request, "approve", by=ZOE)
        assert late.value.details["verb"] == "reject"
        await engine.ended(run)
        result = (await engine.results(run))["c1"]
        assert isinstance(result, Failure)
        assert (result.kind, result.fields["operator"]) == ("rejected", "eve")
        assert "Not today." in result.reason
        assert bench.paid == []
        assert await approvers(engine, request) == ["ann", "bob"]


async def test_i4_no_one_counts_twice_and_an_approval_may_be_taken_back(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I4: of four requests of one step: a repeat, an approval that is taken back, one's own rejection after it, and a claim.

    A second approval of one person is a conflict; the same decision id is the same approval, also after the end. One that
    is taken back no longer counts, may be given again, and can't be taken back after the last one. A rejection after one's
    own approval ends the request. A claim keeps others from deciding until its holder approves, for the others are still
    needed. The log accounts for all.
    """
    calls = [call("pay", f'{{"cents": {cents}}}', f"c{cents}") for cents in (5, 6, 7, 8)]
    model = ListModel(says("I will pay.", *calls), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model, policy=needing(2)) as engine:
        run = await engine.start()
        repeated, returned, rejected, claimed = [await engine.request_about(run, each.tool_call_id) for each in calls]
        first, last = await approve_twice(engine, repeated)
        await take_back(engine, returned)
        await engine.decide(rejected, "approve", by=ANN)
        assert (await engine.decide(rejected, "reject", by=ANN, message="I was wrong.")).status == "rejected"
        await claim_and_approve(engine, claimed)
        assert (await engine.ended(run)).status == "completed"
        assert await engine.decide(repeated, "approve", by=ANN, decision_id="d-ann") == first
        assert await engine.decide(repeated, "approve", by=BOB, decision_id="d-ann") == last
        assert (first.status, last.status) == ("pending", "approved")
        assert sorted(bench.paid) == [5, 6, 8]
        logged = await engine.events(run)
        withdrawn = [each.payload for each in logged if each.type == "request.approval_withdrawn"]
        assert [(each["by"], each["decision_id"], each["approvals"]) for each in withdrawn] == [("ann", "d-back", 0)]
        claims = [event.type for event in logged if "claim" in event.type or "release" in event.type]
        assert claims == ["request.claimed", "request.released"] * 2
        assert await differences_in(engine, run) is None


async def approve_twice(engine: Stack, request: requests.Request) -> tuple[DecisionAnswer, DecisionAnswer]:
    """Approve as ann, who tries it again in every way, and as bob; return both answers."""
    first = await engine.decide(request, "approve", by=ANN, decision_id="d-ann")
    assert first.status == "pending"
    for decision_id in (None, "d-ann-2"):
        with pytest.raises(ConflictError) as twice:
            await engine.decide(request, "approve", by=ANN, decision_id=decision_id)
        assert twice.value.error_code == "already_approved"
    assert await engine.decide(request, "approve", by=ANN, decision_id="d-ann") == first
    for other in ({"message": "But."}, {"verb": "reject"}):
        with pytest.raises(ConflictError) as reused:
            await engine.decide(request, other.pop("verb", "approve"), by=ANN, decision_id="d-ann", **other)
        assert reused.value.error_code == "idempotency_key_reused"
    assert await approvers(engine, request) == ["ann"]
    last = await engine.decide(request, "approve", by=BOB, decision_id="d-ann")
    assert last.decision_id != "d-ann", "ann's id is not his: he gets one of his own"
    return first, last


async def take_back(engine: Stack, request: requests.Request) -> None:
    """Approve as ann, who takes it back, then as bob and as ann again; after that neither can take theirs back."""
    first = await engine.decide(request, "approve", by=ANN, decision_id="d-back", message="Fine.")
    for _repeat in range(2):
        await decide.withdraw_approval(engine.services, ANN, request.id)
    await decide.withdraw_approval(engine.services, BOB, request.id)  # has given none
    assert await approvers(engine, request) == []
    assert (await engine.decide(request, "approve", by=BOB)).status == "pending"
    assert await engine.decide(request, "approve", by=ANN, decision_id="d-back", message="Fine.") == first
    assert await approvers(engine, request) == ["bob"], "the same decision again is not a new approval"
    assert (await engine.decide(request, "approve", by=ANN)).status == "approved"
    for who in (ANN, BOB):
        with pytest.raises(ConflictError) as late:
            await decide.withdraw_approval(engine.services, who, request.id)
        assert (late.value.error_code, late.value.details["decided_by"]) == ("already_decided", "ann")


async def claim_and_approve(engine: Stack, request: requests.Request) -> None:
    """Claim as ann, whose approval ends the claim, and as eve, who releases it."""
    await claim.claim(engine.services, ANN, request.id)
    with pytest.raises(ConflictError) as held:
        await engine.decide(request, "approve", by=BOB)
    assert held.value.error_code == "claimed"
    await engine.decide(request, "approve", by=ANN)
    await claim.claim(engine.services, EVE, request.id)
    with pytest.raises(ConflictError):
        await engine.decide(request, "approve", by=BOB)
    await claim.release(engine.services, EVE, request.id)
    await engine.decide(request, "approve", by=BOB)


async def test_i4_approvals_at_the_same_moment(client: Client, database: Database, bench: Bench) -> None:
    """I4: of twenty people at once, two count, the last of them wins, and every other learns the winner's name.

    An approval that is taken back as the last one comes: either the call was approved by two, or it waits with one
    approval; never approved with one of them taken back.
    """
    calls = [call("pay", json.dumps({"cents": cents}), f"c{cents}") for cents in range(5)]
    model = ListModel(says("I will pay.", *calls), says("Done."))
    async with stack(client, database, bench.pay, model=model, policy=needing(2)) as engine:
        run = await engine.start()
        crowded, *taken_back = [await engine.request_about(run, each.tool_call_id) for each in calls]
        await approve_as_a_crowd(engine, crowded)
        for request in taken_back:
            await engine.decide(request, "approve", by=ANN)
            withdrawn, approved = await asyncio.gather(
                decide.withdraw_approval(engine.services, ANN, request.id),
                engine.decide(request, "approve", by=BOB),
                return_exceptions=True,
            )
            assert isinstance(approved, DecisionAnswer)
            assert isinstance(withdrawn, ConflictError) == (approved.status == "approved")
            assert await approvers(engine, request) == (["ann", "bob"] if approved.status == "approved" else ["bob"])
            if approved.status == "pending":
                await engine.decide(request, "reject", by=ANN)
        await engine.ended(run)
        assert bench.paid.count(0) == 1, "what the crowd approved runs once"
        assert await differences_in(engine, run) is None


async def approve_as_a_crowd(engine: Stack, request: requests.Request) -> None:
    """Approve as twenty people at once."""
    crowd = [person(f"p{number}") for number in range(20)]
    answers = await asyncio.gather(
        *(engine.decide(request, "approve", by=who) for who in crowd), return_exceptions=True
    )
    statuses = sorted(answer.status for answer in answers if isinstance(answer, DecisionAnswer))
    assert statuses == ["approved", "pending"]
    lost = [answer for answer in answers if not isinstance(answer, DecisionAnswer)]
    async with engine.database.read() as conn:
        stored = await requests.get(conn, request.id)
    assert stored is not None
    assert [error.error_code for error in lost] == ["already_decided"] * 18
    assert {error.details["decided_by"] for error in lost} == {stored.decided_by}
    counted = await approvers(engine, request)
    assert len(counted) == 2
    assert stored.decided_by in counted


VIEWER = Principal(name="vic", via="session", scopes=OPERATOR_SCOPES, role="viewer")
"""A user whose session still has scopes that their role has lost."""
MACHINE = person("bot", machine=True)


async def test_i10_who_does_not_count(client: Client, sqlite: Database, bench: Bench) -> None:
    """I10: of two people other than the starter; who does not count is refused, and no one is counted.

    An interrupt ends a half-approved request: the next approval is refused, and the counted ones stay on record.
    """
    refused = [
        (STARTER, "approve", "not_eligible"),
        (STARTER, "reject", "not_eligible"),
        (person(f"cli:{STARTER.name}", "admin"), "approve", "not_eligible"),
        (person("vic", "viewer"), "approve", "missing_scope"),
        (VIEWER, "approve", "not_eligible"),
        (MACHINE, "approve", "not_eligible"),
        (MACHINE, "reject", "not_eligible"),
        (person("root", "admin", machine=True), "approve", "not_eligible"),
        (ANN, "edit", "verb_not_allowed"),  # the others would not see it
        (ANN, "respond", "verb_not_allowed"),
    ]
    policy = needing(2, starter_may_decide=False)
    async with stack(client, sqlite, bench.pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        for who, verb, code in refused:
            content = {"args": '{"cents": 1}'} if verb == "edit" else {"message": "x"}
            with pytest.raises((ForbiddenError, InvalidInputError)) as edge:
                await engine.decide(request, verb, by=who, **content)
            assert edge.value.error_code == code, (who, verb)
            assert await approvers(engine, request) == [], (who, verb)
        first = await engine.decide(request, "approve", by=OPERATOR, decision_id="d-1")
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        with pytest.raises(GoneError) as late:
            await engine.decide(request, "approve", by=ANN)
        assert late.value.error_code == "run_ended"
        assert await engine.decide(request, "approve", by=OPERATOR, decision_id="d-1") == first
        assert await approvers(engine, request) == ["operator"]
        assert bench.paid == []


async def test_i5_approvals_without_a_worker_are_final(client: Client, sqlite: Database, bench: Bench) -> None:
    """I5: approved while no worker ran, by one of them twice: each is counted once, and the call runs when a worker is back."""
    async with stack(client, sqlite, bench.pay, model=paying(), policy=needing(2), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        assert (await engine.decide(request, "approve", by=ANN, decision_id="d-ann")).status == "pending"
        for again in (ANN, person("cli:ann", "admin")):  # on a page, and in her terminal
            with pytest.raises(ConflictError) as twice:
                await engine.decide(request, "approve", by=again, decision_id=f"d-{again.name}-2")
            assert twice.value.error_code == "already_approved"
        assert (await engine.decide(request, "approve", by=BOB, decision_id="d-bob")).status == "approved"
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]
        assert await approvers(engine, request) == ["ann", "bob"]
        assert await partial_approvals(engine, run) == [("ann", 1, 2)]
        assert (await engine.executions(run))["c1"].decision_id == "d-bob"
        assert (await engine.decide(request, "approve", by=ANN, decision_id="d-ann")).status == "pending"
