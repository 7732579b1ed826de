"""I5: a decision in the store reaches its run, even if the update that carried it was lost."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import delete, insert, update
from support.engine.stack import OPERATOR, ListModel, Stack, call, person, says, stack, until
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Policy, Rule
from turngate.approvals_api.recovery import redelivery
from turngate.approvals_api.requests import decide
from turngate.domain.errors import ConflictError
from turngate.domain.requests import Verb
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import executions, runs
from turngate.store.tables import approvals, metadata


def paying() -> ListModel:
    return ListModel(says(call("pay", '{"cents": 5}', "c1")), says("Done."))


def asking(**terms: object) -> Policy:
    return Policy(rule=[Rule.model_validate({"name": "asked", "verdict": "ask", "tools": ["pay"], **terms})])


async def lose_the_update(engine: Stack, run: runs.Run, verb: Verb) -> requests.Request:
    """Leave what a server leaves that dies before the workflow task is complete: the store knows, the run does not."""
    request = await engine.request(run)
    await engine.record(request, verb, decision_id="lost", by="ann")
    return request


async def signals(engine: Stack, run: runs.Run) -> int:
    history = await engine.workflow(run).fetch_history()
    return sum(event.HasField("workflow_execution_signaled_event_attributes") for event in history.events)


async def test_i5_a_decision_whose_update_was_lost_is_sent_again(
    client: Client, database: Database, bench: Bench
) -> None:
    """I5: a run that waits for a decision the store already has gets it when the API starts; sent twice, it runs once."""
    async with stack(client, database, bench.pay, model=paying()) as engine:
        run = await engine.start()
        await lose_the_update(engine, run, "approve")
        await redelivery.redeliver_earlier(engine.services)
        await redelivery.redeliver_earlier(engine.services)
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]
        assert (await engine.executions(run))["c1"].decision_id == "lost"


FORGED = {
    "approved": ("requests", {"status": "approved", "verb": "approve"}),
    "edited": ("calls", {"edited_input": '{"cents": 9}'}),
    "by another": ("requests", {"decided_by": "otto"}),
    "started": ("calls", {"effect": "idempotent"}),
}


@pytest.mark.parametrize("forged", FORGED)
async def test_i15_an_answer_that_no_one_gave_starts_nothing(
    client: Client, sqlite: Database, bench: Bench, forged: str
) -> None:
    """I15: a call whose rows were changed to say that someone approved it as it is, or that it started, does not run."""
    name, values = FORGED[forged]
    async with stack(client, sqlite, bench.pay, model=paying(), tampered="a row is changed") as engine:
        run = await engine.start()
        request = await engine.request(run)
        if forged == "approved":
            values |= {"decision_id": "forged", "decided_by": "otto", "decided_at": as_text(now())}
        elif forged != "started":
            await engine.record(request, "approve", decision_id="given")
        table = metadata.tables[name]
        async with sqlite.write() as conn:
            await conn.execute(update(table).where(table.c.run_id == run.id).values(**values))
            if forged == "started":
                names = {"run_id": run.id, "tool_call_id": "c1", "digest": request.digest, "decision_id": None}
                await executions.begin(conn, executions.NewExecution(**names, idempotency_key="key"))
        await engine.services.gateway.tell_decided_again(run.id, request.id)
        ended = await engine.ended(run)
        assert (ended.status, ended.error_class) == ("failed", "configuration")
        assert "what lets call c1 run was changed in the database" in ended.reason
        assert bench.paid == []


@pytest.mark.parametrize("stays", [True, False])
async def test_i15_an_approval_that_is_only_a_row_does_not_count(
    client: Client, sqlite: Database, bench: Bench, stays: bool
) -> None:
    """I15: of two people who must approve, one is only a row in the table: nothing runs, also once the row is gone again."""
    two = {"working": False, "policy": asking(quorum=2), "tampered": "an approval is added"}
    async with stack(client, sqlite, bench.pay, model=paying(), **two) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        forged = {"request_id": request.id, "decided_by": "the-ceo", "decision_id": "forged", "message": ""}
        async with sqlite.write() as conn:
            await conn.execute(insert(approvals).values(**forged, created_at=request.created_at))
        await engine.decide(request, "approve")
        if not stays:
            async with sqlite.write() as conn:
                await conn.execute(delete(approvals).where(approvals.c.decision_id == "forged"))
        async with engine.worker():
            ended = await engine.ended(run)
        assert (ended.status, ended.error_class, "approvals" in ended.reason) == ("failed", "configuration", True)
        assert bench.paid == []


async def test_i15_an_approval_that_was_taken_back_starts_nothing(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I15: the request that asks again was deleted from the table: the approval before it lets nothing run."""
    policy = asking(grace_seconds=600)
    async with stack(client, sqlite, bench.pay, model=paying(), policy=policy, tampered="a row is gone") as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.decide(request, "approve")
        again = await decide.withdraw_approval(engine.services, OPERATOR, request.id)
        table = metadata.tables["requests"]
        async with sqlite.write() as conn:
            await conn.execute(delete(table).where(table.c.id == again))
        await engine.services.gateway.tell_decided_again(run.id, again)
        ended = await engine.ended(run)
        assert (ended.status, f"requests {again}: the row is missing" in ended.reason) == ("failed", True)
        assert bench.paid == []


