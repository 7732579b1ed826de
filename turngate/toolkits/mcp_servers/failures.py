"""What a call to an MCP server's tool can end in, in the words the model reads."""

from __future__ import annotations

from typing import ClassVar

from turngate import ToolFailure


class McpToolError(ToolFailure):
    """The server answered that the call failed."""

    reason: str


class McpUnavailable(ToolFailure):
    """The server could not be reached. Nothing was sent, so nothing happened."""

    reason: str


class McpToolGone(ToolFailure):
    """The server does not have the tool any more. Nothing ran."""

    kind: ClassVar[str] = "unknown_tool"

    reason: str


class ToolChanged(ToolFailure):
    """The server describes the tool differently from what was shown to the people who approve its calls. Nothing ran."""

    reason: str
    shown_digest: str
    current_digest: str


ALL = (McpToolError, McpUnavailable, McpToolGone, ToolChanged)
