"""A stream that ends before its answer does is no answer, from whichever provider it comes."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic_ai.providers import infer_provider_class
from support.servers.fake_provider import STREAM_END, FakeProvider
from unit.models.wire.recordings import KEYS, content_of, recorded

from turngate.domain.conversation.messages import Delta, user_message
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.domain.tools.tool import ToolManifest
from turngate.models import ModelRequest, OpenAICompatibleModel
from turngate.models.pydantic_ai.loader import provider_model
from turngate.models.pydantic_ai.model import PydanticAIModel
from turngate.models.pydantic_ai.stream_end import StreamEnd

pytestmark = pytest.mark.filterwarnings("ignore:.GitHubProvider. is deprecated")
LOOK = ToolManifest(name="look", description="Look.", kind="local", parameters={}, success={}, effect="read")
REQUEST = ModelRequest([user_message("Go.")], [LOOK])
PREFIXES = sorted(
    str(each.value.value)  # type: ignore[attr-defined]
    for each in ast.walk(ast.parse(inspect.getsource(infer_provider_class)))
    if isinstance(each, ast.MatchValue)
)
"""Every provider that a model's spec can name: all that pydantic-ai knows."""


def chat_chunk(**delta: Any) -> bytes:
    """One chunk with the fields that the strictest of the providers' clients wants."""
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None, "native_finish_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1771434740, "model": "m", "provider": "p"}
    return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"


CHAT_CALL = (
    chat_chunk(content="I look."),
    chat_chunk(
        tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    ),
)
"""A whole call of half an answer: no reason to stop, no ``[DONE]``."""


def responses_call() -> tuple[bytes, ...]:
    """The events of a call by OpenAI's Responses API, all but the last one, ``response.completed``."""
    body = recorded("openai-responses-call.json")
    call = body["output"][1]
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    events = [
        ("response.created", {"response": begun}),
        ("response.output_item.added", {"output_index": 0, "item": {**call, "arguments": "", "status": "in_progress"}}),
        ("response.function_call_arguments.delta", {"output_index": 0, "item_id": call["id"], "delta": "{}"}),
        ("response.function_call_arguments.done", {"output_index": 0, "item_id": call["id"], "arguments": "{}"}),
        ("response.output_item.done", {"output_index": 0, "item": {**call, "arguments": "{}"}}),
    ]
    return tuple(
        f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': n, **data})}\n\n".encode()
        for n, (kind, data) in enumerate(events)
    )


def cut(name: str, at: bytes) -> tuple[bytes, ...]:
    """A recorded stream up to the event with its reason to stop."""
    content = content_of(name)
    return (content[: content.rindex(at)],)


def framed_without_end() -> tuple[bytes, ...]:
    """Bedrock's binary stream without its last two messages."""
    content, messages = content_of("bedrock-thinking-call.events"), []
    while content:
        size = int.from_bytes(content[:4])
        messages.append(content[:size])
        content = content[size:]
    return tuple(messages[:-2])


OF_CLASS: dict[str, Callable[[], tuple[bytes, ...]]] = {
    "OpenAIChatModel": lambda: CHAT_CALL,
    "OpenAIResponsesModel": responses_call,
    "AnthropicModel": lambda: cut("anthropic-thinking-call.sse", b"event: message_delta"),
    "GoogleModel": lambda: cut(
        "google-signed-calls.sse", b'data: {"candidates": [{"content": {"parts": [{"text": ""}]'
    ),
    "MistralModel": lambda: (
        content_of("mistral-thinking-call.sse")
        .replace(b'"finish_reason": "tool_calls"', b'"finish_reason": null')
        .removesuffix(STREAM_END),
    ),
    "GroqModel": lambda: cut("groq-reasoning-call.sse", b'data: {"id": "chatcmpl-4f39"'),
    "BedrockConverseModel": framed_without_end,
}
"""What a model sends in half, by the class that reads it (or that its class is derived from)."""
WITHOUT_PACKAGE = {"cohere", "huggingface", "typesafe", "xai"}
"""We do not install their packages; ``is_whole`` asks the same of all of them."""
BY_LOGIN = {"openai-chatgpt", "openai-codex"}
"""Only with a person's credentials; both speak the Responses API."""
NO_LANGUAGE_MODEL = {"elevenlabs", "sentence-transformers", "voyageai"}
IN_ONE_PIECE = {"google-decisions", "openai-decisions", "system-one"}
"""They fill in a form and stream nothing."""
SETTINGS = {
    **KEYS,
    **{f"{name.upper().replace('-', '_')}_API_KEY": "key-0123456789" for name in PREFIXES},
    "DASHSCOPE_API_KEY": "key-0123456789",
    "AZURE_OPENAI_API_KEY": "key-0123456789",
    "AZURE_OPENAI_ENDPOINT": "http://127.0.0.1:9",
    "OPENAI_API_VERSION": "2025-01-01",
    "GITHUB_COPILOT_API_KEY": "key-0123456789",
    "HEROKU_INFERENCE_KEY": "key-0123456789",
    "SYSTEM_ONE_BASE_URL": "http://127.0.0.1:9",
    "SNOWFLAKE_ACCOUNT": "acc",
    "SNOWFLAKE_TOKEN": "key-0123456789",
    "VERCEL_AI_GATEWAY_API_KEY": "key-0123456789",
}
MODEL_NAMES = {"bedrock-mantle": "openai.gpt-oss-120b", "openrouter": "openai/gpt-5", "bedrock": "amazon.nova-pro-v1:0"}


