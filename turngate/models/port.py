"""The language-model port: the engine's request to a model, and the response.

Owns the protocol, the request and the deltas of a streamed response. Must not know any provider: :mod:`turngate.models.registry`
chooses the adapter.
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

    ``messages``: the conversation so far, reconciled (I1); the first may be of role ``system``. ``tools``: the tools that the
    model may call, in the order in which it sees them. ``output``: JSON Schema of the object that the final answer must be;
    None: free text. ``options``: how to answer; a provider's request leaves out the options that it does not know.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolManifest] = ()
    output: Mapping[str, Any] | None = None
    options: ModelOptions = field(default_factory=ModelOptions)

    @property
    def tool_choice(self) -> str | None:
        """How a tool is to be chosen of those that there are; None: a provider would refuse the option."""
        chosen = self.options.chosen_tool  # a run may have fewer tools than its agent
        has_it = bool(self.tools) if chosen is None else any(each.name == chosen for each in self.tools)
        return self.options.tool_choice if has_it else None


OnDelta = Callable[[Delta], None]
"""Called with each delta as it arrives. Returns at once and raises nothing."""


class LanguageModel(Protocol):
    """A provider's model. Safe for concurrent requests; retries are the caller's."""

    @property
    def name(self) -> str:
        """The name shown to people; a scripted model's begins with ``scripted:``."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return one complete response; a call id is "" if the provider sent none.

        Each call of this method is a new request, which costs money.

        Raises:
            ModelError: the provider failed; ``retryable`` says whether the same request may succeed later.
        """

    async def aclose(self) -> None:
        """Release connections. Safe to repeat."""


@runtime_checkable
class StreamingModel(LanguageModel, Protocol):
    """A model whose answer can be watched while it arrives."""

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        """Return what :meth:`LanguageModel.generate` would return, and report each piece of it as it arrives.

        If a response breaks off, this raises; it never returns a part.

        Raises:
            ModelError: as :meth:`LanguageModel.generate`.
        """
