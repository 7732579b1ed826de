"""A server's answer as a JSON value of bounded size. Pure."""

from __future__ import annotations

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import JsonValue

from turngate.toolkits.mcp_servers.plain_text import plain

MAX_TEXT = 200_000
MAX_ATTACHMENTS = 50
MAX_ERROR = 8000
MAX_LABEL = 2000

UNSTRUCTURED: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "attachments": {"type": "array", "items": {"type": "object"}},
    },
}
"""What a tool without an output schema answers, unless its server sends structured content all the same."""


def answer(result: CallToolResult) -> JsonValue:
    """Return the structured content as it is; without one the text, and images and the like by type and size."""
    if result.structured_content is not None:
        structured: JsonValue = result.structured_content
        return structured
    value: dict[str, JsonValue] = {"text": _clipped(_text(result.content), MAX_TEXT)}
    attachments = [_attachment(block) for block in result.content if not isinstance(block, TextContent)]
    if attachments:
        value["attachments"] = [*attachments[:MAX_ATTACHMENTS]]
    if len(attachments) > MAX_ATTACHMENTS:
        value["attachments_left_out"] = len(attachments) - MAX_ATTACHMENTS
    return value


def error_text(result: CallToolResult) -> str:
    """Return what the server says went wrong."""
    message = _text(result.content) or "The server says that the call failed, and not why."
    return plain(message, MAX_ERROR)


def _text(blocks: list[ContentBlock]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextContent))


def _attachment(block: ContentBlock) -> dict[str, JsonValue]:
    match block:
        case ImageContent() | AudioContent():
            return {"type": block.type, "mime_type": plain(block.mime_type, MAX_LABEL), "bytes": _size(block.data)}
        case ResourceLink():
            link = {"name": block.name, "mime_type": block.mime_type, "description": block.description}
            labels: dict[str, JsonValue] = {
                name: plain(value, MAX_LABEL) for name, value in link.items() if value is not None
            }
            return {"type": "resource_link", "uri": plain(block.uri, MAX_LABEL), "bytes": block.size, **labels}
        case EmbeddedResource(resource=resource):
            mime = {} if resource.mime_type is None else {"mime_type": plain(resource.mime_type, MAX_LABEL)}
            content: dict[str, JsonValue] = {"type": "resource", "uri": plain(resource.uri, MAX_LABEL), **mime}
            match resource:
                case TextResourceContents(text=text):
                    room = MAX_TEXT // MAX_ATTACHMENTS
                    return {**content, "bytes": len(text.encode()), "text": _clipped(text, room)}
                case BlobResourceContents(blob=blob):
                    return {**content, "bytes": _size(blob)}
        case TextContent():
            raise AssertionError("text is no attachment")


def _clipped(text: str, limit: int) -> str:
    """Return the text, its end left out where it is too long. Control characters stay: they are the tool's answer."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} characters left out]"


def _size(base64_text: str) -> int:
    """Return how many bytes base64 stands for, without decoding it."""
    return len(base64_text) * 3 // 4 - base64_text[-2:].count("=")
