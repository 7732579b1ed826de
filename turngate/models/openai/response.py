"""Turn the body of a ``/chat/completions`` answer into a :class:`ModelResponse`. Pure.

Owns the incoming half of the mapping. Everything in the answer's message and its calls that we do not read is kept in
``provider_options["openai_compatible"]`` and is sent back in the same place: Gemini refuses a call without its
``extra_content`` (https://ai.google.dev/gemini-api/docs/thought-signatures), DeepSeek one without its
``reasoning_content`` even if that is empty, OpenRouter wants its ``reasoning_details``.

A wrong envelope (no JSON, no choices) is the provider's failure, and the request is worth repeating. A wrong message is the
model's mistake, and is paid for: a call is built from its readable parts, so that the model learns what is wrong with it;
a message that cannot be read at all is ``malformed``, with its text kept (I9).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, Field, JsonValue, ValidationError

from turngate.domain.conversation.messages import (
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
from turngate.domain.errors import ModelError
from turngate.domain.tools.results import MAX_DEPTH, is_deeper
from turngate.models.openai.malformed import is_unexpected, unread_finish
from turngate.models.openai.request import PROVIDER

FINISH_REASONS: Final[dict[JsonValue, FinishReason]] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}
MAX_QUOTED_CHARS: Final = 200
CALL_IS_MISSING: Final = "it ended as if with a tool call, and there is none in it; make the call as a tool call"
READ_OF_MESSAGE: Final = frozenset({"role", "content", "refusal", "tool_calls"})
READ_OF_CALL: Final = frozenset({"id", "type", "function", "index"})
"""``index`` is a call's place, which streams need and some gateways repeat in whole answers."""
READ_OF_FUNCTION: Final = frozenset({"name", "arguments"})
SAYS_NOTHING: Final = frozenset({"annotations", "audio", "function_call"})
"""Keys that OpenAI sends empty in whole answers and leaves out of streams: kept only if they have a value."""


class _Choice(BaseModel):
    finish_reason: JsonValue = None
    native_finish_reason: JsonValue = None
    message: JsonValue = Field(default_factory=dict)
    error: JsonValue = None

    @property
    def has_unexpected_call(self) -> bool:
        """Whether a finish reason says that the call is of a tool that was not offered."""
        return is_unexpected(self.finish_reason, self.native_finish_reason)

    @property
    def unread_call(self) -> str:
        """What is wrong if a finish reason says that the provider could not read its model's call; else empty."""
        return unread_finish(self.finish_reason, self.native_finish_reason)


class Completion(BaseModel):
    """A whole answer. ``error``: OpenRouter puts it into an answer of status 200, or into its only choice."""

    choices: list[_Choice] = Field(default_factory=list)
    usage: JsonValue = None
    error: JsonValue = None
    x_groq: JsonValue = None

    @property
    def any_usage(self) -> JsonValue:
        """Return the counts; Groq may have them in a field of its own."""
        return self.usage or usage_of_groq(self.x_groq)

    @property
    def any_error(self) -> JsonValue:
        """Return the error, from whichever place, or None. The calls of a response that an error cut short must not run."""
        if self.error:
            return self.error
        for choice in self.choices:
            if choice.error:
                return choice.error
            if choice.finish_reason == "error" and not choice.unread_call:
                return {"message": "the response broke off"}
        return None


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
        quoted = content.strip()[:MAX_QUOTED_CHARS].decode(errors="replace")
        raise _bad_response(
            f"the provider's answer is not a chat completion ({place}: {first['msg']}): {quoted}"
        ) from None


def model_response(completion: Completion, *, model: str, tools_offered: bool = False) -> ModelResponse:
    """Return the first choice as the domain's value; ``model`` is the name for people.

    ``tools_offered``: a response that ends as if with a call and has none is then ``malformed``.

    Raises:
        ModelError: ``bad_response``, retryable: there is no choice.
    """
    if not completion.choices:
        raise _bad_response("the provider's answer has no choices")
    choice = completion.choices[0]
    message, refused, malformed = _message(choice.message)
    finish = _finish(choice, message, refused=refused)
    if not (message.calls and choice.has_unexpected_call):
        malformed = malformed or choice.unread_call
    if not malformed and tools_offered and not message.calls and finish == "tool_calls":
        malformed = CALL_IS_MISSING
    return ModelResponse(
        message=message, finish_reason=finish, usage=_usage(completion.any_usage), model=model, malformed=malformed
    )


def _finish(choice: _Choice, message: Message, *, refused: bool) -> FinishReason:
    reason = choice.finish_reason
    finish: FinishReason = "other"
    if isinstance(reason, str) or reason is None:
        finish = FINISH_REASONS.get(reason, "other")
    # Ollama and some gateways say "stop" although they call.
    if message.calls and (finish == "stop" or choice.has_unexpected_call):
        return "tool_calls"
    return "refusal" if finish == "stop" and refused else finish


def usage_of_groq(x_groq: JsonValue) -> JsonValue:
    """Return the counts in Groq's own field, or None."""
    return x_groq.get("usage") if isinstance(x_groq, dict) else None


