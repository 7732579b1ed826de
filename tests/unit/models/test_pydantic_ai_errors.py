"""How a provider's refusal is reported: its class, whether and when to retry; and only Temporal retries."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai.exceptions import UnexpectedModelBehavior
from support.servers.fake_provider import FakeProvider, closed_port
from unit.models.wire.recordings import (
    ANTHROPIC,
    BEDROCK,
    CONTENT_TYPES,
    GOOGLE,
    GROQ,
    KEYS,
    MISTRAL,
    SPECS,
    answer,
    content_of,
    models_at,
)

from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ModelError
from turngate.models import ModelRequest, Models
from turngate.models.port import StreamingModel
from turngate.models.pydantic_ai.errors import ProviderEndpoint, model_error
from turngate.models.pydantic_ai.providers import make

ASK = ModelRequest([user_message("Go.")])


def body_of(spec: str, message: str, kind: str) -> dict[str, Any]:
    """An error in this provider's format."""
    match spec:
        case "anthropic:claude-sonnet-4-6":
            return {"type": "error", "error": {"type": kind, "message": message}}
        case "google:gemini-3-pro-preview":
            return {"error": {"code": 400, "message": message, "status": kind}}
        case "mistral:magistral-medium-latest":
            return {"object": "error", "message": message, "type": kind, "code": "3000"}
        case "groq:openai/gpt-oss-120b":
            return {"error": {"message": message, "type": kind}}
    return {"message": message}


async def failed(models: Models, spec: str, *, streamed: bool) -> ModelError:
    model = models.resolve(spec)
    assert isinstance(model, StreamingModel)
    with pytest.raises(ModelError) as caught:
        await (model.stream(ASK, lambda _: None) if streamed else model.generate(ASK))
    return caught.value


@pytest.mark.parametrize("spec", SPECS)
async def test_a_quota_that_is_used_up_is_no_rate_limit(wired: Models, provider: FakeProvider, spec: str) -> None:
    """The provider's words count where its status says no more than that there were too many requests."""
    words = "You have reached your weekly usage limit."
    provider.answer(body_of(spec, words, "rate_limit_error"), status=429, headers={"retry-after": "7"})
    error = await failed(wired, spec, streamed=False)
    assert (error.error_class, error.retryable) == ("permission", False)
    assert error.message.endswith(f"has used up its quota; raise it or use another key. It said: {words}")


@pytest.mark.parametrize("spec", SPECS)
async def test_a_refusal_is_classified_after_one_request(wired: Models, provider: FakeProvider, spec: str) -> None:
    """Streamed or not, the class is the same, ``Retry-After`` counts, and the client does not retry."""
    table: list[tuple[int, str, str, bool, float | None]] = [
        (401, "authentication_error", "authentication", False, None),
        (403, "permission_error", "permission", False, None),
        (404, "not_found_error", "not_found", False, None),
        (400, "invalid_request_error", "invalid_request", False, None),
        (429, "rate_limit_error", "rate_limited", True, 7.0),
        (500, "api_error", "server_error", True, 7.0),
        (503, "overloaded_error", "server_error", True, 7.0),
    ]
    for status, kind, error_class, retryable, wait in table:
        for streamed in (False, True):
            provider.reset()
            provider.answer(body_of(spec, "the words", kind), status=status, headers={"retry-after": "7"})
            error = await failed(wired, spec, streamed=streamed)
            reported = (error.error_class, error.retryable, error.retry_after_seconds, error.status)
            assert reported == (error_class, retryable, wait, status), (spec, status)
            assert error.message.endswith("It said: the words")
            assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ANTHROPIC, "prompt is too long: 210000 tokens > 200000 maximum"),
        (GOOGLE, "The input token count exceeds the maximum number of tokens allowed: input tokens exceed"),
        (BEDROCK, "Input is too long: too many tokens"),
        (GROQ, "Please reduce the length; it passes the maximum context length"),
        (MISTRAL, "Prompt contains 40000 tokens, too many tokens for this model"),
    ],
)
async def test_a_conversation_that_is_too_long_says_so(
    wired: Models, provider: FakeProvider, spec: str, message: str
) -> None:
    """The text of a 400 shows it; a retry would not help."""
    provider.answer(body_of(spec, message, "invalid_request_error"), status=400)
    error = await failed(wired, spec, streamed=False)
    assert (error.error_class, error.retryable) == ("context_length", False)


async def test_an_empty_account_is_no_rate_limit(wired: Models, provider: FakeProvider) -> None:
    """Anthropic answers 400; waiting would not help, so the class is a missing permission."""
    provider.answer(body_of(ANTHROPIC, "Your credit balance is too low", "invalid_request_error"), status=400)
    assert (await failed(wired, ANTHROPIC, streamed=True)).error_class == "permission"


