"""Turn Turngate's messages into pydantic-ai's. Pure.

Owns the outgoing half of the mapping; :mod:`turngate.models.pydantic_ai.response` is the incoming one. The same messages
always give the same result, because providers cache by prefix. Another provider's options and reasoning are left out: without
its signature, the reasoning would be presented as this model's own.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    VideoUrl,
)

from turngate.domain.conversation.messages import (
    FilePart,
    Message,
    Part,
    ProviderOptions,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turngate.domain.errors import ModelError
from turngate.domain.text.json_text import without_half_pairs
from turngate.domain.tools.results import REFUSALS, Failure, wire_text
from turngate.models.accepted_ids import AcceptedIds, accepted_name
from turngate.models.openai.request import accepted_arguments
from turngate.models.pydantic_ai.opaque import WHOLE, own, unpacked, unpacked_file, unpacked_whole

RESULTS_ARE_OBJECTS: Final = frozenset({"google", "google-cloud"})
MARKS_FAILURES: Final = frozenset({"anthropic", "bedrock"})
"""The providers with a mark for a result that is an error. The others would wrap the result's text, which says so itself."""
TAKES_UNSIGNED_REASONING: Final = frozenset({"mistral"})
"""The providers that want unsigned reasoning back (https://docs.mistral.ai/capabilities/reasoning)."""
CACHE_MARKS: Final = ("cache_control", "cachePoint")
"""Anthropic's and Bedrock's names for the mark "cache up to here", which an author may put on a text or file."""
LONG_CACHE: Final = "1h"

CacheTtl = Literal["5m", "1h"]


class MessageMapper:
    """Maps the conversation for one request. ``name``: the provider's, as in ``provider_options``.

    ``system``: pydantic-ai's name of the provider. ``inline_system``: the model accepts a system message further down.
    """

    def __init__(self, name: str, *, system: str, inline_system: bool) -> None:
        self._name = name
        self._system = system
        self._inline_system = inline_system
        self._ids = AcceptedIds(name)

    def mapped(self, messages: Sequence[Message]) -> list[ModelMessage]:
        """Return the conversation, with consecutive messages of one side joined.

        ``messages`` must be reconciled (I1), so each call's result directly follows its message.

        Raises:
            ModelError: ``invalid_request``, for a file part without content and url, or that is not base64.
        """
        mapped: list[ModelMessage] = []
        for place, message in enumerate(messages):
            last = mapped[-1] if mapped else None
            if message.role == "assistant":
                answer = self._answer(message)
                if not answer.parts:
                    continue  # nothing for this provider to read, and every provider refuses an empty message
                if isinstance(last, ModelResponse):
                    answer.parts = [*last.parts, *answer.parts]
                    mapped.pop()
                mapped.append(answer)
                continue
            parts = list(self._input(message, leading=place == 0))
            if isinstance(last, ModelRequest):
                last.parts = [*last.parts, *parts]
            elif parts:
                mapped.append(ModelRequest(parts=parts))
        return mapped

    def _input(self, message: Message, *, leading: bool) -> Iterator[ModelRequestPart]:
        if message.role == "tool":
            yield from (self._result(part) for part in message.results)
        elif message.role == "system" and (leading or self._inline_system):
            yield SystemPromptPart(content=without_half_pairs(message.text))
        elif content := list(self._content(message.parts)):
            plain = len(content) == 1 and isinstance(content[0], str)
            yield UserPromptPart(content=content[0] if plain and isinstance(content[0], str) else content)

    def _content(self, parts: Iterable[Part]) -> Iterator[UserContent]:
        for part in parts:
            if isinstance(part, TextPart) and part.text:
                yield without_half_pairs(part.text)
            elif isinstance(part, FilePart):
                yield _file(part)
            else:
                continue
            if (ttl := cache_mark(own(self._name, part.provider_options))) is not None:
                yield CachePoint(ttl=ttl)

    def _result(self, part: ToolResultPart) -> ToolReturnPart:
        text = without_half_pairs(wire_text(part.result, edited_input=part.edited_input))
        failed = isinstance(part.result, Failure) and part.result.kind not in REFUSALS  # a refusal is no error (I12)
        return ToolReturnPart(
            tool_name=accepted_name(part.tool_name),
            content=_as_object(text) if self._name in RESULTS_ARE_OBJECTS else text,
            tool_call_id=self._ids.of(part.tool_call_id),
            outcome="failed" if failed and self._name in MARKS_FAILURES else "success",
        )

    def _answer(self, message: Message) -> ModelResponse:
        opaque = own(self._name, message.provider_options) or {}
        parts = (self._output(part) for part in message.parts)
        details = opaque.get("provider_details")
        return ModelResponse(
            parts=[part for part in parts if part is not None],
            # pydantic-ai sends signed data back only within a response of the same provider.
            provider_name=self._system if self._is_own(message) else None,
            canonical_system=opaque.get("canonical_system"),
            provider_response_id=opaque.get("provider_response_id"),
            provider_details=dict(details) if isinstance(details, dict) else None,
        )

    def _is_own(self, message: Message) -> bool:
        written: list[ProviderOptions] = [message.provider_options, *(part.provider_options for part in message.parts)]
        return any(self._name in options for options in written)

    def _output(self, part: Part) -> Any:
        opaque = own(self._name, part.provider_options)
        match part:
            case TextPart() if opaque and WHOLE in opaque:
                return unpacked_whole(opaque)
            case TextPart() if part.text or opaque:
                return unpacked("text", {"content": without_half_pairs(part.text)}, opaque)
            case ReasoningPart() if opaque or (opaque is not None and self._name in TAKES_UNSIGNED_REASONING):
                return unpacked("thinking", {"content": part.text}, opaque)
            case ToolCallPart():
                return unpacked("tool-call", self._call(part), opaque)
            case FilePart() if part.content is not None:
                return unpacked_file(part.content, part.media_type, opaque)
            case _:
                return None

    def _call(self, part: ToolCallPart) -> dict[str, str]:
        return {
            "tool_name": accepted_name(part.tool_name),
            "args": without_half_pairs(accepted_arguments(part.input)),
            "tool_call_id": self._ids.of(part.tool_call_id),
        }


def cache_mark(opaque: dict[str, Any] | None) -> CacheTtl | None:
    """Return how long the provider should keep its cache up to here; None for no mark."""
    marks = [opaque[name] for name in CACHE_MARKS if opaque and isinstance(opaque.get(name), dict)]
    if not marks:
        return None
    return LONG_CACHE if marks[0].get("ttl") == LONG_CACHE else "5m"


def _as_object(text: str) -> Any:
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):  # an operator's edit was not JSON
        return {"result": text}
    return result if isinstance(result, dict) else {"result": result}


def _file(part: FilePart) -> UserContent:
    if part.content is not None:
        try:
            return BinaryContent(data=base64.b64decode(part.content, validate=True), media_type=part.media_type)
        except binascii.Error:
            raise _refused(f"a message holds {part.media_type} that is not base64") from None
    if part.url is None:
        raise _refused(f"a message holds {part.media_type} without content and url; give it one of both")
    if part.url.startswith("data:"):
        return BinaryContent.from_data_uri(part.url)
    match part.media_type.partition("/")[0]:
        case "image":
            return ImageUrl(url=part.url, media_type=part.media_type)
        case "audio":
            return AudioUrl(url=part.url, media_type=part.media_type)
        case "video":
            return VideoUrl(url=part.url, media_type=part.media_type)
        case _:
            return DocumentUrl(url=part.url, media_type=part.media_type)


def _refused(what: str) -> ModelError:
    return ModelError(what, error_class="invalid_request", retryable=False)
