"""The adapter for every server that speaks OpenAI's chat completions: OpenAI, OpenRouter, Ollama, vLLM, llama.cpp.

Owns the HTTP exchange and nothing else: the mapping is in ``request`` and ``response``, streams in ``stream``, errors in
``errors``. It never retries: Temporal does, so every error says whether it may be retried.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import httpx
from pydantic import SecretStr

from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.http_environment import client_for, without_credentials
from turngate.models.openai.errors import Endpoint, error_in_body, error_of_status
from turngate.models.openai.malformed import error_in, unread_output
from turngate.models.openai.request import request_body
from turngate.models.openai.response import Completion, model_response, parse_completion, text_so_far
from turngate.models.openai.stream import read_stream
from turngate.models.port import ModelRequest, OnDelta

CONNECT_TIMEOUT_SECONDS: Final = 10.0
OPENAI_ITSELF: Final = "https://api.openai.com/"
REFUSES_TO_STREAM: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_IMPLEMENTED}
)
"""OpenAI answers 400 to an organization that may not stream a model; 422 is FastAPI's word for an unknown field."""
ABOUT_STREAMING: Final = re.compile(rb"\bstream(?:_options|ing|ed)?\b", re.IGNORECASE)


class OpenAICompatibleModel:
    """One model at one server; ``name`` is ``openai:MODEL``.

    ``base_url``: up to where ``/chat/completions`` begins, such as ``http://127.0.0.1:11434/v1``. ``api_key`` None: none
    is sent. ``timeout``: seconds for one whole request, its answer included; in a stream, from chunk to chunk. ``client``:
    shared with others and left open by :meth:`aclose`; None: the model creates one. Its own retries must be off.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        *,
        timeout: float,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self.name = f"openai:{model}"
        self._model = model
        self._url = f"{_checked_url(base_url)}/chat/completions"
        self._safe_url = without_credentials(_checked_url(base_url))
        self._key = SecretStr(_checked_key(api_key))
        self._timeout = timeout
        self._owns_client = client is None
        self._client = client or client_for(base_url)
        self._streams, self._counts = True, True

    def __repr__(self) -> str:
        return f"OpenAICompatibleModel(base_url={self._safe_url!r}, model={self._model!r})"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Send one request and return the answer.

        Raises:
            ModelError: of any class; ``configuration`` only for a redirection.
        """
        async with self._translated():
            # httpx measures the silence between bytes; a gateway that sends white space while it waits is never silent.
            async with asyncio.timeout(self._timeout):
                response = await self._client.post(self._url, timeout=self._limits, **self._sent(self._body(request)))
        return self._read(response, request)

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        """Return what :meth:`generate` would return, and report each piece of it as it arrives.

        If a server refuses to stream, or to send token counts at the end, the request is sent again without; this model then
        never tries it again. ``timeout`` limits the silence between two chunks, not the whole answer.

        Raises:
            ModelError: as :meth:`generate`; ``bad_response``, retryable, for a stream that broke off.
        """
        while self._streams:
            body, counts = {**self._body(request), "stream": True}, self._counts
            if counts:
                body["stream_options"] = {"include_usage": True}
            answer = await self._streamed(body, request, on_delta)
            if answer is not None:
                return answer
            if counts:
                self._counts = False
            else:
                self._streams = False
        return await self.generate(request)

    async def aclose(self) -> None:
        """Close the connections, unless the client is shared."""
        if self._owns_client:
            await self._client.aclose()

    async def _streamed(
        self, body: dict[str, object], request: ModelRequest, on_delta: OnDelta
    ) -> ModelResponse | None:
        """Return the answer, or None if the server refuses to stream like this."""
        async with self._translated(), AsyncExitStack() as stack:
            sent = self._sent(body, accept="text/event-stream, application/json")
            async with asyncio.timeout(self._timeout):
                response = await stack.enter_async_context(
                    self._client.stream("POST", self._url, timeout=self._limits, **sent)
                )
            if response.is_success and "text/event-stream" in response.headers.get("content-type", ""):
                completion = await read_stream(response, on_delta, silence=self._timeout)
                return self._answer(completion, request)
            async with asyncio.timeout(self._timeout):
                content = await response.aread()
        if response.status_code in REFUSES_TO_STREAM and ABOUT_STREAMING.search(content):
            return None
        return self._read(response, request)  # some servers always answer in one piece

    def _body(self, request: ModelRequest) -> dict[str, object]:
        return request_body(self._model, request, of_openai=self._url.startswith(OPENAI_ITSELF))

    def _sent(self, body: dict[str, object], *, accept: str = "application/json") -> dict[str, Any]:
        headers = {"content-type": "application/json", "accept": accept}
        if key := self._key.get_secret_value():
            headers["authorization"] = f"Bearer {key}"
        # ASCII, because a lone surrogate in a text has no UTF-8; and bytes, so that equal requests are equal.
        return {"headers": headers, "content": json.dumps(body, separators=(",", ":")).encode("ascii")}

    def _read(self, response: httpx.Response, request: ModelRequest) -> ModelResponse:
        if not response.is_success:
            if (unread := unread_output(error_in(response.content), model=self.name)) is not None:
                return unread
            raise error_of_status(response.status_code, response.headers, response.content, self._endpoint())
        return self._answer(parse_completion(response.content), request)

    def _answer(self, completion: Completion, request: ModelRequest) -> ModelResponse:
        if completion.any_error:
            # In the middle of a stream, a status can no longer say it.
            unread = unread_output(completion.any_error, model=self.name, text=text_so_far(completion))
            if unread is not None:
                return unread
            raise error_in_body(completion.any_error, self._endpoint())
        return model_response(completion, model=self.name, tools_offered=bool(request.tools))

    @property
    def _limits(self) -> httpx.Timeout:
        return httpx.Timeout(self._timeout, connect=min(self._timeout, CONNECT_TIMEOUT_SECONDS))

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        """Raise a ModelError for each error of the connection."""
        try:
            yield
        except httpx.ConnectTimeout:
            raise self._unreachable(f"no connection to {self._safe_url} within {self._limits.connect:g} s") from None
        except httpx.ConnectError as error:
            raise self._unreachable(f"cannot reach {self._safe_url}: {_cause(error)}") from None
        except (TimeoutError, httpx.TimeoutException):
            raise self._unreachable(f"no answer from {self._safe_url} within {self._timeout:g} s") from None
        except httpx.TransportError as error:
            raise self._unreachable(f"the connection to {self._safe_url} broke: {_cause(error)}") from None
        except httpx.DecodingError:
            raise ModelError(
                f"the answer from {self._safe_url} cannot be decompressed", error_class="bad_response", retryable=True
            ) from None

    def _unreachable(self, what: str) -> ModelError:
        return ModelError(
            f"{what}; is the server running, and is TURNGATE_OPENAI_BASE_URL right?",
            error_class="unreachable",
            retryable=True,
        )

    def _endpoint(self) -> Endpoint:
        return Endpoint(url=self._safe_url, model=self._model, secret=self._key.get_secret_value() or None)


def _checked_url(base_url: str) -> str:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError("TURNGATE_OPENAI_BASE_URL must be a URL that begins with http:// or https://")
    return base_url.rstrip("/")


def _checked_key(key: str | None) -> str:
    """Return the key without white space around it, "" for none.

    A key with a line break or an umlaut cannot be sent in a header; h11's error would quote it, so it is refused here.
    """
    stripped = (key or "").strip()
    if not (stripped.isascii() and stripped.isprintable()) or " " in stripped:
        raise ConfigurationError("TURNGATE_OPENAI_API_KEY holds characters that no key has; copy it again")
    return stripped


def _cause(error: Exception) -> str:
    """Return why a connection failed, in the operating system's words if possible.

    httpx says only "All connection attempts failed"; the reason is an OSError some causes deep.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            # asyncio replaces the system's words by "Connect call failed"; TLS and DNS have their own words.
            if cause.errno and not isinstance(cause, (ssl.SSLError, socket.gaierror)):
                return os.strerror(cause.errno)
            return cause.strerror
        if isinstance(cause, ExceptionGroup) and cause.exceptions:
            cause = cause.exceptions[0]
            continue
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
