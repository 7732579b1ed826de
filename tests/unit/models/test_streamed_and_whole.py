"""The same answer, streamed or in one piece, is the same response, through each adapter and each provider's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.servers.fake_provider import FakeProvider
from support.servers.provider_wires import Anthropic, Google, OpenAI, Wire, WireCall, WireResponse
from unit.models.wire.recordings import GROQ, MISTRAL, models_at

from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.conversation.messages import (
    Delta,
    ModelResponse,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    user_message,
)
from turngate.domain.errors import ModelError
from turngate.domain.tools.tool import ToolManifest
from turngate.models import ModelRequest, Models
from turngate.models.port import StreamingModel

LOOK = ToolManifest(name="look", description="Look.", kind="local", parameters={}, success={}, effect="read")
REQUEST = ModelRequest([user_message("Go.")], [LOOK], options=ModelOptions(max_output_tokens=900))
HEAD = {"created": 1771434740, "model": "m"}


class Chat(OpenAI):
    """Chat completions as pydantic-ai's clients want them.

    Groq has the counts of a stream in a field of its own, and Mistral an empty name in each further piece of a call.
    """

    def __init__(self, spec: str) -> None:
        self.name = spec.partition(":")[0]
        self.spec = spec

    def whole(self, response: WireResponse) -> Any:
        return {**super().whole(response), **HEAD}

    def stream(self, response: WireResponse) -> bytes:
        return b"".join(self._with_head(event) for event in super().stream(response).splitlines(keepends=True))

    def _with_head(self, line: bytes) -> bytes:
        if not line.startswith(b"data: {"):
            return line
        chunk = {**json.loads(line.removeprefix(b"data: ")), **HEAD}
        if self.spec == GROQ and (counts := chunk.pop("usage", None)):
            chunk["x_groq"] = {"id": "req_1", "usage": counts}
        for choice in chunk["choices"] if self.spec == MISTRAL else []:
            for call in choice["delta"].get("tool_calls", []):
                call["function"].setdefault("name", "")
        return f"data: {json.dumps(chunk)}\n".encode()


WIRES: tuple[Wire, ...] = (
    OpenAI(),
    Anthropic(),
    Google(),
    Chat(GROQ),
    Chat(MISTRAL),
    Chat("openai-chat:some-model"),
    Chat("ollama:some-model"),
    Chat("vllm:some-model"),
)
TEXTS = st.text(st.sampled_from('ab \n\t\\"é€😀\u2028\u202e<'), max_size=12)
ARGUMENTS = st.dictionaries(st.sampled_from("xyz"), TEXTS | st.integers(0, 9) | st.none() | st.booleans(), max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["look", "lok"]), ARGUMENTS), max_size=3)


@st.composite
def responses(draw: st.DrawFn) -> WireResponse:
    calls = tuple(
        WireCall(name, json.dumps(arguments, ensure_ascii=False), f"call{n:05}")
        for n, (name, arguments) in enumerate(draw(CALLS))
    )
    ending = draw(st.sampled_from(["done", "length", "filtered"]))
    return WireResponse(text=draw(TEXTS), calls=calls, ending=ending, tokens=draw(st.tuples(*[st.integers(0, 9)] * 2)))


@pytest.fixture(scope="module")
def models(_served_provider: FakeProvider) -> Iterator[Models]:
    with pytest.MonkeyPatch.context() as patch:
        root = _served_provider.base_url.removesuffix("/v1")
        patch.setenv("TURNGATE_OPENAI_CHAT_BASE_URL", root)
        patch.setenv("TURNGATE_OLLAMA_BASE_URL", root)
        patch.setenv("TURNGATE_VLLM_BASE_URL", root)
        yield models_at(_served_provider, *(wire.spec for wire in WIRES))


async def result(
    models: Models, server: FakeProvider, wire: Wire, response: WireResponse, deltas: list[Delta] | None
) -> Any:
    """Return what the adapter makes of a response, or of which class its error is. ``deltas``: to stream into."""
    server.reset()
    wire.answer(server, response, streamed=deltas is not None)
    model = models.resolve(wire.spec)
    assert isinstance(model, StreamingModel)
    try:
        return await (model.generate(REQUEST) if deltas is None else model.stream(REQUEST, deltas.append))
    except ModelError as error:
        return error.error_class, error.retryable


@pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(response=responses())
async def test_streamed_or_not_the_response_is_the_same(
    models: Models, provider: FakeProvider, wire: Wire, response: WireResponse
) -> None:
    """Text, calls with their inputs and ids, opaque fields, usage and reason to stop; and watchers saw every word.

    Each delta has its part's kind, and a call's name comes once, with its first delta.
    """
    deltas: list[Delta] = []
    whole = await result(models, provider, wire, response, None)
    assert await result(models, provider, wire, response, deltas) == whole
    if not isinstance(whole, ModelResponse):
        return
    watched: dict[int, str] = {}
    for delta in deltas:
        part = whole.message.parts[delta.part]
        is_first = delta.part not in watched
        assert (delta.kind, delta.tool_name) == (part.type, getattr(part, "tool_name", "") if is_first else "")
        watched[delta.part] = watched.get(delta.part, "") + delta.text
    stored = [
        part.input if isinstance(part, ToolCallPart) else part.text
        for part in whole.message.parts
        if isinstance(part, ToolCallPart | TextPart | ReasoningPart)
    ]
    # Anthropic and Google send nothing for empty arguments.
    nothing = {"", "{}"}
    assert [each for each in watched.values() if each not in nothing] == [
        each for each in stored if each not in nothing
    ]
