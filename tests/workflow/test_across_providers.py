"""One conversation through the real engine, from provider to provider and back, with nothing lost on the way.

The providers' answers are recorded ones (tests/unit/models/wire), served on loopback.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.engine.stack import STARTER, Cast, Stack, stack
from support.engine.tools import Bench
from support.servers.fake_provider import STREAM_END, FakeProvider, chunk, serving_provider
from temporalio.client import Client
from unit.models.wire.recordings import ANTHROPIC, GOOGLE, answer, content_of, models_at, recorded

from turngate import tool
from turngate.approvals_api.runs import fork
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.tools.tool import Tool
from turngate.models import Models
from turngate.models.port import LanguageModel
from turngate.store.database import Database
from turngate.store.runs.runs import Run
from turngate.wire.orders import ForkOrder

OPENAI = "openai:some-model"
OPENAI_OPAQUE = {"google": {"thought_signature": "b3BlbmFpLWNvbXBhdGlibGU="}}
THINKING = recorded("anthropic-thinking-call.json")["content"][0]
SIGNED = recorded("google-signed-calls.json")["candidates"][0]["content"]["parts"][0]["thoughtSignature"]
ANSWER_SIGNED = recorded("google-thought-answer.json")["candidates"][0]["content"]["parts"][1]["thoughtSignature"]


class Providers(Cast):
    """Resolves every spec as a worker would; the agent's own model is never asked."""

    declared = (OPENAI, ANTHROPIC, GOOGLE)

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._all = models

    def resolve(self, spec: str) -> LanguageModel:
        return self._all.resolve(spec)


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    with serving_provider() as provider:
        yield provider


def today() -> Tool:
    @tool(effect="read", ask=False)
    async def today() -> str:
        """Say which day it is."""
        return "Sunday"

    return today


def openai_call(server: FakeProvider) -> None:
    function = {"name": "look", "arguments": '{"name": "Zoë"}'}
    call = {"index": 0, "id": "call_9", "type": "function", "function": function, "extra_content": OPENAI_OPAQUE}
    server.stream(chunk({"role": "assistant", "tool_calls": [call]}), chunk(finish_reason="tool_calls"), STREAM_END)


def openai_text(server: FakeProvider, text: str) -> None:
    server.stream(chunk({"role": "assistant", "content": text}), chunk(finish_reason="stop"), STREAM_END)


async def turn(engine: Stack, model: str, conversation_id: str | None) -> Run:
    run = await engine.ended(await engine.start(f"ask {model}", model=model, conversation_id=conversation_id))
    assert run.status == "completed", run.reason
    assert is_reconciled(await engine.history(run))
    return run


def sent(server: FakeProvider) -> list[Any]:
    """The bodies that the server was sent since it was last asked, each with its bytes."""
    bodies = [(request.body, request.content.decode()) for request in server.requests]
    server.requests.clear()
    return bodies


def of_google(body: Any) -> list[bytes]:
    """The thought signatures in a request to Google, as the bytes that they are."""
    parts = [part for content in body["contents"] for part in content["parts"]]
    return [base64.urlsafe_b64decode(part["thoughtSignature"]) for part in parts if "thoughtSignature" in part]


def blocks(body: Any, kind: str) -> list[Any]:
    """The blocks of this type in a request to Anthropic."""
    contents = [block for message in body["messages"] for block in message["content"]]
    return [block for block in contents if block["type"] == kind]


