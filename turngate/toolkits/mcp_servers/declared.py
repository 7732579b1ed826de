"""Each tool of a server as a tool of Turngate."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from hashlib import sha256

from mcp.types import Tool as ServerTool
from mcp.types import ToolAnnotations
from pydantic import JsonValue

from turngate import Tool, ToolContext, declare_tool
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.tool import Ask, Confiner, Effect
from turngate.toolkits.confinement import machine
from turngate.toolkits.json_schema import JsonSchemaParameters
from turngate.toolkits.mcp_servers import failures
from turngate.toolkits.mcp_servers.calls import Calls
from turngate.toolkits.mcp_servers.content import UNSTRUCTURED
from turngate.toolkits.mcp_servers.listing import manifest_digest
from turngate.toolkits.mcp_servers.plain_text import plain
from turngate.toolkits.mcp_servers.servers import Server, StdioServer

# What a server says of a tool's risk, against what the builder says: a hint may raise it, never lower it. Pure.
#
# The hints are a server's own claims, and the specification says not to decide by those of a server that is not trusted
# (https://modelcontextprotocol.io/specification, "Tool annotations"). A warning can be believed from anyone.


def raised(effect: Effect, ask: Ask, hints: ToolAnnotations | None) -> tuple[Effect, Ask]:
    """Return effect and ``ask``, stricter where the server warns. Hints that are left out or reassure change nothing."""
    if hints is None:
        return effect, ask
    destroys = hints.destructive_hint is True
    adds_up = hints.idempotent_hint is False and hints.read_only_hint is not True
    writes = hints.read_only_hint is False and effect == "read"
    stricter: Effect = "once" if destroys or adds_up or writes else effect
    return stricter, True if destroys or hints.open_world_hint is True else ask


MAX_DESCRIPTION = 4000
MAX_NAME = 64
_DIGEST_CHARS = 8


def declared(
    server_tool: ServerTool,
    calls: Calls,
    *,
    server_version: str,
    effect: Effect,
    ask: Ask,
    untrusted: bool | None,
    timeout: timedelta,
) -> Tool:
    """Return the server's tool. ``untrusted`` None: as its annotations say.

    Raises ConfigurationError when its schema cannot be used.
    """
    hints = server_tool.annotations
    effect, ask = raised(effect, ask, hints)
    is_open = hints is not None and hints.open_world_hint is True
    digest = manifest_digest(server_tool)
    try:
        params = JsonSchemaParameters(server_tool.input_schema)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"MCP server {calls.name!r}, tool {server_tool.name!r}: {error.message}. Leave the tool out with allow=[…]"
        ) from None
    return declare_tool(
        name=acceptable(server_tool.name),
        description=plain(server_tool.description or server_tool.title or server_tool.name, MAX_DESCRIPTION),
        params=params,
        success=JsonValue,
        success_schema=server_tool.output_schema or UNSTRUCTURED,
        effect=effect,
        ask=ask,
        untrusted=is_open if untrusted is None else untrusted,
        failures=failures.ALL,
        timeout=timeout,
        origin={"mcp_server": calls.name, "server_version": server_version, "manifest_digest": digest},
        handler=_handler(calls, server_tool.name, digest),
        confinement=_confinement(calls.server),
    )


def _confinement(server: Server) -> Confiner | None:
    """Return what says how a server's own process is confined; None: it is not started here."""
    if not isinstance(server, StdioServer):
        return None
    return lambda _params: machine.current().described(network=server.network)


def acceptable(name: str) -> str:
    """Return a server's tool name as one that every provider takes: other characters as ``_``, too long ones cut.

    A name that is cut ends in a digest of the whole, so that two long ones do not become one.
    """
    safe_name = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not re.match(r"[A-Za-z_]", safe_name):
        safe_name = f"_{safe_name}"
    if len(safe_name) <= MAX_NAME:
        return safe_name
    return f"{safe_name[: MAX_NAME - _DIGEST_CHARS - 1]}_{sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]}"


def _handler(calls: Calls, tool: str, digest: str) -> Callable[..., Awaitable[JsonValue]]:
    async def call(params: dict[str, JsonValue], ctx: ToolContext) -> JsonValue:
        return await calls.call(tool, params, ctx, digest)

    # What describes the tool's source where two tools have one name.
    call.__qualname__ = f"{plain(tool, MAX_NAME)} of MCP server {calls.name!r}"
    return call
