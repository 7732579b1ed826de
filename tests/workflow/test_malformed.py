"""I9: malformed responses are stored, answered, and distinguished from a provider's failure, from the wire on.

Counting them, retries, and the end of the run: ``test_malformed_output.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.engine.stack import ListModel, Stack, call, says, stack
from support.engine.tools import Bench
from support.servers.fake_provider import FakeProvider, completion, serving_provider, tool_call
from temporalio.client import Client

from turngate import Hooks
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.tools.results import Failure
from turngate.models import OpenAICompatibleModel
from turngate.store.database import Database
from turngate.store.runs import runs

GOOD = says(call("look", '{"name": "x"}'))


def malformed(*parts: Any, why: str = "it ended in the middle of a word") -> ModelResponse:
    return says(*parts).model_copy(update={"malformed": why})


async def test_i9_a_malformed_response_is_stored_and_answered(client: Client, sqlite: Database, bench: Bench) -> None:
    """I9: its text stays in the conversation; the model reads what was wrong and which tools there are, and continues."""
    model = ListModel(malformed("<tool_call>{"), GOOD, says("Done."))
    async with stack(client, sqlite, bench.look, bench.pay, model=model) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        history = await engine.history(run)
        assert [message.role for message in history] == ["user", "assistant", "user", "assistant", "tool", "assistant"]
        assert history[1].text == "<tool_call>{"
        assert "could not be parsed: it ended in the middle of a word." in history[2].text
        assert "The tools are: look, pay." in history[2].text
        assert list(model.seen[1].messages)[1:] == history[:3]
        assert bench.looked == ["x"]


async def test_a_step_hook_gets_no_results_of_a_malformed_response(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The corrective message that closes a malformed step is no message of results."""

    class Steps(Hooks):
        seen: list[tuple[int, list[str]]]

        async def after_step(self, scope, results):
            self.seen.append((scope.step, [message.role for message in results]))

    steps = Steps()
    steps.seen = []
    async with stack(
        client, sqlite, bench.look, model=ListModel(malformed("x"), GOOD, says("Done.")), hooks=[steps]
    ) as engine:
        run = await engine.start()
        await engine.ended(run)
        await engine.closed(run)
        assert steps.seen == [(1, []), (2, ["tool"]), (3, [])]


# From the wire


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with serving_provider() as server:
        yield server


@asynccontextmanager
async def asking(client: Client, database: Database, provider: FakeProvider, bench: Bench) -> AsyncIterator[Stack]:
    model = OpenAICompatibleModel(provider.base_url, None, "some-model", timeout=10)
    async with stack(client, database, bench.look, bench.pay, model=model) as engine:
        yield engine
    await model.aclose()


def raw(message: object, finish_reason: object = "stop") -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish_reason}]}


WIRE = {
    "raw-call": (completion('<tool_call>{"name": "look"}</tool_call>'), "a call of look written as text"),
    "finish-reason": (raw({"content": "", "role": "assistant"}, "MALFORMED_FUNCTION_CALL"), "could not read the tool"),
    "shape": (raw({"content": {"text": "x"}}), "neither text nor a list of blocks"),
    "calls": (raw({"content": "Well.", "tool_calls": "look(x)"}), "not a list"),
    "empty": (raw({"role": "assistant", "content": None}), "was empty"),
}


@pytest.mark.parametrize("case", WIRE)
async def test_i9_from_the_wire_the_model_is_corrected_and_does_better(
    client: Client, sqlite: Database, bench: Bench, provider: FakeProvider, case: str
) -> None:
    """I9: one response, paid for once: the next request corrects the model, and its good call runs."""
    body, says_what = WIRE[case]
    provider.answer(body)
    provider.answer(completion(calls=[tool_call("look", '{"name": "x"}')]))
    provider.answer(completion("Done."))
    async with asking(client, sqlite, provider, bench) as engine:
        run = await engine.ended(await engine.start())
        assert run.status == "completed"
        assert "model.retrying" not in [event.type for event in await engine.events(run)]
    assert len(provider.requests) == 3
    correction = provider.requests[1].body["messages"][-1]
    assert correction["role"] == "user"
    assert says_what in correction["content"]
    assert "look, pay" in correction["content"]
    assert bench.looked == ["x"]


async def test_i9_broken_calls_from_the_wire_harm_no_neighbour(
    client: Client, sqlite: Database, bench: Bench, provider: FakeProvider
) -> None:
    """I9: junk among the calls is answered as what it is, the whole calls run, and the provider takes the history back."""
    good = tool_call("look", '{"name": "x"}', call_id="good")
    junk = [
        None,
        "look",
        {"id": "j3", "type": "function"},
        {"id": "j4", "function": {"name": "look", "arguments": [1]}},
    ]
    provider.answer(completion(calls=[*junk[:2], good, *junk[2:]]))
    provider.answer(completion("Done."))
    async with asking(client, sqlite, provider, bench) as engine:
        run: runs.Run = await engine.ended(await engine.start())
        assert run.status == "completed"
        results = list((await engine.results(run)).values())
        kinds = [result.kind if isinstance(result, Failure) else "ok" for result in results]
        assert kinds == ["unknown_tool", "unknown_tool", "ok", "unknown_tool", "input_validation_error"]
        assert bench.looked == ["x"]
    sent = provider.requests[1].body["messages"]
    ids = [each["id"] for each in sent[2]["tool_calls"]]
    assert len(set(ids)) == 5
    assert ids == [message["tool_call_id"] for message in sent[3:]]
    assert all(
        isinstance(sent_call["function"]["arguments"], str) and sent_call["function"]["name"]
        for sent_call in sent[2]["tool_calls"]
    )


async def test_an_answer_whose_envelope_is_broken_is_asked_for_again(
    client: Client, sqlite: Database, bench: Bench, provider: FakeProvider
) -> None:
    """A response that is not a completion is the provider's failure: it is retried, and the model reads nothing about it."""
    provider.answer(b"<html>busy</html>")
    provider.answer(completion("Done."))
    async with asking(client, sqlite, provider, bench) as engine:
        run = await engine.ended(await engine.start())
        assert run.status == "completed"
        assert "model.retrying" in [event.type for event in await engine.events(run)]
    assert provider.requests[0].body == provider.requests[1].body
