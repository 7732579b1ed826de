"""The engine on the OpenAI-compatible adapter, against a real HTTP server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from support.engine.stack import stack
from support.engine.tools import Bench
from support.servers.fake_provider import FakeProvider, closed_port, completion, serving_provider, tool_call
from temporalio.client import Client

from turngate import Limits
from turngate.models import OpenAICompatibleModel
from turngate.store.database import Database


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with serving_provider() as server:
        yield server


async def test_a_gated_turn_on_the_wire(client: Client, sqlite: Database, bench: Bench, provider: FakeProvider) -> None:
    """Two requests reach the provider: the second holds the model's own call, opaque fields and all, and its result."""
    opaque = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    provider.answer(completion("I will pay.", calls=[tool_call("pay", '{ "cents": 5 }', call_id="call_9", **opaque)]))
    provider.answer(completion("Paid."))
    model = OpenAICompatibleModel(provider.base_url, None, "some-model", timeout=10)
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start("pay")
        await engine.decide(await engine.request(run), "approve")
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.history(run))[-1].text == "Paid."
    await model.aclose()
    assert bench.paid == [5]
    sent = provider.requests[1].body["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool"]
    assert sent[2]["tool_calls"][0]["function"]["arguments"] == '{ "cents": 5 }'
    assert sent[2]["tool_calls"][0]["extra_content"] == opaque["extra_content"]
    assert (sent[3]["tool_call_id"], sent[3]["content"]) == ("call_9", '{"paid":5}')


async def test_a_wrong_key_fails_the_run_and_says_which_setting(
    client: Client, sqlite: Database, provider: FakeProvider
) -> None:
    """401: one request, no retry, a reason that names the setting, and nothing left open."""
    provider.answer({"error": {"message": "Incorrect API key"}}, status=401)
    model = OpenAICompatibleModel(provider.base_url, "sk-wrong", "some-model", timeout=10)
    async with stack(client, sqlite, model=model) as engine:
        run = await engine.ended(await engine.start())
    await model.aclose()
    assert (run.status, run.error_class) == ("failed", "authentication")
    assert "TURNGATE_OPENAI_API_KEY" in run.reason
    assert "sk-wrong" not in run.reason
    assert len(provider.requests) == 1


@pytest.mark.exhaustive
async def test_a_model_that_no_server_offers_fails_the_run_when_its_time_is_up(
    client: Client, sqlite: Database
) -> None:
    """Unreachable: tried again, each time with a word to the watchers, for as long as the agent's ``model_retry``."""
    model = OpenAICompatibleModel(f"http://127.0.0.1:{closed_port()}/v1", None, "some-model", timeout=10)
    async with stack(client, sqlite, model=model, limits=Limits(model_retry=timedelta(seconds=2))) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class) == ("failed", "unreachable")
        assert "TURNGATE_OPENAI_BASE_URL" in run.reason
        assert "model.retrying" in [event.type for event in await engine.events(run)]
    await model.aclose()


async def test_an_interrupt_ends_the_waiting_for_a_model(client: Client, sqlite: Database) -> None:
    """A run that tries its model again and again is interrupted at once."""
    model = OpenAICompatibleModel(f"http://127.0.0.1:{closed_port()}/v1", None, "some-model", timeout=10)
    async with stack(client, sqlite, model=model) as engine:
        run = await engine.start()
        await engine.event(run, "model.retrying")
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
    await model.aclose()
