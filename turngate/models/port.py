"""The language-model port: what the engine asks of a model, and what it gets.

Owns the protocol and the request. Must not know any provider: adapters stand beside it and are chosen by
:mod:`turngate.models.registry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from turngate.domain.messages import Message, ModelResponse
from turngate.domain.tools import ToolManifest


@dataclass(frozen=True)
class ModelRequest:
    """One request to a model.

    ``messages``: the conversation so far, reconciled (I1); the first may be of role ``system``. ``tools``: what the
    model may call, in the order it is told; empty for none.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolManifest] = ()


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