FIRST_OF_EACH_CLASS = {"anthropic", "bedrock", "google", "groq", "mistral", "openai-chat", "openai-responses"}


@pytest.fixture(
    params=[
        pytest.param(each, marks=() if each in FIRST_OF_EACH_CLASS else pytest.mark.exhaustive)
        for each in PREFIXES
        if each not in NO_LANGUAGE_MODEL | WITHOUT_PACKAGE | BY_LOGIN | IN_ONE_PIECE
    ]
)
async def model(
    request: pytest.FixtureRequest, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PydanticAIModel]:
    """A model of each provider; all of them ask the one server."""
    prefix = request.param
    root = provider.base_url.removesuffix("/v1")
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    for name in ("ollama", "vllm", "google", "google-cloud", "groq", "anthropic", "mistral", "bedrock"):
        monkeypatch.setenv(f"TURNGATE_{name.upper().replace('-', '_')}_BASE_URL", root)
    if prefix == "bedrock-mantle":
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "key-0123456789")
    model = provider_model(prefix, MODEL_NAMES.get(prefix, "some-model"), timeout=5)
    assert isinstance(model, PydanticAIModel)
    client: Any = getattr(model._model, "client", None)
    if hasattr(client, "base_url"):
        client.base_url = root  # not all of them take another address from a setting
    yield model
    await model.aclose()


def half_answer(model: PydanticAIModel) -> tuple[bytes, ...]:
    names = [each.__name__ for each in type(model._model).__mro__]
    return next(OF_CLASS[name] for name in names if name in OF_CLASS)()


def queue(server: FakeProvider, pieces: tuple[bytes, ...], name: str) -> None:
    kind = "application/vnd.amazon.eventstream" if name.startswith("bedrock:") else "text/event-stream"
    server.answer(pieces, headers={"content-type": kind})


async def test_a_stream_that_ends_early_and_cleanly_is_refused(model: PydanticAIModel, provider: FakeProvider) -> None:
    """Its complete calls don't run: they are of half an answer. The same request may succeed later.

    Some servers give no reason to stop; of chat completions, ``[DONE]`` is enough. To others it means nothing.
    """
    pieces = half_answer(model)
    queue(provider, pieces, model.name)
    deltas: list[Delta] = []
    with pytest.raises(ModelError) as caught:
        await model.stream(REQUEST, deltas.append)
    assert (caught.value.error_class, caught.value.retryable) == ("bad_response", True), caught.value.message
    assert "broke off" in caught.value.message
    assert [delta.tool_name for delta in deltas if delta.tool_name] != []
    queue(provider, (*pieces, STREAM_END), model.name)
    if pieces is CHAT_CALL:
        response = await model.stream(REQUEST, lambda _: None)
        assert [call.tool_name for call in response.message.calls] == ["look"]
        return
    with pytest.raises(ModelError) as caught:
        await model.stream(REQUEST, lambda _: None)
    assert caught.value.retryable


async def test_openai_compatible_servers_are_held_to_the_same(provider: FakeProvider) -> None:
    """``openai:``, which has an adapter of its own."""
    model = OpenAICompatibleModel(provider.base_url, None, "m", timeout=5)
    provider.stream(*CHAT_CALL)
    with pytest.raises(ModelError, match="broke off"):
        await model.stream(REQUEST, lambda _: None)
    provider.stream(*CHAT_CALL, STREAM_END)
    assert (await model.stream(REQUEST, lambda _: None)).message.calls
    await model.aclose()


@pytest.mark.parametrize("prefix", sorted(WITHOUT_PACKAGE | BY_LOGIN | NO_LANGUAGE_MODEL))
def test_what_is_not_played_cannot_be_used_here(prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Each exception of the tests above: it becomes one of them as soon as it can be used."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError):
        provider_model(prefix, "some-model", timeout=5)


@pytest.mark.parametrize("prefix", sorted(IN_ONE_PIECE))
def test_an_answer_in_one_piece_is_exempt(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their class streams nothing itself, so there is nothing that could end early."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    model = provider_model(prefix, "some-model", timeout=5)
    assert isinstance(model, PydanticAIModel)
    assert "DecisionModel" in [each.__name__ for each in type(model._model).__mro__]


def test_only_short_lines_are_read() -> None:
    """A line of data is no sign, whatever it quotes, and neither is a comment."""
    end = StreamEnd()
    for line in (b": [DONE]", b'data: {"text": "data: [DONE]"}', b'data: "error"', b'data: {"error": null}', b"[DONE]"):
        end.take(line)
    assert (end.is_done, end.error) == (False, None)
    end.take(b'data:{"error": {"code": 1}}')
    end.take(b"data:[DONE]")
    assert (end.is_done, end.error) == (True, {"code": 1})
