"""The language-model port: what the engine asks of a model, and what it gets.

Owns the protocol, the request and the deltas of a streamed response. Must not know any provider: adapters stand beside it
and are chosen by :mod:`turngate.models.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.conversation.messages import Delta, Message, ModelResponse
from turngate.domain.tools.tool import ToolManifest


@dataclass(frozen=True)
class ModelRequest:
    """One request to a model.

    ``messages``: the conversation so far, reconciled (I1); the first may be of role ``system``. ``tools``: what the
    model may call, in the order it is told; empty for none. ``output``: JSON Schema of an object that the final answer has
    to be, None for free text. ``options``: how to answer; what a provider does not know is left out of its request.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolManifest] = ()
    output: Mapping[str, Any] | None = None
    options: ModelOptions = field(default_factory=ModelOptions)


OnDelta = Callable[[Delta], None]
"""Is told each delta as it arrives. Returns at once and raises nothing."""


class LanguageModel(Protocol):
    """A model behind one provider. Safe for concurrent requests; retries belong to the caller."""

    @property
    def name(self) -> str:
        """The name shown to people; a scripted model's begins with ``scripted:``."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return one complete response; a call id is "" where the provider gave none.

        Every call of this is a new request that is paid for.

        Raises:
            ModelError: the provider failed; ``retryable`` says whether the same request may succeed later.
        """

    async def aclose(self) -> None:
        """Release connections. Safe to repeat."""


@runtime_checkable
class StreamingModel(LanguageModel, Protocol):
    """A model whose answer can be watched while it is made."""

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        """Return what :meth:`LanguageModel.generate` would have, after telling of it piece by piece.

        A response that breaks off is never returned in part: it raises.

        Raises:
            ModelError: as :meth:`LanguageModel.generate`.
        """
