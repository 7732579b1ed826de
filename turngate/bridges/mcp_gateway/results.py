"""Results on their way between an MCP server, Turngate's log and an MCP client. Pure."""

from __future__ import annotations

from functools import partial
from typing import Final

from mcp.types import CallToolResult, TextContent, Tool
from pydantic import JsonValue, ValidationError

from turngate.domain.tools.external import ExternalTool
from turngate.domain.tools.results import Failure, Ok, wire_text
from turngate.domain.tools.tool import Effect, acceptable_name
from turngate.mcp_traffic import CLIPPED
from turngate.readable_schema import misfit, readable

MAX_DESCRIPTION: Final = 10_000
MAX_REASON: Final = 10_000
_MCP: Final = "mcp"
"""The key in a stored result under which the server's own answer is, so that it can be sent again."""


def external_tool(tool: Tool, *, trusted: bool, timeout_seconds: int) -> ExternalTool:
    """Return a server's tool as it is described to Turngate.

    Its annotations say what running it twice means. They are the server's claim: a tool that says it only reads runs without
    a rule only if they are ``trusted``. A warning (``destructiveHint``) is always believed.
    """
    hints = tool.annotations
    reads = hints is not None and hints.read_only_hint is True
    destroys = hints is not None and hints.destructive_hint is True and not reads
    effect: Effect = "once"
    if reads:
        effect = "read"
    elif hints is not None and hints.idempotent_hint is True and not destroys:
        effect = "idempotent"
    schema, unchecked = readable(tool.input_schema)
    return ExternalTool(
        name=acceptable(tool.name),
        description=(tool.description or tool.title or "").replace("\x00", "")[:MAX_DESCRIPTION],
        parameters=schema,
        effect=effect,
        ask=False if trusted and reads and not unchecked else None,
        timeout_seconds=timeout_seconds,
    )


acceptable: Final = partial(acceptable_name, distinct=True)
"""A tool's name as rules and people see it. Two names must not become one."""


def to_log(result: CallToolResult) -> Ok | Failure:
    """Return the server's answer as it goes into Turngate's log."""
    whole: JsonValue = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    if result.is_error:
        return Failure(kind="tool_failure", reason=text_of(result)[:MAX_REASON], fields={_MCP: whole})
    return Ok(value={_MCP: whole})


def from_log(result: Ok | Failure, tool: Tool) -> CallToolResult:
    """Return a call's result, from the log or from Turngate itself, as the client reads it.

    A person who answers instead of the tool seldom keeps to the tool's output schema. Clients refuse such a result unread,
    unless it is marked as an error.
    """
    whole = (result.value if isinstance(result, Ok) else result.fields).get(_MCP)
    if whole is not None:
        try:
            return for_client(CallToolResult.model_validate(whole), tool)
        except ValidationError:  # a person answered instead of the server
            pass
    if isinstance(result, Ok):
        content = [TextContent(type="text", text=wire_text(result))]
        if tool.output_schema is None:
            return CallToolResult(content=content)
        if misfit(result.value, tool.output_schema) is None:
            return CallToolResult(content=content, structured_content=result.value)
        return CallToolResult(content=content, is_error=True)
    return refused(result.reason, kind=result.kind)


def for_client(result: CallToolResult, tool: Tool) -> CallToolResult:
    """Return a server's answer as the client reads it: see :func:`from_log` for one that no longer fits its tool's schema."""
    misfits = CLIPPED in (result.meta or {}) and tool.output_schema is not None
    return result.model_copy(update={"is_error": True}) if misfits else result


def refused(reason: str, *, kind: str) -> CallToolResult:
    """Return an error the client's model can read, and its kind for programs."""
    error: dict[str, JsonValue] = {"kind": kind}
    return CallToolResult(
        content=[TextContent(type="text", text=reason or kind)], is_error=True, _meta={"turngate/error": error}
    )


def with_note(result: CallToolResult, edited_input: str) -> CallToolResult:
    """Return the result with a note that says what ran, because an operator edited the call (I6)."""
    note = f"An operator edited this call before it ran. It ran with: {edited_input}"
    return result.model_copy(update={"content": [TextContent(type="text", text=note), *result.content]})


def text_of(result: CallToolResult) -> str:
    """Return the text parts of a result."""
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))
