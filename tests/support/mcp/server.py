"""A small real MCP server, for cases that the published servers cannot produce.

``python server.py DIR [--old] [--port N]``. What it does leaves marks in DIR: a line in ``calls`` for each
call it gets, ``started`` and ``cancelled`` for the slow one. Files that a test puts there change it: ``changed`` (another
description of ``note``), ``gone`` (no ``note`` any more). ``--old``: only the protocol with the handshake. Without a port
it speaks stdio.
"""

from __future__ import annotations

import argparse
import glob
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from mcp import MCPError, types
from mcp.server import Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server

OBJECT: dict[str, Any] = {"type": "object"}
PIXEL = "iVBORw0KGgo="
PAGE = 4


class ServerUnderTest:
    def __init__(self, marks: Path, *, old: bool) -> None:
        self.marks = marks
        self.old = old

    def tools(self) -> list[types.Tool]:
        described = "Keep a note, differently." if (self.marks / "changed").exists() else "Keep a note."
        text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        sum_of = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
        named = [
            types.Tool(name="note", description=described, input_schema=text),
            types.Tool(name="slow", description="Take\x1b[2J for\u202e ever." + "x" * 9000, input_schema=OBJECT),
            types.Tool(name="fail", input_schema=OBJECT, title="Fail"),
            types.Tool(name="refuse", input_schema=OBJECT),
            types.Tool(name="pictures", input_schema=OBJECT),
            types.Tool(name="long", input_schema=OBJECT),
            types.Tool(name="die", input_schema=OBJECT),
            types.Tool(name="ask_back", input_schema=OBJECT),
            types.Tool(name="environment", input_schema=OBJECT),
            types.Tool(name="complain", input_schema=OBJECT),
            types.Tool(name="wrong", input_schema=OBJECT, output_schema=sum_of),
            types.Tool(name="wipe", input_schema=OBJECT, annotations=types.ToolAnnotations(destructive_hint=True)),
            types.Tool(
                name="browse.the web",
                input_schema=OBJECT,
                annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=True),
            ),
            types.Tool(name="9" * 80, input_schema=OBJECT),
        ]
        return named[1:] if (self.marks / "gone").exists() else named

    async def list_tools(self, ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        begin = int(params.cursor) if params is not None and params.cursor else 0
        tools = self.tools()
        end = begin + PAGE
        return types.ListToolsResult(tools=tools[begin:end], next_cursor=str(end) if end < len(tools) else None)

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        key = (ctx.meta or {}).get("turngate/idempotency-key")
        with (self.marks / "calls").open("a") as calls:
            calls.write(f"{params.name} {key}\n")
        if "traceparent" in (ctx.meta or {}):
            (self.marks / "traceparent").write_text(ctx.meta["traceparent"])
        match params.name:
            case "note":
                return text_result(f"noted {(params.arguments or {})['text']}")
            case "slow":
                return await self.slow(ctx)
            case "refuse":
                raise MCPError(code=types.INVALID_PARAMS, message="not like this")
            case "die":
                os._exit(3)
            case "ask_back":
                return await self.ask_back(ctx)
            case "environment":
                seen = look_around(**(params.arguments or {}))
                return types.CallToolResult(content=[], structured_content={"names": sorted(os.environ), "seen": seen})
            case other:
                return plain_answer(other)

    async def slow(self, ctx: Any) -> types.CallToolResult:
        await ctx.session.report_progress(1, 3, "one \x07of three")
        (self.marks / "started").touch()
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            (self.marks / "cancelled").touch()
            raise
        return text_result("slept")

    async def ask_back(self, ctx: Any) -> Any:
        form = types.ElicitRequestFormParams(message="Which?", requested_schema={"type": "object", "properties": {}})
        if not self.old:
            return types.InputRequiredResult(input_requests={"which": types.ElicitRequest(params=form)})
        try:
            await ctx.session.send_request(types.ElicitRequest(params=form), types.ElicitResult)
        except MCPError as declined:
            return text_result(f"asked, and got: {declined.message}")
        return text_result("was answered")


def look_around(directory: str = "/none", port: int = 0) -> str:
    """Return what can be read of other processes and of a directory, and ``reached`` if something answers at the port."""
    texts = []
    for pattern in (f"{directory}/**/*", "/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline"):
        for path in glob.glob(pattern, recursive=True):  # noqa: PTH207 - a pattern with a root
            with suppress(OSError, ValueError), open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
                texts.append(file.read(1 << 16).decode(errors="replace"))
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        texts.append("reached")
    return "\n".join(texts)


def plain_answer(name: str) -> types.CallToolResult:
    match name:
        case "fail":
            return types.CallToolResult(content=text_of("no paper\x1b[31m left"), is_error=True)
        case "pictures":
            return types.CallToolResult(content=pictures())
        case "long":
            return text_result("y" * 300_000)
        case "complain":
            print("the paper\x1b[2J is running out", file=sys.stderr, flush=True)
            return text_result("complained")
        case "wrong":
            return types.CallToolResult(content=[], structured_content={"sum": "many"})
        case _:
            return text_result(f"did {name[:10]}")


def text_of(text: str) -> list[Any]:
    return [types.TextContent(text=text)]


def text_result(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=text_of(text))


def pictures() -> list[Any]:
    letter = types.TextResourceContents(uri="file:///letter.txt", mime_type="text/plain", text="Dear all")
    blob = types.BlobResourceContents(uri="file:///b.bin", blob=PIXEL)
    return [
        *text_of("here"),
        types.ImageContent(data=PIXEL, mime_type="image/png"),
        types.AudioContent(data=PIXEL, mime_type="audio/wav"),
        types.EmbeddedResource(resource=letter),
        types.EmbeddedResource(resource=blob),
        types.ResourceLink(name="big", uri="file:///big.bin", size=5),
        *text_of("there"),
    ]


def only_old(app: Any) -> Any:
    """Answer requests of the newer protocol as a server that doesn't know it."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if (b"mcp-protocol-version", b"2026-07-28") in scope.get("headers", []):
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"what?"})
            return
        await app(scope, receive, send)

    return wrapped


def needs_token(app: Any) -> Any:
    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"authorization", b"Bearer sesame") not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"who?"})
            return
        await app(scope, receive, send)

    return wrapped


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("marks", type=Path)
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    under_test = ServerUnderTest(arguments.marks, old=arguments.old)
    server: Server[Any] = Server(
        "under-test", version="7.1", on_list_tools=under_test.list_tools, on_call_tool=under_test.call_tool
    )
    if arguments.port is not None:
        import uvicorn  # noqa: PLC0415 - slow to import, and stdio starts many times

        app = needs_token(server.streamable_http_app())
        config = uvicorn.Config(only_old(app) if arguments.old else app, port=arguments.port, log_level="warning")
        await uvicorn.Server(config).serve()
        return
    async with stdio_server() as (read, write):
        if arguments.old:
            await serve_loop(server, read, write, lifespan_state={})
        else:
            await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
