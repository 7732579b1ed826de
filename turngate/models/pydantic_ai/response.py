"""Turn pydantic-ai's response into a :class:`ModelResponse`, and its stream's events into deltas. Pure.

Owns the incoming half of the mapping. Each part becomes one of our parts, in the same place, so a delta's ``part`` is the place
in the stored message. A call's input is the provider's own JSON text. If a provider sends an object, streamed as text or not,
it is written as one canonical text, so that a streamed and an unstreamed step store the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from pydantic_ai.messages import FilePart as TheirFile
from pydantic_ai.messages import ModelResponse as TheirResponse
from pydantic_ai.messages import (
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPartDelta,
)
from pydantic_ai.messages import TextPart as TheirText
from pydantic_ai.messages import ToolCallPart as TheirCall

from turngate.domain.agents.structured_output import ANSWER_TOOL
from turngate.domain.conversation.messages import (
    Delta,
    DeltaKind,
    FilePart,
    FinishReason,
    Message,
    ModelResponse,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    Usage,
)
from turngate.domain.text.json_text import without_repeats
from turngate.domain.tools.results import MAX_DEPTH, is_deeper
from turngate.models.openai.malformed import is_unexpected, unread_finish
from turngate.models.openai.response import CALL_IS_MISSING
from turngate.models.pydantic_ai.opaque import packed, packed_response
from turngate.models.pydantic_ai.stream_end import StreamEnd

SENDS_OBJECTS: Final = frozenset({"anthropic", "bedrock", "google", "google-cloud"})
"""The providers that send a call's input as an object if they do not stream."""
NEVER_CUT: Final = frozenset({"xai", "openai-decisions", "google-decisions", "system-one", "typesafe"})
"""Providers whose streams cannot end early without an error: those over gRPC, and answers that come in one piece anyway."""
MADE_UP_ID: Final = "pyd_ai_"
"""How an id begins that pydantic-ai made up because there was none. It is random, so the engine creates its own."""
NO_ID: Final = frozenset({"", "null"})
"""The client of Mistral reads a missing id as the text ``null``."""
FINISH_REASONS: Final[dict[str | None, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}
REFUSED: Final = "refusal"
"""Anthropic's stop reason when its own safety classifiers ended the answer; pydantic-ai counts it as a content filter."""
UNREAD_BY_GROQ: Final = "the provider could not read the tool call in it (tool_use_failed)"


def model_response(
    response: TheirResponse, *, provider: str, model: str, tools_offered: bool, structured: bool
) -> ModelResponse:
    """Return the domain's value; ``model`` is the name for people.

    ``tools_offered``: a response that ends as if with a call and has none is then ``malformed``, not an answer.
    ``structured``: a call with the answer's name is the structured answer; otherwise the model made that call up.
    """
    native = _native_finish(response)
    parts, wrong = _parts(response, provider, structured=structured)
    message = Message(role="assistant", parts=parts, provider_options=packed_response(provider, response))
    answered = structured and any(_is_answer(part) for part in response.parts)
    finish = _finish(response, native, has_calls=bool(message.calls), answered=answered)
    malformed = wrong or _unread(response, native, has_calls=bool(message.calls))
    if not malformed and response.finish_reason == "error":
        # Groq's "the call does not fit its schema" comes with the call, which planning closes with the reason. So does
        # Gemini's for a tool that it was not offered.
        finish = "tool_calls" if message.calls and (native is None or is_unexpected(native)) else "other"
    if not malformed and tools_offered and not message.calls and finish == "tool_calls":
        malformed = CALL_IS_MISSING
    return ModelResponse(
        message=message, finish_reason=finish, usage=_usage(response), model=model, malformed=malformed
    )


def _unread(response: TheirResponse, native: str | None, *, has_calls: bool) -> str:
    """Return what is wrong if the provider could not read the model's call; else "".

    Gemini quotes the call in ``finishMessage``, which pydantic-ai drops (its ``_finish_details`` keeps the reason and the safety
    ratings), so the model learns the reason alone.
    """
    if has_calls and (native is None or is_unexpected(native)):
        return ""
    if native is None and response.finish_reason == "error":
        return UNREAD_BY_GROQ
    return unread_finish(native)


def is_whole(response: TheirResponse, provider: str, end: StreamEnd | None) -> bool:
    """Whether a response is complete: every provider says at the end why it stopped. ``end``: of a stream; else None.

    pydantic-ai makes up the reason if a stream of chat completions had none. Such a stream must have ended with ``[DONE]``
    (Snowflake's Claude models give no reason).
    """
    details = _details(response)
    is_over = end is None or end.is_done or provider in NEVER_CUT
    finished = bool(details.get("finish_reason")) or (response.finish_reason is not None and is_over)
    return response.state != "incomplete" and (finished or "block_reason" in details)


def says_something(event: ModelResponseStreamEvent) -> bool:
    """Tell whether an event adds something to the answer: not a part without text, an empty piece, or white space."""
    if isinstance(event, PartStartEvent):
        content = getattr(event.part, "content", None)
        return bool(content.strip()) if isinstance(content, str) else True
    if not isinstance(event, PartDeltaEvent):
        return False
    delta = event.delta
    match delta:
        case TextPartDelta():
            return bool(delta.content_delta.strip())
        case ThinkingPartDelta():
            return bool((delta.content_delta or "").strip() or delta.signature_delta)
        case ToolCallPartDelta():
            args = delta.args_delta
            return bool(delta.tool_name_delta or (args.strip() if isinstance(args, str) else args))
    return True


def thinks_unseen(event: ModelResponseStreamEvent) -> bool:
    """Tell whether an event begins a part in which the model thinks, and shows nothing of it yet."""
    return isinstance(event, PartStartEvent) and isinstance(event.part, ThinkingPart) and not event.part.content


class DeltaReader:
    """Reads the events of one stream. ``first_part``: how many parts came before it, if it continues a response.

    ``structured``: as for :func:`model_response`.
    """

    def __init__(self, first_part: int = 0, *, structured: bool = False) -> None:
        self._first = first_part
        self._structured = structured
        self._calls: dict[int, DeltaKind] = {}

    def read(self, event: ModelResponseStreamEvent) -> Iterator[Delta]:
        """Yield what the event adds; nothing for an event that only says that something ended."""
        if isinstance(event, PartStartEvent):
            yield from self._begun(event.part, self._first + event.index)
            return
        if not isinstance(event, PartDeltaEvent):
            return
        part, delta = self._first + event.index, event.delta
        if isinstance(delta, TextPartDelta) and delta.content_delta:
            yield Delta(kind="text", part=part, text=delta.content_delta)
        elif isinstance(delta, ThinkingPartDelta) and delta.content_delta:
            yield Delta(kind="reasoning", part=part, text=delta.content_delta)
        elif isinstance(delta, ToolCallPartDelta) and part in self._calls:  # else the provider calls its own tool
            text, name = _input(delta.args_delta or ""), delta.tool_name_delta or ""
            if text or name:
                yield Delta(kind=self._calls[part], part=part, text=text, tool_name=name)

    def _begun(self, part: ModelResponsePart, place: int) -> Iterator[Delta]:
        match part:
            case TheirText() if part.content:
                yield Delta(kind="text", part=place, text=part.content)
            case ThinkingPart() if part.content:
                yield Delta(kind="reasoning", part=place, text=part.content)
            case TheirCall() if self._structured and _is_answer(part):
                self._calls[place] = "text"  # the structured answer is text to everyone else
                yield Delta(kind="text", part=place, text=_input(part.args or ""))
            case TheirCall():
                self._calls[place] = "tool-call"
                yield Delta(kind="tool-call", part=place, text=_input(part.args or ""), tool_name=part.tool_name)
            case _:
                return


def _parts(response: TheirResponse, provider: str, *, structured: bool) -> tuple[tuple[Part, ...], str]:
    """Return our parts, and why the response is malformed ("" if it is not)."""
    parts: list[Part] = []
    seen: set[str] = set()
    for part in response.parts:
        options = packed(provider, part)
        if is_deeper(options, MAX_DEPTH):
            return (TextPart(text=response.text or ""),), "it nests too deep"
        match part:
            case TheirText():
                parts.append(TextPart(text=part.content, provider_options=options))
            case ThinkingPart():
                # Marked as this provider's even if nothing signs it: some want even that back.
                parts.append(ReasoningPart(text=part.content, provider_options=options or {provider: {}}))
            case TheirCall() if structured and _is_answer(part):
                parts.append(TextPart(text=_input(part.args or "{}")))
            case TheirCall():
                call_id = _call_id(part.tool_call_id, seen)
                parts.append(
                    ToolCallPart(
                        tool_call_id=call_id,
                        tool_name=part.tool_name,
                        input=call_input(part.args, provider),
                        provider_options=options,
                    )
                )
            case TheirFile():
                content = base64.b64encode(part.content.data).decode()
                kind: Any = "image" if part.content.is_image else "file"
                media_type = part.content.media_type
                parts.append(FilePart(type=kind, media_type=media_type, content=content, provider_options=options))
            case _:
                parts.append(TextPart(text="", provider_options=options))
    return tuple(parts), ""


def _call_id(tool_call_id: str, seen: set[str]) -> str:
    """Return the provider's id; "" if it sent none, or sent the same id before."""
    usable = tool_call_id not in NO_ID and not tool_call_id.startswith(MADE_UP_ID) and tool_call_id not in seen
    seen.add(tool_call_id)
    return tool_call_id if usable else ""


def call_input(args: str | Mapping[str, object] | None, provider: str) -> str:
    """Return a call's input as JSON text: the provider's own, or the canonical text of an object."""
    if provider not in SENDS_OBJECTS:
        return _input(args or "")
    if isinstance(args, str) and args.strip():
        return _canonical_text(args)
    return _input(args or {})


def _input(args: str | Mapping[str, object]) -> str:
    return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)


