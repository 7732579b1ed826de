"""One connection to an MCP server: start or reach it, agree on a protocol version, and say in words what went wrong.

Must be entered and left by the same task: the SDK's task groups belong to the one that opened them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import httpx2
from mcp import Client, Implementation, MCPError
from mcp.client._transport import TransportStreams
from mcp.client.session import MessageHandlerFnT
from mcp.client.streamable_http import streamable_http_client

from turngate import __version__
from turngate.toolkits.confinement import machine
from turngate.toolkits.confinement.machine import UnconfinedError
from turngate.toolkits.confinement.sandbox import Sandbox
from turngate.toolkits.mcp_servers.plain_text import plain
from turngate.toolkits.mcp_servers.servers import HttpServer, Server, StdioServer
from turngate.toolkits.mcp_servers.transport import OnOddTool, bound_response, process_streams
from turngate.toolkits.shell import scrubbed_environment

# A server's stderr: into the log line by line, never the terminal, with the last lines kept to explain a failure.


log = logging.getLogger("turngate.mcp")

MAX_LINE = 1000
TAIL_LINES = 12
LAST_WORDS_SECONDS = 0.5
"""How long to read on after the server has ended. A grandchild that inherited the pipe may hold it open forever."""


class StderrLog(asyncio.Protocol):
    """The reading end of a server's stderr."""

    def __init__(self, server_name: str) -> None:
        self._name = server_name
        self._rest = b""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._ended = asyncio.Event()

    @property
    def tail(self) -> str:
        """The last lines, as one text."""
        return "\n".join(self._tail)

    @asynccontextmanager
    async def pipe(self) -> AsyncIterator[TextIO]:
        """Yield the file to start the server with; on leaving, read what it said last."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w", encoding="utf-8") as writer:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, reader)
            try:
                yield writer
            finally:
                writer.close()
                try:
                    async with asyncio.timeout(LAST_WORDS_SECONDS):
                        await self._ended.wait()
                except TimeoutError:
                    pass
                finally:
                    transport.close()

    def data_received(self, data: bytes) -> None:
        """Log each whole line; one without an end is cut."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._say(line)

    def connection_lost(self, exc: Exception | None) -> None:
        """Log what had no line end."""
        del exc
        self._say(self._rest)
        self._rest = b""
        self._ended.set()

    def _say(self, line: bytes) -> None:
        text = plain(line.decode("utf-8", errors="replace").strip(), MAX_LINE)
        if text:
            self._tail.append(text)
            log.info("[mcp server %s] %s", self._name, text)


HTTP_SECONDS = 30.0
"""For connecting and sending. Waiting for an answer is bounded by the call's own timeout."""
UNAUTHORIZED = (401, 403)
TAIL_CHARS = 2000


class ServerAwayError(Exception):
    """The server could not be started or reached, or did not answer. The text says what to do about it."""


@dataclass
class _Seen:
    """What is known when connecting fails. ``status``: of the last HTTP answer that was an error."""

    stderr: StderrLog
    status: int | None = None
    connected: bool = field(default=False)


@asynccontextmanager
async def connected(
    server: Server,
    *,
    name: str,
    seconds: float,
    answer_seconds: float,
    on_odd_tool: OnOddTool = lambda _name, _why: None,
    on_message: MessageHandlerFnT | None = None,
) -> AsyncIterator[Client]:
    """Yield a client that has agreed with the server on a version.

    The client offers no capability: what a server asks of it (a person's input, a model's answer, files) is refused.

    Args:
        server: where it is.
        name: what the builder calls it, for the log.
        seconds: for connecting and agreeing.
        answer_seconds: how long an HTTP answer may stay away.
        on_odd_tool: called with name and reason of each listed tool that can't be read, and is left out of the list.
        on_message: called with what the server sends unasked.

    Raises:
        ServerAwayError: it could not be reached; only before the client is yielded.
    """
    seen = _Seen(StderrLog(name))
    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(seconds):
                # No cache: a list is read to find out what the server says now.
                client = await stack.enter_async_context(
                    Client(
                        await _transport(server, stack, seen, answer_seconds, on_odd_tool),
                        client_info=Implementation(name="turngate", version=__version__),
                        cache=None,
                        message_handler=on_message,
                    )
                )
            seen.connected = True
            yield client
    except Exception as error:
        if seen.connected:
            raise
        raise ServerAwayError(_explained(_cause(error), server, seen, seconds)) from error


