"""From the body of a ``/chat/completions`` answer to a :class:`ModelResponse`. Pure.

Owns the incoming half of the mapping. Everything the answer's message and its calls hold beyond what we read is kept
in ``provider_options["openai_compatible"]`` and goes back in the same place: Gemini refuses a call without its
``extra_content`` (https://ai.google.dev/gemini-api/docs/thought-signatures), DeepSeek one without its
``reasoning_content`` even if that is empty, OpenRouter wants its ``reasoning_details``.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from turngate.domain.errors import ModelError
from turngate.domain.messages import (
    FinishReason,
    Message,
    ModelResponse,
    Part,
    ProviderOptions,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    Usage,
)
from turngate.models.openai_request import PROVIDER

FINISH_REASONS: Final[dict[str | None, FinishReason]] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}
MAX_SHOWN_CHARS: Final = 200


class _Received(BaseModel):
    model_config = ConfigDict(extra="allow")

    @property
    def unread(self) -> dict[str, JsonValue]:
        """The keys that have no field here."""
        return dict(self.model_extra or {})


class _Function(_Received):
    name: str | None = None
    arguments: JsonValue = None


class _Call(_Received):
    id: str | None = None
    type: str | None = None
    function: _Function = Field(default_factory=_Function)


class _Message(_Received):
    role: str | None = None
    content: str | list[dict[str, JsonValue]] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    finish_reason: str | None = None
    message: _Message = Field(default_factory=_Message)
    error: JsonValue = None


class Completion(BaseModel):
    """A whole answer. ``error``: OpenRouter puts it into an answer of status 200, or into its one choice."""

    choices: list[_Choice] = Field(default_factory=list)
    usage: JsonValue = None
    error: JsonValue = None

    @property
    def any_error(self) -> JsonValue:
        """Return the error, wherever it stands, or None. A response cut short by one must not run its calls."""
        if self.error:
            return self.error
        failed = (choice for choice in self.choices if choice.error or choice.finish_reason == "error")
        return next((choice.error or {"message": "the response broke off"} for choice in failed), None)


def parse_completion(content: bytes) -> Completion:
    """Return the answer; white space before it is fine (gateways send it to keep the connection).

    Raises:
        ModelError: ``bad_response``, retryable: it is empty, not JSON, or not a chat completion.
    """
    if not content.strip():
        raise _bad_response("the provider answered with an empty body")
    try:
        return Completion.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "body"
        shown = content.strip()[:MAX_SHOWN_CHARS].decode(errors="replace")
        raise _bad_response(
            f"the provider's answer is not a chat completion ({place}: {first['msg']}): {shown}"
        ) from None


def model_response(completion: Completion, *, model: str) -> ModelResponse:
    """Return the first choice as the domain's value; ``model`` is the name shown to people.

    Raises:
        ModelError: ``bad_response``, retryable: there is no choice.
    """
    if not completion.choices:
        raise _bad_response("the provider's answer has no choices")
    choice = completion.choices[0]
    message = _message(choice.message)
    finish: FinishReason = FINISH_REASONS.get(choice.finish_reason, "other")
    if finish == "stop" and message.calls:
        finish = "tool_calls"  # Ollama and some gateways say "stop" although they call
    elif finish == "stop" and choice.message.refusal:
        finish = "refusal"
    return ModelResponse(message=message, finish_reason=finish, usage=_usage(completion.usage), model=model)


def _message(received: _Message) -> Message:
    opaque = received.unread
    parts: list[Part] = []
    reasoning = opaque.get("reasoning_content") or opaque.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        parts.append(ReasoningPart(text=reasoning))
    text = received.content
    if isinstance(text, list):
        # Mistral's reasoning models answer in blocks. They go back as they came; people read their text.
        opaque["content"] = list[JsonValue](text)
        text = "".join(str(block["text"]) for block in text if block.get("type") == "text" and "text" in block)
    if text:
        parts.append(TextPart(text=text))
    if received.refusal:
        parts.append(TextPart(text=received.refusal, provider_options=_options({"refusal": True})))
    parts.extend(_call(call) for call in received.tool_calls or [])
    return Message(role="assistant", parts=tuple(parts), provider_options=_options(opaque))


def _call(received: _Call) -> ToolCallPart:
    opaque = received.unread
    if received.function.unread:
        opaque["function"] = received.function.unread
    arguments = received.function.arguments
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCallPart(
        tool_call_id=received.id or "",
        tool_name=received.function.name or "",
        input=arguments,
        provider_options=_options(opaque),
    )


def _options(opaque: dict[str, JsonValue]) -> ProviderOptions:
    return {PROVIDER: opaque} if opaque else {}


def _usage(usage: Any) -> Usage:
    """Read the counts leniently: an answer that is paid for is not thrown away over its bill."""

    def count(key: Literal["prompt_tokens", "completion_tokens"]) -> int:
        tokens = usage.get(key) if isinstance(usage, dict) else None
        return tokens if isinstance(tokens, int) and tokens > 0 else 0

    return Usage(input_tokens=count("prompt_tokens"), output_tokens=count("completion_tokens"))


def _bad_response(what: str) -> ModelError:
    return ModelError(what, error_class="bad_response", retryable=True)
