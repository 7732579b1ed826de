"""MCP servers as toolkits: ``mcp_toolkit(StdioServer(command=["uvx", "mcp-server-time"]), name="time")``.

Every call of a server's tool is gated like any other: unless the builder or the policy says otherwise, a person is asked.
Needs the extra ``mcp``.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from turngate import Tool, Toolkit
from turngate.domain.errors import ConfigurationError, MissingExtraError
from turngate.domain.tools.tool import DEFAULT_TIMEOUT, Ask, Effect
from turngate.toolkits.mcp_servers.failures import (
    McpToolError,
    McpToolGone,
    McpUnavailable,
    ToolChanged,
)
from turngate.toolkits.mcp_servers.servers import HttpServer, Server, StdioServer

__all__ = [
    "HttpServer",
    "McpToolError",
    "McpToolGone",
    "McpUnavailable",
    "StdioServer",
    "ToolChanged",
    "close_sessions",
    "mcp_toolkit",
]

T = TypeVar("T")
log = logging.getLogger("turngate.mcp")
CONNECT_TIMEOUT = timedelta(seconds=30)
_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SERVER_PLACES: Final[set[Path]] = set()
"""What the servers that this process starts may change, at any time while they run."""
SERVER_PROGRAMS: Final[set[Path]] = set()
"""The files that these servers run from."""
_ANSWER_SLACK_SECONDS = 60.0
"""The engine ends a call at its timeout; HTTP gives up only after that, so that there is one who decides."""


def mcp_toolkit(
    server: Server,
    *,
    name: str,
    allow: Collection[str] | None = None,
    effects: Mapping[str, Effect] | None = None,
    ask: Ask | Mapping[str, Ask] = None,
    untrusted: bool | Mapping[str, bool] | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
    connect_timeout: timedelta = CONNECT_TIMEOUT,
) -> Toolkit:
    """Connect to an MCP server, read its tools, disconnect, and return them as a toolkit. Blocks while it does.

    Calls then go over one session for each event loop, which is opened with the first call. A tool whose description or
    schema is not what it was when the toolkit was made does not run (failure ``tool_changed``). A tool that can't be read is
    left out, and one whose schema can't be checked in full is asked about; log and ``turngate doctor`` name them.

    Args:
        server: where it is.
        name: what the server is called in logs, errors and requests.
        allow: the tools to take, by the server's own names; None takes all, also those it gets later (after a restart).
        effects: the server's tool name → what running it twice means; ``once`` for those not named.
        ask: whether a person must approve, for all its tools, or by the server's tool name; see :func:`turngate.tool`.
            A server's annotations may make effect and ask stricter, never laxer.
        untrusted: whether anyone may have written what they return, for all its tools, or by the server's tool name. Other tools
            are untrusted if the server annotates them with ``openWorldHint: true``.
        timeout: for one call, 1 s to 7 days.
        connect_timeout: for starting or reaching the server, and again for reading its list.

    Raises:
        ConfigurationError: the server cannot be reached, or a tool that ``allow`` names cannot be used; the message says the
            fix.
    """
    if not _SERVER_NAME.fullmatch(name):
        raise ConfigurationError(f"an MCP server's name is letters, digits, '.', '_' and '-', at most 64, not {name!r}")
    SERVER_PLACES.update(server.changeable)
    SERVER_PROGRAMS.update(server.programs)
    listing_of, server_calls, declared = (_with_extra(part) for part in ("listing", "calls", "declared"))
    listing = listing_of.read_listing(server, name=name, seconds=connect_timeout.total_seconds())
    asking, marking = _by_tool(ask), _by_tool(untrusted)
    offered = [tool.name for tool in listing.tools]
    known = [*offered, *listing.left_out]
    for argument, names in {
        "allow": allow or (),
        "effects": effects or (),
        "ask": asking,
        "untrusted": marking,
    }.items():
        _known(name, argument, names, known)
    calls = server_calls.Calls(
        name=name,
        server=server,
        connect_seconds=connect_timeout.total_seconds(),
        answer_seconds=timeout.total_seconds() + _ANSWER_SLACK_SECONDS,
    )
    odd = ODD_TOOLS[name] = {each: f"is left out: {why}" for each, why in listing.left_out.items()}
    tools: list[Tool] = []
    names = declared.acceptable_names(offered)
    for server_tool in listing.tools:
        if allow is not None and server_tool.name not in allow:
            continue
        try:
            tool, unchecked = declared.declared(
                server_tool,
                calls,
                tool_name=names[server_tool.name],
                server_version=listing.version,
                effect=(effects or {}).get(server_tool.name, "once"),
                ask=asking[server_tool.name],
                untrusted=marking[server_tool.name],
                timeout=timeout,
            )
        except ConfigurationError as error:
            odd[server_tool.name] = f"is left out: {error.message}"
            continue
        tools.append(tool)
        if unchecked:
            odd[server_tool.name] = (
                f"is asked about unless a rule allows it, because not checked is: {', '.join(unchecked)}"
            )
    _report_odd(name, allow or ())
    return Toolkit.of(*tools)


def _report_odd(server: str, allow: Collection[str]) -> None:
    """Log the odd tools. Raises ConfigurationError if one that can't be used is in ``allow``."""
    for line in odd_tools(server):
        log.warning("%s", line)
    odd = ODD_TOOLS[server]
    missing = [each for each in allow if odd.get(each, "").startswith("is left out")]
    if missing:
        raise ConfigurationError(
            f"MCP server {server!r}: allow names {missing[0]!r}, which {odd[missing[0]]}. Take it out of allow=[…], or have the "
            "server's description of it corrected"
        )


ODD_TOOLS: Final[dict[str, dict[str, str]]] = {}
"""Of this process's toolkits: server → its tools that aren't as it describes them here → what that means."""


def odd_tools(*servers: str) -> list[str]:
    """Return a line for each tool of these MCP servers that is left out or asked about more than declared.

    No servers: all that the app in this process uses, also one of which no tool is left.
    """
    return [
        f"MCP server {server!r}: the tool {tool[:100]!r} {what}"
        for server in servers or sorted(ODD_TOOLS)
        for tool, what in ODD_TOOLS.get(server, {}).items()
    ]


def _by_tool(setting: T | Mapping[str, T] | None) -> defaultdict[str, T | None]:
    """Return a setting by the server's tool name: as it is declared for that tool, or for all."""
    if isinstance(setting, Mapping):
        return defaultdict(lambda: None, setting)
    return defaultdict(lambda: setting)


async def close_sessions() -> None:
    """Close every MCP session of the running loop; returns when the servers started for them are gone.

    ``asyncio.run`` ends them too; call this to have it done before other things are torn down.
    """
    await _with_extra("calls").close_sessions()


def _with_extra(module: str) -> Any:
    """Import a part that needs the ``mcp`` package. Raises ConfigurationError when that is not installed."""
    try:
        return importlib.import_module(f"turngate.toolkits.mcp_servers.{module}")
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise MissingExtraError("MCP servers", "mcp") from missing


def _known(server: str, argument: str, names: Iterable[str], offered: list[str]) -> None:
    unknown = sorted(set(names) - set(offered))
    if unknown:
        raise ConfigurationError(
            f"MCP server {server!r}: {argument} names {', '.join(map(repr, unknown))}, which it does not have; it has: "
            f"{', '.join(map(repr, offered)) or 'no tools'}"
        )
