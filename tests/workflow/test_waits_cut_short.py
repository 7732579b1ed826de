"""A switch of a live run's model cuts a wait that its provider asked for; what is on its way is left alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from support.engine.stack import Cast, ListModel, person, says, stack, until
from support.engine.tools import Bench
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.gateway.expedite import expedite_model
from turngate.approvals_api.runs import explain, switch_model
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ModelError
from turngate.models.port import ModelRequest
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database

LONG = 500.0
"""Seconds, as a provider's Retry-After says them: a test that waits for them never ends."""
ADA = person("ada")


def limited() -> ModelError:
    return ModelError("slow down", error_class="rate_limited", retryable=True, retry_after_seconds=LONG)


async def waits_for_its_next_attempt(client: Client, run_id: str) -> None:
    """Return when a failed request of the run waits to be sent again, as Temporal knows it."""

    async def waits() -> bool:
        pending = (await client.get_workflow_handle(run_id).describe()).raw_description.pending_activities
        return any(each.attempt > 1 and each.state == 1 for each in pending)

    await until(waits, "wait for the next attempt")


async def test_a_switch_cuts_the_wait_for_a_retry(client: Client, sqlite: Database, bench: Bench) -> None:
    """The new model is asked at once, not in ten minutes; until then the explanation says when; history has no trace of it.

    Choosing the run's current model ends a wait, too, and logs no second switch.
    """
    big = ListModel(limited(), says("Done."))
    models = Cast(test=ListModel(limited()), big=big)
    async with stack(client, sqlite, bench.look, model=models) as engine:
        run = await engine.start()
        await waits_for_its_next_attempt(client, run.id)
        [wait] = (await explain.explain(engine.services, person("ada"), run.id)).waits_for
        assert (wait.kind, wait.since) == ("model_retrying", None)
        assert wait.until is not None
        assert "attempt 2 next: slow down" in wait.says
        await switch_model.switch_model(engine.services, ADA, run.id, model="scripted:big")
        await until(lambda: asyncio.sleep(0, big.seen), "request to the new model")
        await waits_for_its_next_attempt(client, run.id)
        await switch_model.switch_model(engine.services, ADA, run.id, model="scripted:big")
        ended = await engine.ended(run)
        assert (ended.status, ended.model) == ("completed", "scripted:big")
        history = await client.get_workflow_handle(run.id).fetch_history()
        scheduled = [each for each in history.events if each.HasField("activity_task_scheduled_event_attributes")]
        assert len(scheduled) == 1
        assert [each.type for each in await engine.events(run)].count("run.model_switched") == 1


class Slow:
    """Answers when it is let."""

    name = "scripted:slow"

    def __init__(self) -> None:
        self.requests = 0
        self.begun, self.let = asyncio.Event(), asyncio.Event()

    async def generate(self, _request: ModelRequest) -> ModelResponse:
        self.requests += 1
        self.begun.set()
        await self.let.wait()
        return says("Done.")

    async def aclose(self) -> None:
        return None


async def test_a_request_on_its_way_comes_to_its_end(client: Client, sqlite: Database, bench: Bench) -> None:
    """A switch neither cancels nor repeats what is being answered."""
    slow = Slow()
    async with stack(client, sqlite, bench.look, model=slow) as engine:
        run = await engine.start()
        await slow.begun.wait()
        assert not await expedite_model(client, run.id)
        slow.let.set()
        assert (await engine.ended(run)).status == "completed"
        assert slow.requests == 1


async def test_a_switch_does_not_need_temporal(client: Client, sqlite: Database, bench: Bench) -> None:
    """With the server away the switch is stored all the same; the wait stays as it is."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    async with stack(client, sqlite, bench.look, model=ListModel(says("Done.")), working=False) as engine:
        run = await engine.start()
        engine.services = replace(engine.services, gateway=Gateway(nowhere))
        async with asyncio.timeout(LONG / 2):
            switched = await switch_model.switch_model(engine.services, ADA, run.id, model="scripted:big")
        assert switched.model == "scripted:big"