async def test_i1_one_conversation_crosses_three_providers_and_back(
    client: Client, sqlite: Database, bench: Bench, server: FakeProvider
) -> None:
    """The order: OpenAI-compatible, Anthropic, a new worker, Google, Anthropic, a fork, OpenAI-compatible again.

    Every request holds every call once with its result, and only the receiving provider's own opaque fields, byte for byte.
    """
    models = models_at(server, ANTHROPIC, GOOGLE)
    async with stack(client, sqlite, bench.look, today(), model=Providers(models), working=False) as engine:
        async with engine.worker():
            openai_call(server)
            openai_text(server, "Seen by the first.")
            first = await turn(engine, OPENAI, None)
            answer(server, "anthropic-thinking-call.sse", "anthropic-answer.sse")
            second = await turn(engine, ANTHROPIC, first.conversation_id)
        to_openai, to_anthropic = (requests := sent(server))[:2], requests[2:]
        assert to_openai[1][0]["messages"][2]["tool_calls"][0]["extra_content"] == OPENAI_OPAQUE
        assert blocks(to_anthropic[1][0], "thinking") == [THINKING]
        assert OPENAI_OPAQUE["google"]["thought_signature"] not in to_anthropic[1][1]

        async with engine.worker():  # the first one is gone; what the next is asked with comes from the store alone
            answer(server, "google-signed-calls.sse", "google-thought-answer.sse")
            third = await turn(engine, GOOGLE, first.conversation_id)
            to_google = sent(server)
            answer(server, "anthropic-redacted-calls.sse", "anthropic-answer.sse")
            fourth = await turn(engine, ANTHROPIC, first.conversation_id)
            back_at_anthropic = sent(server)
            answer(server, "google-thought-answer.sse")
            forked = await fork.fork(engine.services, STARTER, third.id, ForkOrder(text="and from here?", model=GOOGLE))
            forked = await engine.ended(forked)
            to_the_fork = sent(server)
            openai_text(server, "Seen by all.")
            last = await turn(engine, OPENAI, first.conversation_id)
            back_at_openai = sent(server)

        skip = b"skip_thought_signature_validator"  # what Google takes in place of a signature that it did not write
        own, own_answer = base64.b64decode(SIGNED), base64.b64decode(ANSWER_SIGNED)
        assert of_google(to_google[0][0]) == [skip, skip]
        assert of_google(to_google[1][0]) == [skip, skip, own]
        assert of_google(to_the_fork[0][0]) == [skip, skip, own, own_answer]
        assert all(THINKING["signature"] not in text for _, text in (*to_google, *to_the_fork))

        for body, text in back_at_anthropic:
            assert blocks(body, "thinking") == [THINKING]
            assert SIGNED not in text
            assert ANSWER_SIGNED not in text
        redacted = [block["data"] for block in blocks(back_at_anthropic[1][0], "redacted_thinking")]
        assert redacted == [
            line["content_block"]["data"] for line in events("anthropic-redacted-calls.sse", "redacted")
        ]

        ((body, text),) = back_at_openai
        assert body["messages"][2]["tool_calls"][0]["extra_content"] == OPENAI_OPAQUE
        assert not any(blob in text for blob in (THINKING["signature"], SIGNED, ANSWER_SIGNED, *redacted))
        calls = [call["id"] for message in body["messages"] for call in message.get("tool_calls", [])]
        assert calls == [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
        assert len(set(calls)) == len(calls) == 6
        assert [run.status for run in (first, second, third, fourth, forked, last)] == ["completed"] * 6
        assert (await engine.history(last))[-1].text == "Seen by all."
    await models.aclose()
    assert bench.looked == ["Zoë", "Zoë", "Zoë", "Bo"]


def events(name: str, kind: str) -> list[Any]:
    """The recorded events that begin a block of a kind that is named like this."""
    data = [json.loads(line[5:]) for line in content_of(name).decode().splitlines() if line.startswith("data:")]
    return [each for each in data if str(each.get("content_block", {}).get("type", "")).startswith(kind)]


async def test_calls_of_a_response_that_was_cut_off_are_closed_unexecuted(
    client: Client, sqlite: Database, bench: Bench, server: FakeProvider
) -> None:
    """Anthropic's ``max_tokens`` and ``refusal``: the model reads why, nothing ran, and the run continues."""
    models = models_at(server, ANTHROPIC, GOOGLE)
    async with stack(client, sqlite, bench.look, model=Providers(models)) as engine:
        for name in ("anthropic-cut-call.sse", "anthropic-refusal.sse"):
            answer(server, name, "anthropic-answer.sse")
            run = await turn(engine, ANTHROPIC, None)
            assert (await engine.history(run))[-1].text == "Seen and noted."
            result = blocks(sent(server)[-1][0], "tool_result")[0]
            assert "ended early" in json.dumps(result)
    await models.aclose()
    assert bench.looked == []
