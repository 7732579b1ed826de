"""A small real MCP server whose list of tools grows while it runs: ``python growing_server.py DIR [--old]``.

It writes a line to ``calls`` in DIR for each call. ``--old``: only the protocol with the handshake.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.server import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

OBJECT: dict[str, Any] = {"type": "object"}
SUM: dict[str, Any] = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
PIXEL = "iVBORw0KGgo="
TOOLS = [
    types.Tool(
        name="grow", input_schema=OBJECT, annotations=types.ToolAnnotations(title="Grow", open_world_hint=False)
    ),
    types.Tool(name="nap", input_schema=OBJECT),
    types.Tool(name="add", input_schema=OBJECT, output_schema=SUM),
]


def main(marks: Path, *, old: bool) -> None:
    tools, bus = list(TOOLS), InMemorySubscriptionBus()

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        with (marks / "calls").open("a") as calls:
            calls.write(f"{params.name}\n")
        if params.name == "grow":
            tools.append(types.Tool(name=f"grown_{len(tools)}", input_schema=OBJECT))
            await bus.publish(ToolsListChanged())
            await ctx.session.send_tool_list_changed()
        elif params.name == "nap":
            await ctx.session.report_progress(1, 2, "half asleep")
            while not (marks / "awake").exists():  # noqa: ASYNC110 - another process cannot set our Event
                await anyio.sleep(0.01)
        elif params.name == "add":
            picture = types.ImageContent(data=PIXEL, mime_type="image/png")
            link = types.ResourceLink(name="sheet", uri="file:///sheet.csv")
            return types.CallToolResult(
                content=[picture, link], structured_content={"sum": 3}, _meta={"example.com/note": "n"}
            )
        return types.CallToolResult(content=[types.TextContent(text=f"did {params.name}")])

    server: Server[Any] = Server(
        "growing",
        version="1",
        instructions="Grow slowly.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(bus),
    )

    async def serve() -> None:
        async with stdio_server() as (read, write):
            options = server.create_initialization_options(NotificationOptions(tools_changed=True))
            if old:
                await serve_loop(server, read, write, lifespan_state={}, init_options=options)
            else:
                await server.run(read, write, options)

    anyio.run(serve)


if __name__ == "__main__":
    main(Path(sys.argv[1]), old="--old" in sys.argv)
