"""Messages and parts: the role-and-parts wire shape every chat API speaks, in Turngate's own words.

Owns the shape of stored conversation content and of a model's response. Must not know any provider, store or library.
``provider_options`` is opaque: written by one provider's adapter, kept as it is, given back to the same provider.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turngate.domain.tools.results import ToolResult

ProviderOptions = dict[str, JsonValue]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    provider_options: ProviderOptions = Field(default_factory=dict)


class TextPart(_Part):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class ReasoningPart(_Part):
    """The model's reasoning, where a provider shows it; signatures live in ``provider_options``."""

    type: Literal["reasoning"] = "reasoning"
    text: str


class ToolCallPart(_Part):
    """A tool call as the model sent it. ``input`` is the raw JSON text: decoded once, at execution, never stored decoded."""

    type: Literal["tool-call"] = "tool-call"
    tool_call_id: str
    tool_name: str
    input: str


class ToolResultPart(_Part):
    """The one result of one tool call. ``edited_input``: the raw JSON that ran, when an operator edited the call.

    ``whole_result``: digest of the stored whole, when ``result`` is only the part the model is shown.
    """

    type: Literal["tool-result"] = "tool-result"
    tool_call_id: str
    tool_name: str
    result: ToolResult
    edited_input: str | None = None
    whole_result: str | None = None


class FilePart(_Part):
    """An image or file, by ``url`` or as base64 ``content``."""

    type: Literal["image", "file"]
    media_type: str
    url: str | None = None
    content: str | None = None


Part = Annotated[TextPart | ReasoningPart | ToolCallPart | ToolResultPart | FilePart, Field(discriminator="type")]
Role = Literal["system", "user", "assistant", "tool"]


class Message(BaseModel):
    """One message of a conversation, without its place in the tree (the store owns that)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Role
    parts: tuple[Part, ...]
    provider_options: ProviderOptions = Field(default_factory=dict)

    @property
    def text(self) -> str:
        """All text parts joined; reasoning and files left out."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> list[ToolCallPart]:
        """The tool calls, in the model's order."""
        return [part for part in self.parts if isinstance(part, ToolCallPart)]

    @property
    def results(self) -> list[ToolResultPart]:
        """The tool results, in order of appearance."""
        return [part for part in self.parts if isinstance(part, ToolResultPart)]


def user_message(text: str) -> Message:
    """Return a user message of one text part."""
    return Message(role="user", parts=(TextPart(text=text),))


FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "other"]


class Usage(BaseModel):
    """Tokens of one model call, as the provider counted them; 0 where it did not say.

    ``input_tokens``: all of them, also those that were read from the provider's cache or written to it.
    """

    model_config = ConfigDict(frozen=True)

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class ModelResponse(BaseModel):
    """One complete response of a model: what ``call_model`` stores before anything else."""

    model_config = ConfigDict(frozen=True)

    message: Message
    finish_reason: FinishReason
    usage: Usage = Usage()
    model: str
    """The model's name as shown to people; a scripted model's begins with ``scripted:``."""
    malformed: str = ""
    """Why nothing can be made of the response, for the model to read; empty for one that is whole. Never runs calls.

    A sentence about the response that quotes nothing of it: the reason of a run that ends with it says the same, and no
    conversation content passes through workflow history (I8).
    """

    spec: str | None = None
    """The spec that was asked (``provider:name`` or a profile's name); the engine sets it, adapters leave it None."""

    @property
    def is_final(self) -> bool:
        """Whether it is the agent's answer: text, no calls, and nothing wrong with it."""
        return not self.malformed and not self.message.calls and bool(self.message.text.strip())


# Deltas: the pieces in which a model's response arrives, for those who watch the model write.
#
# They are shown and forgotten: what is stored is the complete response, which says the same whether it was streamed or not.


DeltaKind = Literal["text", "reasoning", "tool-call"]


class Delta(BaseModel):
    """A piece of one part of a response.

    ``part``: which part, from 0, in the order in which they began. ``text``: what is added: of a tool call, to its raw
    input. ``tool_name``: of a call, as far as it is known, and empty in all deltas of a call after the one that said it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: DeltaKind
    part: int = Field(ge=0)
    text: str
    tool_name: str = ""
