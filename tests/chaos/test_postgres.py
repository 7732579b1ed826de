"""I3, I5: PostgreSQL is killed while a tool works and an operator decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.engine import ListModel, Stack, call, says, stack, until
from support.postgres_server import Cluster
from support.tools import Bench
from temporalio.client import Client

from turngate.domain.contract import DecideInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.errors import UnavailableError
from turngate.domain.tools.results import Ok
from turngate.store.clock import now
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

    While the store is away the decision is refused with an error; an accepted one is stored as soon as possible.
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
        signaled = DecideInput(
            decision_id="d2",
            request_id=accepted.id,
            verb="approve",
            digest=accepted.digest,
            by="operator",
            sent_at=now(),
        )
        updated = signaled.model_copy(update={"decision_id": "d1", "request_id": refused.id, "digest": refused.digest})

        cluster.kill()
        bench.release.set()
        with pytest.raises(UnavailableError):
            await on.decide(refused, "approve", decision_id="d1")
        with pytest.raises(UnavailableError, match="nothing was decided"):
            await on.services.gateway.decide(run.id, updated)
        await on.services.gateway.tell_decision(
            run.id, signaled
        )  # as when no worker answers: from here on it is accepted
        await until(lambda: has_failed_to_record(on, run, times=3), "a worker that could not store the decision")
        await asyncio.to_thread(cluster.start_again)

        assert (await on.decide(refused, "approve", decision_id="d1")).status == "approved"
        assert (await on.ended(run)).status == "completed"
        assert (await on.decide(accepted, "approve", decision_id="d2")).status == "approved"
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


async def has_failed_to_record(on: Stack, run: runs.Run, *, times: int) -> bool:
    """Tell whether the run's history holds so many local activities that failed."""
    events = (await on.client.get_workflow_handle(run.id).fetch_history()).events
    markers = [
        each.marker_recorded_event_attributes for each in events if each.HasField("marker_recorded_event_attributes")
    ]
    return sum(marker.HasField("failure") for marker in markers) >= times