async def _transport(
    server: Server, stack: AsyncExitStack, seen: _Seen, answer_seconds: float, on_odd_tool: OnOddTool
) -> AbstractAsyncContextManager[TransportStreams]:
    if isinstance(server, HttpServer):
        http = await stack.enter_async_context(_http(server, seen, answer_seconds, on_odd_tool))
        return streamable_http_client(server.url, http_client=http, max_sse_event_size=None)  # bounded by our own hook
    environment = scrubbed_environment(os.environ) | dict(server.env)
    if shutil.which(server.command[0], path=environment.get("PATH")) is None:
        raise FileNotFoundError(server.command[0])
    stderr = await stack.enter_async_context(seen.stderr.pipe())
    temporary = await stack.enter_async_context(machine.temporary_directory())
    command = machine.current().command(server.command, _sandbox(server, temporary), environment)
    return process_streams(command, stderr, on_odd_tool)


def _sandbox(server: StdioServer, temporary: Path) -> Sandbox:
    return Sandbox(
        workspace=None if server.cwd is None else Path(server.cwd),
        temporary=temporary,
        readable=tuple(map(Path, server.readable)),
        writable=tuple(map(Path, server.writable)),
        network=server.network,
    )


def _http(server: HttpServer, seen: _Seen, answer_seconds: float, on_odd_tool: OnOddTool) -> httpx2.AsyncClient:
    async def note(response: httpx2.Response) -> None:
        if response.is_error:
            seen.status = response.status_code
        await bound_response(response, on_odd_tool)

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **server.headers},
        timeout=httpx2.Timeout(HTTP_SECONDS, read=answer_seconds),
        event_hooks={"response": [note]},
    )


def _cause(error: BaseException) -> BaseException:
    """Return the first single error within nested groups: the SDK's task groups wrap what happened."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _explained(error: BaseException, server: Server, seen: _Seen, seconds: float) -> str:
    text = plain(f"{type(error).__name__}: {error}", 500)
    if isinstance(server, HttpServer):
        if seen.status in UNAUTHORIZED:
            option = "HttpServer(headers={…}), or --bearer-variable of the gateway"
            return f"{server.label} answered {seen.status}: pass what it wants in its headers ({option})"
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            return f"{server.label} gave no answer within {seconds:g} s: is it an MCP endpoint (often …/mcp)?"
        if isinstance(error, httpx2.TransportError):
            return f"{server.label} cannot be reached ({text}): is it running, and is the address right?"
        answered = "" if seen.status is None else f" answered {seen.status} and"
        return f"{server.label}{answered} does not speak MCP as expected ({text}): is the path right (often …/mcp)?"
    last_lines = f" Its stderr ends with:\n{seen.stderr.tail[-TAIL_CHARS:]}" if seen.stderr.tail else ""
    if isinstance(error, FileNotFoundError):
        return f"there is no program {server.label!r}: install it, or give its full path"
    if isinstance(error, UnconfinedError):
        return f"{server.label!r} was not started: {error.message}"
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return f"{server.label!r} cannot be started: {text}.{last_lines}"
    if isinstance(error, TimeoutError):
        return f"{server.label!r} was started and gave no answer within {seconds:g} s.{last_lines}"
    if isinstance(error, MCPError):
        return (
            f"{server.label!r} was started and ended or failed before it answered ({text}): run the command by hand to "
            "see why; it may need arguments, or more variables, files or network than it was given "
            f"(StdioServer(env={{…}}, readable=[…]), or the gateway's --env and --readable).{last_lines}"
        )
    return f"{server.label!r} does not speak MCP as expected ({text}).{last_lines}"