async def test_an_error_inside_a_stream_is_classified_as_before_it(wired: Models, provider: FakeProvider) -> None:
    """Anthropic's ``error`` event after a 200 has the class of its type, and nothing is returned."""
    answer(provider, "anthropic-overloaded.sse")
    error = await failed(wired, ANTHROPIC, streamed=True)
    assert (error.error_class, error.retryable) == ("server_error", True)


@pytest.mark.parametrize("spec", SPECS)
async def test_no_key_is_in_a_message(wired: Models, provider: FakeProvider, spec: str) -> None:
    """Even if the provider quotes it; the message names the variable that holds it."""
    key = next(value for name, value in KEYS.items() if name.startswith(("AWS_SECRET", spec.partition(":")[0].upper())))
    provider.answer(body_of(spec, f"no such key {key}", "authentication_error"), status=401)
    error = await failed(wired, spec, streamed=False)
    assert key not in error.message
    assert "AWS_SECRET_ACCESS_KEY" in error.message or "_API_KEY" in error.message


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (ANTHROPIC, "anthropic-answer.sse"),
        (GOOGLE, "google-thought-answer.sse"),
        (MISTRAL, "mistral-thinking-call.sse"),
        (GROQ, "groq-reasoning-call.sse"),
        (BEDROCK, "bedrock-thinking-call.events"),
    ],
)
async def test_silence_is_unreachable(provider: FakeProvider, spec: str, name: str) -> None:
    """No answer, and a stream that stops without being closed, end at the timeout."""
    models = models_at(provider, spec, timeout=0.3)
    if spec == GROQ:
        provider.answer(hang=True)
        error = await failed(models, spec, streamed=False)
        assert (error.error_class, error.retryable) == ("unreachable", True)
    content, kind = content_of(name), CONTENT_TYPES[f".{name.partition('.')[2]}"]
    provider.answer((content[:400],), headers={"content-type": kind}, hang=True)
    error = await failed(models, spec, streamed=True)
    assert (error.error_class, error.retryable) == ("unreachable", True)
    await models.aclose()
    await models.aclose()


EMPTY = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}}
PINGS = tuple(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in ({"type": "ping"}, EMPTY))


async def test_pings_and_empty_pieces_are_silence(provider: FakeProvider) -> None:
    """They keep a connection open, and say nothing: the request ends at the time-out."""
    models = models_at(provider, ANTHROPIC, timeout=0.3)
    content, kind = content_of("anthropic-answer.sse"), CONTENT_TYPES[".sse"]
    begun = content[: content.index(b"event: content_block_stop")]
    provider.answer((begun,), headers={"content-type": kind}, hang=True, meanwhile=PINGS)
    error = await asyncio.wait_for(failed(models, ANTHROPIC, streamed=True), 120)
    assert (error.error_class, error.retryable) == ("unreachable", True)
    await models.aclose()


async def test_a_closed_port_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable to check."""
    monkeypatch.setenv("GROQ_API_KEY", "gsk_0123456789")
    monkeypatch.setenv("TURNGATE_GROQ_BASE_URL", f"http://127.0.0.1:{closed_port()}")
    away = make("groq", "m", timeout=5)
    with pytest.raises(ModelError, match="TURNGATE_GROQ_BASE_URL") as caught:
        await away.stream(ASK, lambda _: None)
    assert (caught.value.error_class, caught.value.retryable) == ("unreachable", True)
    await away.aclose()


def test_what_a_client_raises_before_it_sends() -> None:
    """No AWS credentials: authentication; what a client can't read: a bad response; an error of our own code: a bug."""
    endpoint = ProviderEndpoint(
        provider="bedrock", model="m", url="http://x", key="AWS_X", base_url="TURNGATE_BEDROCK_BASE_URL"
    )

    class NoCredentialsError(Exception):
        pass

    assert model_error(NoCredentialsError("none"), endpoint).error_class == "authentication"
    with pytest.raises(ValueError, match="Expecting") as unread:
        json.loads("{")
    with pytest.raises(UnicodeDecodeError) as no_text:
        b"\xff".decode()
    for unreadable in (unread.value, no_text.value, UnexpectedModelBehavior("no choices")):
        bad = model_error(unreadable, endpoint)
        assert (bad.error_class, bad.retryable) == ("bad_response", True)
    for of_code in (
        KeyError("output"),
        IndexError(0),
        ValueError("x"),
        RuntimeError("x"),
        AttributeError("x"),
        TypeError(),
    ):
        bug = model_error(of_code, endpoint)
        assert (bug.error_class, bug.retryable) == ("configuration", False)
        assert "bug in the adapter" in bug.message
    own = ModelError("x", error_class="permission", retryable=False)
    assert model_error(own, endpoint) is own
