"""I3, I5: PostgreSQL is killed while a tool works and an operator decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.engine.stack import ListModel, Stack, call, says, stack, until
from support.engine.tools import Bench
from support.stores.postgres_server import Cluster
from temporalio.client import Client

from turngate.domain.conversation.history import is_reconciled
from turngate.domain.errors import UnavailableError
from turngate.domain.tools.results import Ok
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server of this test's own: the others' must not be killed."""
    postgres = Cluster()
    postgres.start()
    postgres.wait_until_ready()
    yield postgres
    postgres.close()


async def test_i3_i4_i5_kill_dash_nine_of_postgresql(client: Client, cluster: Cluster, bench: Bench) -> None:
    """I3, I4, I5: a store killed between effect and record, and under a decision, loses neither and repeats neither.

    While the store is away no decision is taken; a signal that the run gets meanwhile changes nothing.
    """
    database = Database(cluster.server.fresh_url())
    await database.migrate()
    step_calls = [
        call("slow", "{}", "slow"),
        call("pay", '{"cents": 5}', "refused"),
        call("pay", '{"cents": 6}', "accepted"),
    ]
    model = ListModel(says(*step_calls), says("Done."))
    async with stack(client, database, bench.slow, bench.pay, model=model) as on:
        run = await on.start()
        await bench.started.wait()
        await until(lambda: waiting(on, run, 2), "two requests")
        refused, accepted = await waiting(on, run, 2)
        cluster.kill()
        bench.release.set()
        with pytest.raises(UnavailableError):
            await on.decide(refused, "approve", decision_id="d1")
        await on.services.gateway.tell_decided_again(run.id, accepted.id)  # forged, or too early: it decides nothing
        await asyncio.to_thread(cluster.start_again)

        assert (await on.decide(refused, "approve", decision_id="d1")).status == "approved"
        assert await waiting(on, run, 1) == [accepted]
        assert (await on.decide(accepted, "approve", decision_id="d2")).status == "approved"
        assert (await on.ended(run)).status == "completed"
        paid = {"refused": Ok(value={"paid": 5}), "accepted": Ok(value={"paid": 6})}
        assert await on.results(run) == {"slow": Ok(value={"value": "whole"}), **paid}
        assert (sorted(bench.paid), bench.most_running) == ([5, 6], 1)
        assert {each.attempts for each in (await on.executions(run)).values()} == {1}
        assert is_reconciled(await on.history(run))
    await database.close()


async def waiting(on: Stack, run: runs.Run, count: int) -> list[requests.Request]:
    """The run's pending requests in the model's order; none unless there are so many."""
    async with on.database.read() as conn:
        pending = [each for each in await requests.of_run(conn, run.id) if each.status == "pending"]
    return sorted(pending, key=lambda each: each.input) if len(pending) == count else []
