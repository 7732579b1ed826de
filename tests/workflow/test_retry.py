"""Retry: a failed or interrupted run continues where it ended; nothing runs twice (I3), every call has a result (I1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine.stack import ListModel, Stack, call, says, stack
from support.engine.tools import Bench
from temporalio.client import Client

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import retry as retry_run
from turngate.approvals_api.runs.order import ForkPoint, checked_order, record, take_back
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.errors import ConflictError, ModelError
from turngate.store import agents
from turngate.store.database import Database
from turngate.store.runs import messages, runs
from turngate.wire.orders import StartOrder

PERSON = Principal(name="ada", via="session", scopes=frozenset({"runs:write", "requests:read", "requests:decide"}))
GONE = ModelError("the key is wrong", error_class="model_auth", retryable=False)


async def retry(engine: Stack, run: runs.Run, key: str | None = None) -> runs.Run:
    return await retry_run.retry(engine.services, PERSON, run.id, idempotency_key=key)


async def test_i3_a_run_that_failed_continues_and_sends_nothing_twice(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The payment that ran is in the past of the retry, and the model continues from its result."""
    model = ListModel(says("Pay.", call("pay", '{"cents": 5}', "p")), GONE, says("Done."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        failed = await engine.ended(run)
        assert (failed.status, failed.error_class) == ("failed", "model_auth")
        again = await retry(engine, run, "k1")
        assert (await retry(engine, run, "k1")).id == again.id
        ended = await engine.ended(again)
        assert (ended.status, ended.conversation_id) == ("completed", run.conversation_id)
        assert (ended.forked_from_run_id, ended.forked_from_step, ended.started_by) == (run.id, 1, "ada")
        assert [message.role for message in model.seen[-1].messages[1:]] == ["user", "assistant", "tool"]
        assert bench.paid == [5]
        assert is_reconciled(await engine.history(again))


async def test_a_run_that_failed_at_its_first_step_begins_again(client: Client, sqlite: Database, bench: Bench) -> None:
    """Nothing was answered, so the retry begins with the same message, once."""
    model = ListModel(GONE, says("Done."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start("say hello")
        await engine.ended(run)
        again = await engine.ended(await retry(engine, run))
        assert (again.status, again.task) == ("completed", "say hello")
        assert [message.role for message in await engine.history(again)] == ["user", "assistant"]


@pytest.mark.exhaustive
async def test_an_interrupted_run_continues_knowing_what_did_not_run(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The call that waited is closed as interrupted; if the model repeats it, it gets its own request, and runs once."""
    pay = call("pay", '{"cents": 5}', "p")
    model = ListModel(says("Pay.", pay), says("Again.", call("pay", '{"cents": 5}', "q")), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start()
        first = await engine.request(run)
        with pytest.raises(ConflictError, match="is running"):
            await retry(engine, run)
        await engine.interrupt(run)
        await engine.ended(run)
        again = await retry(engine, run)
        second = await engine.request(again)
        assert second.id != first.id
        assert "interrupted" in model.seen[1].messages[-1].model_dump_json()
        await engine.decide(second, "approve")
        assert (await engine.ended(again)).status == "completed"
        assert bench.paid == [5]
        assert is_reconciled(await engine.history(again))


@pytest.mark.exhaustive
async def test_what_cannot_be_retried_says_why(client: Client, sqlite: Database, bench: Bench) -> None:
    """A completed run, and one whose conversation has continued: a conflict that says what to do, and nothing changes."""
    model = ListModel(GONE, says("Answered."), says("never"))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start()
        await engine.ended(run)
        second = await engine.start("and now?", conversation_id=run.conversation_id)
        await engine.ended(second)
        with pytest.raises(ConflictError, match="fork the run"):
            await retry(engine, run)
        with pytest.raises(ConflictError, match="is completed"):
            await retry(engine, second)
        async with sqlite.read() as conn:
            assert len(await runs.page(conn, limit=9)) == 2


async def test_a_retry_that_did_not_start_leaves_the_conversation_as_it_was(
    client: Client, database: Database, bench: Bench
) -> None:
    """If Temporal is unreachable, the retry's row is removed, the conversation is unchanged, and a later retry works."""
    async with stack(client, database, bench.pay, model=ListModel(GONE, says("Done."))) as engine:
        run = await engine.ended(await engine.start("say hello"))
        wanted = StartOrder(agent="agent", input=run.task, conversation_id=run.conversation_id)
        plain = await checked_order(wanted, PERSON)
        point = ForkPoint(run_id=run.id, step=0, message_id=run.head_message_id)
        order = replace(plain, forked_from=point, continues=True)
        async with database.write() as conn:
            published = await agents.get(conn, "agent")
            assert published is not None
            begun = await record(conn, PERSON, published, order)
        async with database.write() as conn:
            await take_back(conn, begun, order)
        async with database.read() as conn:
            assert [each.id for each in await runs.page(conn, limit=9)] == [run.id]
            assert await messages.head_of(conn, run.conversation_id) == run.head_message_id
        assert (await engine.ended(await retry(engine, run))).status == "completed"
