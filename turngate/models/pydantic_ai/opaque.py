"""Data that a provider wants back unread: packed into ``provider_options[provider]``, unpacked for the same provider.

A part of pydantic-ai's response is a text, a reasoning, a call or a file, for which we have our own fields, and has more fields
(signature, id, details) that Turngate does not read: those are packed. A part of another kind, such as the result of a
provider's own search, is packed whole.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import structlog
from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_ai.messages import FilePart, ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_core import to_jsonable_python

from turngate.domain.conversation.messages import ProviderOptions

log = structlog.get_logger(__name__)

PART: Final[TypeAdapter[Any]] = TypeAdapter(ModelResponsePart)
RESPONSE_FIELDS: Final = ("provider_response_id", "canonical_system", "provider_details")
IGNORED_DETAILS: Final = frozenset({"timestamp"})
"""In a response's details: when its server began to write, which differs between a streamed and an unstreamed one."""
OUR_FIELDS: Final[Mapping[type, frozenset[str]]] = {
    TextPart: frozenset({"content"}),
    ThinkingPart: frozenset({"content"}),
    ToolCallPart: frozenset({"tool_name", "args", "tool_call_id"}),
    FilePart: frozenset({"content"}),
}
WHOLE: Final = "part"
"""The key of a part for which we have no fields."""


def packed(provider: str, part: ModelResponsePart) -> ProviderOptions:
    """Return what must be sent back with this part; {} for nothing."""
    ours = OUR_FIELDS.get(type(part))
    if ours is None:
        return {provider: {WHOLE: PART.dump_python(part, mode="json")}}
    has_values = PART.dump_python(part, mode="json", exclude=set(ours), exclude_defaults=True)
    # Only a whole field is left out: a nested default, such as a citation's kind, is how the value is read back.
    whole = PART.dump_python(part, mode="json", exclude=set(ours))
    opaque = {name: whole[name] for name in has_values}
    return {provider: opaque} if opaque else {}


def packed_response(provider: str, response: ModelResponse) -> ProviderOptions:
    """Return what must be sent back with the whole response; {} for nothing."""
    opaque: dict[str, JsonValue] = {}
    for name in RESPONSE_FIELDS:
        value = getattr(response, name)
        if isinstance(value, dict):
            value = {key: each for key, each in value.items() if key not in IGNORED_DETAILS}
        if value:
            opaque[name] = to_jsonable_python(value, fallback=str)
    return {provider: opaque} if opaque else {}


def own(provider: str, options: ProviderOptions) -> dict[str, Any] | None:
    """Return this provider's options, or None if the part or message is not from this provider."""
    opaque = options.get(provider)
    return opaque if isinstance(opaque, dict) else None


def unpacked(kind: str, ours: Mapping[str, Any], opaque: Mapping[str, Any] | None) -> Any:
    """Return the original part, from our fields and the packed ones. ``kind``: pydantic-ai's ``part_kind``.

    A packed field that cannot be read, because another program wrote it under the provider's name, is left out and logged;
    the others stay.
    """
    plain, packed_fields = {"part_kind": kind, **ours}, dict(opaque or {})
    while True:
        try:
            return PART.validate_python({**packed_fields, **plain})
        except ValidationError as error:
            places = [each["loc"] for each in error.errors(include_url=False, include_input=False)]
            unread = packed_fields.keys() & {place[1] for place in places if len(place) > 1}
            if not unread:
                raise
            log.warning("provider options cannot be read", part=kind, fields=sorted(unread))
            packed_fields = {name: value for name, value in packed_fields.items() if name not in unread}


def unpacked_whole(opaque: Mapping[str, Any]) -> Any:
    """Return the part that was packed whole, or None, which is logged, if it cannot be read."""
    try:
        return PART.validate_python(opaque[WHOLE])
    except ValidationError:
        log.warning("provider options cannot be read", part=WHOLE, fields=[WHOLE])
        return None


def unpacked_file(content: str, media_type: str, opaque: Mapping[str, Any] | None) -> Any:
    """Return a file that the model produced. ``content``: base64."""
    data = {"data": base64.b64decode(content), "media_type": media_type, "kind": "binary"}
    return unpacked("file", {"content": data}, opaque)