def _canonical_text(raw: str) -> str:
    """Return a streamed object's text as it would be if it had come unstreamed. A text that would lose something stays.

    It would lose digits that a float does not keep, or a key that is there twice, or it is not an object.
    """
    try:
        exact = json.loads(raw, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=without_repeats)
        read = json.loads(raw)
        again = json.dumps(read, ensure_ascii=False)
        if isinstance(read, dict) and json.loads(again, parse_float=Decimal, parse_int=Decimal) == exact:
            return again
    except (ValueError, RecursionError, ArithmeticError):
        pass
    return raw


def _details(response: TheirResponse) -> dict[str, Any]:
    return response.provider_details or {}


def _native_finish(response: TheirResponse) -> str | None:
    reason = _details(response).get("finish_reason")
    return reason if isinstance(reason, str) else None


def _finish(response: TheirResponse, native: str | None, *, has_calls: bool, answered: bool) -> FinishReason:
    if native == REFUSED:
        return "refusal"
    finish = FINISH_REASONS.get(response.finish_reason, "other")
    if finish == "tool_calls" and not has_calls and answered:
        return "stop"
    return "tool_calls" if finish == "stop" and has_calls else finish


def _is_answer(part: ModelResponsePart) -> bool:
    return isinstance(part, TheirCall) and part.tool_name == ANSWER_TOOL


def _usage(response: TheirResponse) -> Usage:
    """Return the counts; pydantic-ai's input tokens include those read from or written to a cache."""
    usage = response.usage
    return Usage(
        input_tokens=max(0, usage.input_tokens),
        output_tokens=max(0, usage.output_tokens),
        cache_read_tokens=max(0, usage.cache_read_tokens),
        cache_write_tokens=max(0, usage.cache_write_tokens),
    )
