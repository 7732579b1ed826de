"""What a provider wants back unread: packed into ``provider_options[provider]``, unpacked for the same provider. Pure.

A response's part of pydantic-ai is a text, a reasoning, a call or a file that we hold in words of our own, and more fields
(signature, id, details) that no one here reads: those are packed. A part that we have no words for at all, such as what a
provider's own search found, is packed whole.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_ai.messages import FilePart, ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_core import to_jsonable_python

from turngate.domain.conversation.messages import ProviderOptions

PART: Final[TypeAdapter[Any]] = TypeAdapter(ModelResponsePart)
KEPT_OF_RESPONSE: Final = ("provider_response_id", "canonical_system", "provider_details")
NOT_OF_THE_ANSWER: Final = frozenset({"timestamp"})
"""Of a response's details: when its server began to write, which differs between a streamed and an unstreamed one."""
OUR_WORDS: Final[Mapping[type, frozenset[str]]] = {
    TextPart: frozenset({"content"}),
    ThinkingPart: frozenset({"content"}),
    ToolCallPart: frozenset({"tool_name", "args", "tool_call_id"}),
    FilePart: frozenset({"content"}),
}
WHOLE: Final = "part"
"""Under this key stands a part for which we have no words."""


def packed(provider: str, part: ModelResponsePart) -> ProviderOptions:
    """Return what has to go back with this part; {} when there is nothing."""
    ours = OUR_WORDS.get(type(part))
    if ours is None:
        return {provider: {WHOLE: PART.dump_python(part, mode="json")}}
    kept = PART.dump_python(part, mode="json", exclude=set(ours), exclude_defaults=True)
    return {provider: kept} if kept else {}


def packed_response(provider: str, response: ModelResponse) -> ProviderOptions:
    """Return what has to go back with the whole response; {} when there is nothing."""
    kept: dict[str, JsonValue] = {}
    for name in KEPT_OF_RESPONSE:
        value = getattr(response, name)
        if isinstance(value, dict):
            value = {key: each for key, each in value.items() if key not in NOT_OF_THE_ANSWER}
        if value:
            kept[name] = to_jsonable_python(value, fallback=str)
    return {provider: kept} if kept else {}


def own(provider: str, options: ProviderOptions) -> dict[str, Any] | None:
    """Return what this provider has under its name; None when the part or message is not of its making."""
    kept = options.get(provider)
    return kept if isinstance(kept, dict) else None


def unpacked(kind: str, ours: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Any:
    """Return the part as it came, from our words for it and what was packed. ``kind``: pydantic-ai's ``part_kind``."""
    said = {"part_kind": kind, **ours}
    try:
        return PART.validate_python({**(kept or {}), **said})
    except ValidationError:
        return PART.validate_python(said)  # written by someone else under the provider's name: it is left out


def unpacked_whole(kept: Mapping[str, Any]) -> Any:
    """Return the part that was packed whole; None when it cannot be read."""
    try:
        return PART.validate_python(kept[WHOLE])
    except ValidationError:
        return None


def unpacked_file(content: str, media_type: str, kept: Mapping[str, Any] | None) -> Any:
    """Return a file that the model made. ``content``: base64."""
    data = {"data": base64.b64decode(content), "media_type": media_type, "kind": "binary"}
    return unpacked("file", {"content": data}, kept)
