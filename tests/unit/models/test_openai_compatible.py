"""The adapter against a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading

import httpx
import pytest
from support.servers.fake_provider import FakeProvider, closed_port, completion, tool_call

from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.models import ModelRequest, OpenAICompatibleModel

KEY = "sk-very-secret-0123456789"
REQUEST = ModelRequest(messages=[user_message("hi")])


async def failure_of(model: OpenAICompatibleModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await model.generate(REQUEST)
    assert KEY not in f"{caught.value} {caught.value!r} {caught.value.details} {model!r}"
    return caught.value


async def test_one_request_gives_one_response(model, provider: FakeProvider):
    """It posts to {base_url}/chat/completions with the key, and reads the response."""
    provider.answer(completion("Hello", calls=[tool_call("look", "{}")]))
    response = await model.generate(REQUEST)
    assert (response.message.text, response.finish_reason, response.model) == ("Hello", "tool_calls", "openai:gpt-x")
    (received,) = provider.requests
    assert (received.method, received.path) == ("POST", "/v1/chat/completions")
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.body == {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}


async def test_the_same_request_is_the_same_bytes(model, provider: FakeProvider):
    """Providers cache by prefix: nothing in the body is random or depends on the time."""
    for _ in range(2):
        provider.answer(completion("Hello"))
        await model.generate(REQUEST)
    first, second = provider.requests
    assert first.content == second.content


async def test_without_a_key_no_header_is_sent(provider: FakeProvider):
    """Ollama and vLLM need none; an empty key counts as none, and a trailing slash in the URL does no harm."""
    provider.answer(completion("Hello"))
    model = OpenAICompatibleModel(f"{provider.base_url}/", "", "m", timeout=5)
    await model.generate(REQUEST)
    await model.aclose()
    assert "authorization" not in provider.requests[0].headers
    assert provider.requests[0].path == "/v1/chat/completions"


async def test_it_never_retries_by_itself(model, provider: FakeProvider):
    """Retries are Temporal's: one failure is one request, with the provider's Retry-After."""
    provider.answer({"error": {"message": "slow"}}, status=429, headers={"Retry-After": "2"})
    provider.answer(completion("never asked for"))
    error = await failure_of(model)
    assert (error.error_class, error.retryable, error.retry_after_seconds) == ("rate_limited", True, 2)
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "error_class", "retryable"),
    [
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, "authentication", False),
        (404, {"error": "model 'gpt-x' not found"}, "not_found", False),
        (503, b"<html>busy</html>", "server_error", True),
        (200, b"", "bad_response", True),
        (200, b"<html>hello</html>", "bad_response", True),
        (200, {"error": {"code": 429, "message": "upstream is busy"}}, "rate_limited", True),
        (302, b"", "configuration", False),
    ],
)
async def test_refusals_are_typed(model, provider: FakeProvider, status, body, error_class, retryable):
    """Every answer that is no completion becomes a ModelError that never contains the key."""
    provider.answer(body, status=status, headers={"location": "http://elsewhere/"} if status == 302 else {})
    error = await failure_of(model)
    assert (error.error_class, error.retryable) == (error_class, retryable)


async def test_an_error_inside_a_choice_runs_no_call(model, provider: FakeProvider):
    """A response that broke off may contain truncated calls: it is an error, not a response."""
    for error in ({"code": 502, "message": "upstream died"}, None):
        body = completion(calls=[tool_call("pay", '{"cents": 1}')], finish_reason="error")
        body["choices"][0]["error"] = error
        provider.answer(body)
        assert (await failure_of(model)).error_class == "server_error"


async def test_an_unreachable_server_says_what_to_check():
    """Without a listener the error is retryable and has the address, the reason and the setting to check."""
    url = f"http://127.0.0.1:{closed_port()}/v1"
    model = OpenAICompatibleModel(url, KEY, "m", timeout=5)
    error = await failure_of(model)
    await model.aclose()
    assert (error.error_class, error.retryable) == ("unreachable", True)
    assert f"cannot reach {url}" in error.message
    assert "is the server running, and is TURNGATE_OPENAI_BASE_URL right?" in error.message
    assert "refused" in error.message.lower()


async def test_a_silent_server_times_out(provider: FakeProvider):
    """No answer within the timeout means unreachable, and the connection is closed."""
    provider.answer(hang=True)
    model = OpenAICompatibleModel(provider.base_url, KEY, "m", timeout=0.3)
    error = await failure_of(model)
    await model.aclose()
    assert (error.error_class, error.retryable) == ("unreachable", True)
    assert "within 0.3 s" in error.message
    assert await asyncio.to_thread(provider.client_left.wait, 60)


async def test_a_cancelled_request_leaves_the_server(model, provider: FakeProvider):
    """An interrupted run stops costing money: cancellation closes the connection."""
    provider.answer(hang=True)
    task = asyncio.create_task(model.generate(REQUEST))
    assert await asyncio.to_thread(provider.wait_for_requests, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(provider.client_left.wait, 60)


async def test_a_connection_that_breaks_is_unreachable():
    """If the server hangs up in the middle of its answer, the error is retryable."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _peer = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")

        thread = threading.Thread(target=hang_up)
        thread.start()
        model = OpenAICompatibleModel(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", KEY, "m", timeout=5)
        error = await failure_of(model)
        await model.aclose()
        thread.join(60)
    assert (error.error_class, error.retryable) == ("unreachable", True)
    assert "broke" in error.message


async def test_credentials_in_the_url_are_not_shown():
    """A password in the base URL stays out of messages and repr, as the key does."""
    model = OpenAICompatibleModel(f"http://ada:hunter2@127.0.0.1:{closed_port()}/v1", None, "m", timeout=5)
    error = await failure_of(model)
    await model.aclose()
    assert "hunter2" not in f"{error} {model!r}"


@pytest.mark.parametrize("key", [f"{KEY}\nx", f"{KEY}é", f"{KEY} x"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key):
    """h11's error would quote a header with a line break; such a key is refused before that."""
    with pytest.raises(ConfigurationError, match="TURNGATE_OPENAI_API_KEY") as caught:
        OpenAICompatibleModel("http://127.0.0.1/v1", key, "m", timeout=5)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1:11434", "ftp://host/v1", "http://", "http://host:port/v1"])
def test_an_invalid_base_url_is_refused(url):
    """Before the first request, with the name of the setting."""
    with pytest.raises(ConfigurationError, match="TURNGATE_OPENAI_BASE_URL"):
        OpenAICompatibleModel(url, None, "m", timeout=5)


async def test_a_given_client_stays_open(provider: FakeProvider):
    """The client's creator closes it."""
    async with httpx.AsyncClient() as client:
        model = OpenAICompatibleModel(provider.base_url, None, "m", timeout=5, client=client)
        await model.aclose()
        assert not client.is_closed


async def test_half_a_surrogate_pair_can_be_sent(model, provider: FakeProvider):
    """Text that a tool read with surrogateescape has no UTF-8 form; it is sent escaped."""
    message = user_message("x").model_copy(
        update={"parts": (user_message("x").parts[0].model_copy(update={"text": "\udc80"}),)}
    )
    provider.answer(completion("ok"))
    await model.generate(ModelRequest(messages=[message]))
    assert provider.requests[0].body["messages"][0]["content"] == "\udc80"
