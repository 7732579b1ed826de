"""Results on their way between an MCP server, Turngate's log and an MCP client. Pure."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final

from jsonschema import Draft202012Validator
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import JsonValue, ValidationError
from referencing import Registry

from turngate.domain.tools.external import ExternalTool
from turngate.domain.tools.results import Failure, Ok, wire_text
from turngate.domain.tools.tool import Effect

MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 10_000
MAX_REASON: Final = 10_000
_MCP: Final = "mcp"
"""Where a result that is kept holds what the server answered, so that it can be given again."""


def external_tool(tool: Tool, *, trusted: bool, timeout_seconds: int) -> ExternalTool:
    """Return a server's tool as Turngate is told of it.

    Its annotations say what running it twice means. They are the server's claim: only ``trusted`` ones let a tool that says it
    reads only run where no rule speaks of it. A warning (``destructiveHint``) is believed from anybody.
    """
    hints = tool.annotations
    reads = hints is not None and hints.read_only_hint is True
    destroys = hints is not None and hints.destructive_hint is True and not reads
    effect: Effect = "once"
    if reads:
        effect = "read"
    elif hints is not None and hints.idempotent_hint is True and not destroys:
        effect = "idempotent"
    return ExternalTool(
        name=acceptable(tool.name),
        description=(tool.description or tool.title or "").replace("\x00", "")[:MAX_DESCRIPTION],
        parameters=tool.input_schema,
        effect=effect,
        ask=False if trusted and reads else None,
        timeout_seconds=timeout_seconds,
    )


def acceptable(name: str) -> str:
    """Return a tool's name as rules and people see it: other characters as ``_``, a long one cut and marked."""
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    shown = shown if re.match(r"[A-Za-z_]", shown) else f"_{shown}"
    if shown == name and len(name) <= MAX_NAME:
        return name
    # Two names must not become one: what was changed ends in a mark of the whole.
    return f"{shown[: MAX_NAME - 9]}_{sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def kept(result: CallToolResult) -> Ok | Failure:
    """Return what the server answered as it goes into Turngate's log."""
    whole: JsonValue = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    if result.is_error:
        return Failure(kind="tool_failure", reason=text_of(result)[:MAX_REASON], fields={_MCP: whole})
    return Ok(value={_MCP: whole})


def given(result: Ok | Failure, tool: Tool) -> CallToolResult:
    """Return a call's result, from the log or by Turngate itself, as the client reads it.

    A person's answer in the tool's place is seldom of the form that a tool with an output schema promises. Clients refuse such a
    result unread, unless it is marked as an error.
    """
    whole = (result.value if isinstance(result, Ok) else result.fields).get(_MCP)
    if whole is not None:
        try:
            return CallToolResult.model_validate(whole)
        except ValidationError:  # a person's word in its place
            pass
    if isinstance(result, Ok):
        said = [TextContent(type="text", text=wire_text(result))]
        if tool.output_schema is None:
            return CallToolResult(content=said)
        if _fits(result.value, tool.output_schema):
            return CallToolResult(content=said, structured_content=result.value)
        return CallToolResult(content=said, is_error=True)
    return refused(result.reason, kind=result.kind)


def _fits(value: dict[str, JsonValue], schema: dict[str, Any]) -> bool:
    # An empty registry: a reference out of the schema is not fetched.
    try:
        return bool(Draft202012Validator(schema, registry=Registry()).is_valid(value))
    except Exception:  # noqa: BLE001 - a schema of a server's, which may be broken in any way
        return False


def refused(reason: str, *, kind: str) -> CallToolResult:
    """Return an error the client's model can read, and its kind for programs."""
    said: dict[str, JsonValue] = {"kind": kind}
    return CallToolResult(
        content=[TextContent(type="text", text=reason or kind)], is_error=True, _meta={"turngate/error": said}
    )


def with_note(result: CallToolResult, edited_input: str) -> CallToolResult:
    """Return the result with a word of what ran, because an operator edited the call (I6)."""
    note = f"An operator edited this call before it ran. It ran with: {edited_input}"
    return result.model_copy(update={"content": [TextContent(type="text", text=note), *result.content]})


def text_of(result: CallToolResult) -> str:
    """Return the text of a result, without what is no text."""
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))