def text_so_far(completion: Completion) -> str:
    """Return the text of an answer that an error broke off."""
    return _message(completion.choices[0].message)[0].text if completion.choices else ""


def _message(received: JsonValue) -> tuple[Message, bool, str]:
    """Return the message, whether it refuses, and why it is malformed ("" if it is not)."""
    if not isinstance(received, dict):
        text = received if isinstance(received, str) else ""
        return _text_message(text), False, "its message is not an object"
    text, blocks, wrong = _content(received.get("content"))
    if is_deeper(received, MAX_DEPTH):
        return _text_message(text), False, "its message nests too deep"
    refusal = received.get("refusal") or ""
    if not isinstance(refusal, str):
        refusal, wrong = "", wrong or "its refusal is not text"
    calls = received.get("tool_calls") or []
    if not isinstance(calls, list):
        calls, wrong = [], wrong or "its tool_calls are not a list"
    opaque = _without(received, READ_OF_MESSAGE)
    opaque = {key: value for key, value in opaque.items() if value or key not in SAYS_NOTHING}
    parts = [*_words(_reasoning(opaque, blocks), text, refusal), *map(_call, calls)]
    if blocks is not None:
        opaque["content"] = blocks
    message = Message(role="assistant", parts=tuple(parts), provider_options=_options(opaque))
    return message, bool(refusal), wrong


def _reasoning(opaque: dict[str, JsonValue], blocks: list[JsonValue] | None) -> JsonValue:
    named = opaque.get("reasoning_content") or opaque.get("reasoning")
    return named or "".join(map(thinking_in, blocks or []))


def _words(reasoning: JsonValue, text: str, refusal: str) -> Iterator[Part]:
    if isinstance(reasoning, str) and reasoning:
        yield ReasoningPart(text=reasoning)
    if text:
        yield TextPart(text=text)
    if refusal:
        yield TextPart(text=refusal, provider_options=_options({"refusal": True}))


def _text_message(text: str) -> Message:
    return Message(role="assistant", parts=(TextPart(text=text),) if text else ())


def _content(content: JsonValue) -> tuple[str, list[JsonValue] | None, str]:
    """Return the text of a content, its blocks if it came in blocks, and what is wrong with it.

    Mistral's reasoning models answer in blocks. They are sent back unchanged; people read their text.
    """
    if content is None or isinstance(content, str):
        return content or "", None, ""
    if not isinstance(content, list):
        return "", None, "its content is neither text nor a list of blocks"
    blocks = [block for block in content if isinstance(block, dict)]
    text = "".join(str(block["text"]) for block in blocks if block.get("type") == "text" and "text" in block)
    if len(blocks) < len(content):
        return text, None, "its content holds a block that is not an object"
    return text, content, ""


def thinking_in(block: JsonValue) -> str:
    """Return the text of a block of thinking, which is a text or a list of texts' blocks; "" for another block."""
    thinking = block.get("thinking") if isinstance(block, dict) and block.get("type") == "thinking" else None
    if isinstance(thinking, str):
        return thinking
    inner = thinking if isinstance(thinking, list) else []
    return "".join(text for each in inner if isinstance(each, dict) and isinstance(text := each.get("text"), str))


def _call(received: JsonValue) -> ToolCallPart:
    """Return the call with its readable parts.

    A call without a name is closed as ``unknown_tool``, one with wrong arguments as ``input_validation_error``: the model
    learns what is wrong with which call, and the others run.
    """
    if not isinstance(received, dict):
        return ToolCallPart(tool_call_id="", tool_name="", input=json.dumps(received, ensure_ascii=False))
    opaque, function = _without(received, READ_OF_CALL), received.get("function")
    if not isinstance(function, dict):
        # Without the object around them: the model may have written them itself.
        named = function if isinstance(function, str) else received.get("name")
        function = {"name": named, "arguments": received.get("arguments")}
        opaque = _without(opaque, READ_OF_FUNCTION)
    if unread := _without(function, READ_OF_FUNCTION):
        opaque["function"] = unread
    call_id, name, arguments = received.get("id"), function.get("name"), function.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCallPart(
        tool_call_id=call_id if isinstance(call_id, str) else "",
        tool_name=name if isinstance(name, str) else "",
        input=arguments,
        provider_options=_options(opaque),
    )


def _without(received: dict[str, JsonValue], read: frozenset[str]) -> dict[str, JsonValue]:
    return {key: value for key, value in received.items() if key not in read}


def _options(opaque: dict[str, JsonValue]) -> ProviderOptions:
    return {PROVIDER: opaque} if opaque else {}


def _usage(usage: Any) -> Usage:
    """Read the counts leniently: an answer that is paid for is not thrown away because of wrong counts."""

    def count(key: str, of: object = usage) -> int:
        tokens = of.get(key) if isinstance(of, dict) else None
        return tokens if isinstance(tokens, int) and tokens > 0 else 0

    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return Usage(
        input_tokens=count("prompt_tokens"),
        output_tokens=count("completion_tokens"),
        cache_read_tokens=count("cached_tokens", details),
    )


def _bad_response(what: str) -> ModelError:
    return ModelError(what, error_class="bad_response", retryable=True)
