"""What a server says of its tools: read in pages, and the digest of what it said of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mcp import Client
from mcp.types import PaginatedRequestParams, Tool

from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.toolkits.mcp_servers.connection import ServerAwayError, connected
from turngate.toolkits.mcp_servers.plain_text import plain
from turngate.toolkits.mcp_servers.servers import Server

MAX_PAGES = 100
VERSION_CHARS = 100


@dataclass(frozen=True)
class Listing:
    """A server's version and tools, as it gave them.

    ``version``: empty when it does not say. ``left_out``: tools that can't be read, name → reason.
    """

    version: str
    tools: list[Tool]
    left_out: dict[str, str]


def read_listing(server: Server, *, name: str, seconds: float) -> Listing:
    """Connect, read the list, disconnect. Blocks; may be called with or without a running event loop.

    Raises:
        ConfigurationError: the server cannot be reached, or did not answer in time.
    """
    # A thread of its own: an app is also imported from within a running loop, which cannot run a second one.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"mcp-{name}") as thread:
        try:
            return thread.submit(lambda: asyncio.run(_listing(server, name, seconds))).result()
        except ServerAwayError as away:
            raise ConfigurationError(f"MCP server {name!r}: {away}") from away


async def _listing(server: Server, name: str, seconds: float) -> Listing:
    left_out: dict[str, str] = {}
    async with connected(
        server, name=name, seconds=seconds, answer_seconds=seconds, on_odd_tool=left_out.__setitem__
    ) as client:
        try:
            async with asyncio.timeout(seconds):
                tools = [tool async for tool in each_tool(client)]
        except Exception as error:
            why = plain(f"{type(error).__name__}: {error}", 500)
            raise ServerAwayError(f"it did not list its tools within {seconds:g} s ({why})") from error
        info = client.server_info
        return Listing(plain(info.version if info is not None else "", VERSION_CHARS), tools, left_out)


async def each_tool(client: Client) -> AsyncGenerator[Tool, None]:
    """Yield the server's tools, page by page. Raises RuntimeError when the pages never end."""
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            yield tool
        cursor = page.next_cursor
        if cursor is None:
            return
    raise RuntimeError(f"its list of tools does not end after {MAX_PAGES} pages")


def manifest_digest(tool: Tool) -> str:
    """Return the hex SHA-256 over the canonical JSON of what the server says of a tool and people and models read."""
    hints = tool.annotations
    description = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": None if hints is None else hints.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    return framed_sha256(json.dumps(description, sort_keys=True, separators=(",", ":")))