async def test_i15_terms_that_no_rung_wrote_let_no_one_decide(client: Client, sqlite: Database, bench: Bench) -> None:
    """I15: a request whose row says that it climbed, to terms of someone else's, is not shown, decided or climbed on."""
    policy = asking(people=["ann"])
    async with stack(client, sqlite, bench.pay, model=paying(), policy=policy, tampered="a row is changed") as engine:
        run = await engine.start()
        request = await engine.request(run)
        table = metadata.tables["requests"]
        async with sqlite.write() as conn:
            forged = update(table).where(table.c.id == request.id)
            await conn.execute(forged.values(rungs_climbed=1, terms=request.terms.replace("ann", "eve")))
            seen = await requests.as_opened(conn, request.id)
        assert (seen is not None, seen and seen.changed) == (True, "rungs_climbed")
        with pytest.raises(ConflictError, match="column rungs_climbed"):
            await engine.decide(request, "approve", by=person("eve"))


async def test_i5_decisions_are_looked_at_once_a_few_seconds_after_they_were_made(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: a running API follows the decisions: none before its time, none twice."""
    async with stack(client, sqlite, bench.pay, model=paying()) as engine:
        seq = await redelivery.redeliver_earlier(engine.services)
        run = await engine.start()
        request = await lose_the_update(engine, run, "approve")
        assert await redelivery.redeliver_after(engine.services, seq) < await engine.services.feed.last_seq()
        assert await signals(engine, run) == 0
        seq = await redelivery.redeliver_after(engine.services, seq, -redelivery.GRACE)  # as if time had passed
        assert (await engine.ended(run)).status == "completed"
        await redelivery.redeliver_after(engine.services, seq, -redelivery.GRACE)
        assert await signals(engine, run) == 1
        assert not await redelivery.redeliver(engine.services, request.id)


async def test_a_decision_that_is_acted_on_is_not_sent_again(client: Client, sqlite: Database, bench: Bench) -> None:
    """A run whose call has started has the decision; only a refusal in a step that stays open is sent again, in vain."""
    asking = [call("pay", f'{{"cents": {cents}}}', f"c{cents}") for cents in (5, 6)]
    model = ListModel(says(call("slow", "{}", "c1"), *asking), says("Done."))
    async with stack(client, sqlite, bench.slow, bench.pay, model=model) as engine:
        run = await engine.start()
        approved = await engine.request(run)
        await engine.decide(approved, "approve")
        rejected = await engine.request(run)
        await engine.decide(rejected, "reject")
        await until(lambda: asyncio.sleep(0, bench.paid), "start of the approved call")
        assert not await redelivery.redeliver(engine.services, approved.id)
        assert await redelivery.redeliver(engine.services, rejected.id)
        bench.release.set()
        assert (await engine.ended(run)).status == "completed"
        assert not await redelivery.redeliver(engine.services, rejected.id)
        assert len(bench.paid) == 1
