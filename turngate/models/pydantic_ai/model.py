"""The adapter for every provider that is not OpenAI-compatible, through pydantic-ai's direct model API.

Owns the exchange and nothing else: the mapping is in ``request`` and ``response``, errors in ``errors``, the creation of models
in ``providers``. Neither it nor the clients that it uses retry: Temporal does. Needs the extra ``providers``; only the modules
of this package import pydantic-ai.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from pydantic_ai import direct
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.messages import ModelResponse as TheirResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ModelError
from turngate.models.openai.malformed import unread_output
from turngate.models.patience import listening
from turngate.models.port import ModelRequest, OnDelta
from turngate.models.pydantic_ai.errors import ProviderEndpoint, model_error
from turngate.models.pydantic_ai.parameters import request_parameters, settings
from turngate.models.pydantic_ai.request import MessageMapper
from turngate.models.pydantic_ai.response import DeltaReader, is_whole, model_response, says_something, thinks_unseen
from turngate.models.pydantic_ai.stream_end import CURRENT, StreamEnd

THINKING_TIMES: Final = 5.0
"""How many times the usual silence is waited for a model that thinks and shows none of it, as Claude does by default."""
MAX_SEGMENTS: Final = 20
"""How often a response that its provider paused (Anthropic's ``pause_turn``, in its own search) is continued."""


@dataclasses.dataclass(frozen=True)
class _Exchange:
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters


_Ask = Callable[[_Exchange, int], Awaitable[TheirResponse]]
"""Takes an exchange and the number of parts that the response already has; returns what the provider adds."""


class PydanticAIModel:
    """One model of one provider; ``name`` is ``PROVIDER:MODEL``.

    ``timeout``: seconds for one whole request, its answer included; in a stream, for the silence between two pieces of it.
    """

    def __init__(self, model: Model[Any], endpoint: ProviderEndpoint, *, timeout: float) -> None:
        self.name = f"{endpoint.provider}:{endpoint.model}"
        self._model = model
        self._endpoint = endpoint
        self._timeout = timeout
        self._entered = AsyncExitStack()
        self._is_entered = False

    def __repr__(self) -> str:
        return f"PydanticAIModel(name={self.name!r}, url={self._endpoint.url!r})"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Send one request and return the answer.

        Raises:
            ModelError: of every class.
        """
        return await self._answer(request, self._ask, within=self._timeout)

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        """Send one request, report the answer as it arrives, and return what :meth:`generate` would return.

        Raises:
            ModelError: of every class; ``bad_response``, retryable, for a stream that ends before its response does.
        """

        async def ask(exchange: _Exchange, first_part: int) -> TheirResponse:
            reader = DeltaReader(first_part, structured=request.output is not None)
            async with (
                listening(self._timeout) as wait_on,
                direct.model_request_stream(
                    self._model,
                    exchange.messages,
                    model_settings=exchange.settings,
                    model_request_parameters=exchange.parameters,
                ) as stream,
            ):
                async for event in stream:
                    if says_something(event):
                        wait_on(1.0)
                    elif thinks_unseen(event):
                        wait_on(THINKING_TIMES)
                    for delta in reader.read(event):
                        on_delta(delta)
                        if delta.kind == "text":
                            end.texts.append(delta.text)
            return stream.get()

        end = StreamEnd()
        token = CURRENT.set(end)
        try:
            # The clients limit the silence on the wire, too, where pings count.
            return await self._answer(request, ask, within=None, end=end)
        finally:
            CURRENT.reset(token)

    async def aclose(self) -> None:
        """Close the connections. Safe to repeat."""
        await self._entered.aclose()

    async def _ask(self, exchange: _Exchange, first_part: int) -> TheirResponse:
        del first_part
        return await direct.model_request(
            self._model,
            exchange.messages,
            model_settings=exchange.settings,
            model_request_parameters=exchange.parameters,
        )

    async def _answer(
        self, request: ModelRequest, ask: _Ask, *, within: float | None, end: StreamEnd | None = None
    ) -> ModelResponse:
        """``end``: of the stream that ``ask`` reads; None: it does not stream."""
        try:
            exchange = self._exchange(request)
            if not self._is_entered:
                # Entered once, here, because a model's connections belong to the event loop that uses it.
                self._is_entered = True
                await self._entered.enter_async_context(self._model)
            async with asyncio.timeout(within):
                response = await self._whole(exchange, ask, end)
            return model_response(
                response,
                provider=self._endpoint.provider,
                model=self.name,
                tools_offered=bool(request.tools),
                structured=request.output is not None,
            )
        except Exception as error:  # noqa: BLE001 - clients raise errors of many kinds; the engine reads one
            if (unread := self._unread(error, end)) is not None:
                return unread
            # Not "from error": a client's error may quote its request with the key.
            raise model_error(error, self._endpoint) from None

    def _unread(self, error: Exception, end: StreamEnd | None) -> ModelResponse | None:
        """Return the response for a call that the provider could not read (I9), or None for any other failure."""
        sent = error.body if isinstance(error, ModelAPIError) else None
        sent = sent.get("error", sent) if isinstance(sent, dict) else None
        if end is None:
            return unread_output(sent, model=self.name)
        return unread_output(end.error or sent, model=self.name, text="".join(end.texts))

    async def _whole(self, exchange: _Exchange, ask: _Ask, end: StreamEnd | None) -> TheirResponse:
        response = await ask(exchange, 0)
        for _ in range(MAX_SEGMENTS):
            if response.state != "suspended":
                break
            paused = dataclasses.replace(exchange, messages=[*exchange.messages, response])
            more = await ask(paused, len(response.parts))
            response = dataclasses.replace(
                more, parts=[*response.parts, *more.parts], usage=response.usage + more.usage
            )
        # Also for a request that was not streamed: Anthropic's client streams a long answer anyway.
        if not is_whole(response, self._endpoint.provider, end):
            problem = "broke off" if response.parts else "is empty"
            raise ModelError(f"the provider's answer {problem}", error_class="bad_response", retryable=True)
        return response

    def _exchange(self, request: ModelRequest) -> _Exchange:
        provider, model = self._endpoint.provider, self._model
        inline = bool(model.profile.get("supports_inline_system_prompts", False))
        mapper = MessageMapper(provider, system=model.system, inline_system=inline)
        return _Exchange(
            messages=mapper.mapped(request.messages),
            settings=settings(request, model, provider, timeout=self._timeout),
            parameters=request_parameters(request, model, provider),
        )
