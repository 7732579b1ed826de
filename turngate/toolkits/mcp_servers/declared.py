"""Each tool of a server as a tool of Turngate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from mcp.types import Tool as ServerTool
from mcp.types import ToolAnnotations
from pydantic import JsonValue

from turngate import Tool, ToolContext, declare_tool
from turngate.domain.tools.tool import MAX_NAME, Ask, Confiner, Effect, acceptable_name
from turngate.readable_schema import readable
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


def declared(
    server_tool: ServerTool,
    calls: Calls,
    *,
    tool_name: str,
    server_version: str,
    effect: Effect,
    ask: Ask,
    untrusted: bool | None,
    timeout: timedelta,
) -> tuple[Tool, tuple[str, ...]]:
    """Return the server's tool, and what of its schema is not checked: then ``ask=False`` does not count.

    ``untrusted`` None: as its annotations say. Raises ConfigurationError when it cannot be declared.
    """
    hints = server_tool.annotations
    effect, ask = raised(effect, ask, hints)
    is_open = hints is not None and hints.open_world_hint is True
    digest = manifest_digest(server_tool)
    schema, unchecked = readable(server_tool.input_schema)
    if unchecked and ask is False:
        ask = None
    tool = declare_tool(
        name=tool_name,
        description=plain(server_tool.description or server_tool.title or server_tool.name, MAX_DESCRIPTION),
        params=JsonSchemaParameters(schema),
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
    return tool, unchecked


def _confinement(server: Server) -> Confiner | None:
    """Return what says how a server's own process is confined; None: it is not started here."""
    if not isinstance(server, StdioServer):
        return None
    return lambda _params: machine.current().described(network=server.network)


def acceptable_names(names: Sequence[str]) -> dict[str, str]:
    """Return a server's tool names as those that every provider takes: other characters as ``_``, too long ones cut.

    A changed name ends in a digest of the whole where it was cut, or where two would become one.
    """
    changed = {name: acceptable_name(name) for name in names}
    times = Counter(changed.values())
    return {
        name: acceptable_name(name, distinct=True) if name != to and times[to] > 1 else to
        for name, to in changed.items()
    }


def _handler(calls: Calls, tool: str, digest: str) -> Callable[..., Awaitable[JsonValue]]:
    async def call(params: dict[str, JsonValue], ctx: ToolContext) -> JsonValue:
        return await calls.call(tool, params, ctx, digest)

    # What describes the tool's source where two tools have one name.
    call.__qualname__ = f"{plain(tool, MAX_NAME)} of MCP server {calls.name!r}"
    return call
