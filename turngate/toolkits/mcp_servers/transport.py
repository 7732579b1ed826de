"""How a client's messages reach a server and come back, over the pipes of its process and over HTTP.

In both, each request gets an answer that the SDK can read: the server's own as far as that is possible, or an error at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TextIO

import anyio
import httpx2
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp.types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from turngate.mcp_traffic import CLIPPED, Pieces, TooLarge, id_in, lines, messages_in, written
from turngate.toolkits.confinement.sandbox import Command

log = logging.getLogger("turngate.mcp")

OnOddTool = Callable[[str, str], None]
"""Called with name and reason of each tool that is left out of a list."""
UNREADABLE: Final = "the answer can't be read"
MAX_TOOLS: Final = 2_000
"""In one answer. Each is checked twice, and named where it is odd."""
END_SECONDS: Final = 2.0
"""How long a server may take to end by itself, and again once it was asked to."""
PIPE_BYTES: Final = 65_536
LARGE_BYTES: Final = 1_000_000
"""What is as large as this is read in a thread."""
MAX_UNASKED: Final = 100_000_000
"""Bytes between two answers. Each message counts as at least ``LEAST_BYTES``: small ones cost time, too."""
LEAST_BYTES: Final = 1_000
_NO_NUMBER: Final = re.compile(rb"NaN|Infinity|[eE]\+?\d{3}")
"""In JSON that Python may read as a number that is not finite."""


@dataclass
class Answers:
    """What a server says to the requests of one client.

    Attributes:
        on_odd_tool: see ``OnOddTool``.
        sole: there is one request only (in an exchange over HTTP), so that each answer is its answer.
        waiting: the requests that have no answer: id, as text → the request.
    unasked: how much the server wrote that answers nothing, since it last answered.
    """

    on_odd_tool: OnOddTool
    sole: bool = False
    waiting: dict[str, JSONRPCRequest] = field(default_factory=dict)
    unasked: int = 0

    @property
    def are_too_many(self) -> bool:
        """Whether the server writes so much that answers nothing that it isn't read any more."""
        return self.unasked > MAX_UNASKED

    def note(self, message: JSONRPCMessage) -> None:
        """Note what the client sends: a request that waits, or that one waits no longer."""
        if isinstance(message, JSONRPCRequest):
            self.waiting[str(message.id)] = message
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self.waiting.pop(str((message.params or {}).get("requestId")), None)

    async def read(self, data: bytes | TooLarge) -> list[JSONRPCMessage]:
        """Return the messages in what the server wrote. An answer that can't be read is an error of its request."""
        waited, messages = len(self.waiting), list[JSONRPCMessage]()
        if isinstance(data, TooLarge):
            messages += self._clipped(data)
        elif data.strip():
            messages += await self._readable(data)
        if len(self.waiting) < waited:
            self.unasked = 0
        else:
            self.unasked += max(LEAST_BYTES, data.size if isinstance(data, TooLarge) else len(data))
            await asyncio.sleep(0)  # many small ones must not hold the loop, either
            if self.are_too_many:
                log.warning("an MCP server sent too much that answers nothing, and isn't read any more")
        return messages

    async def _readable(self, data: bytes) -> list[JSONRPCMessage]:
        readable, others = _parsed(data) if len(data) < LARGE_BYTES else await asyncio.to_thread(_parsed, data)
        messages = [self._settled(message) for message in readable]
        for each in others:
            if (lost := self._lost(each)) is not None:
                messages.append(lost)
            else:
                log.warning("an MCP server sent what is no message: %r", data[:200])
        return messages

    def unanswered(self) -> Iterator[JSONRPCError]:
        """Yield an error for each request that has no answer when there can be none any more."""
        while self.waiting:
            yield _error(self.waiting.popitem()[1], UNREADABLE)

    def _request(self, message_id: int | str | None) -> JSONRPCRequest | None:
        """Return the request that an answer with this id is for: one without an id, for the only one that waits."""
        if self.waiting and (self.sole or (message_id is None and len(self.waiting) == 1)):
            return self.waiting.popitem()[1]
        return self.waiting.pop(str(message_id), None)

    def _settled(self, message: JSONRPCMessage) -> JSONRPCMessage:
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return message
        request = self._request(message.id)
        if request is not None:
            message.id = request.id
        if isinstance(message, JSONRPCResponse):
            if request is not None and request.method == "tools/list":
                message.result["tools"] = self._usable(message.result.get("tools"))
            if isinstance(meta := message.result.get("_meta"), dict):
                meta.pop(CLIPPED, None)  # ours to say
        return message

    def _lost(self, raw: Any) -> JSONRPCError | None:
        """Return an error for the request that this would have answered; None: it answers none."""
        if isinstance(raw, dict):
            has_key = str(id_in(raw)) in self.waiting
            is_answer = "result" in raw or "error" in raw or ("method" not in raw and has_key)
        else:
            is_answer = isinstance(raw, str) and raw.lstrip().startswith("{")
        request = self._request(id_in(raw)) if is_answer else None
        return None if request is None else _error(request, UNREADABLE)

    def _clipped(self, data: TooLarge) -> Iterator[JSONRPCMessage]:
        """Yield what is known of a message that is too large: above all, that a call has run."""
        outline = data.outline()
        message_id, method = id_in(outline), outline.get("method")
        if isinstance(method, str) and "result" not in outline and "error" not in outline:
            if message_id is not None:  # the SDK answers that it lacks its parameters
                yield JSONRPCRequest(jsonrpc="2.0", id=message_id, method=method)
            return
        request = self._request(message_id)
        is_result = message_id is not None or (self.sole and "result" in outline)
        if request is None:
            log.warning("an MCP server sent %s: %r", data.words, data.head[:200])
        elif request.method == "tools/call" and is_result and "error" not in outline:
            yield JSONRPCResponse(jsonrpc="2.0", id=request.id, result=_beginning(data, outline.get("result")))
        else:
            yield _error(request, f"the answer has {data.words}", outline.get("error"))

    def _usable(self, listed: Any) -> list[Any]:
        """Return the listed tools without those that the SDK would refuse the whole list for."""
        usable: dict[str, Any] = {}
        tools = listed if isinstance(listed, list) else []
        if len(tools) > MAX_TOOLS:
            self.on_odd_tool(f"number {MAX_TOOLS + 1} and those after it", f"one list has at most {MAX_TOOLS:,} tools")
        for number, tool in enumerate(tools[:MAX_TOOLS], 1):
            name = tool.get("name") if isinstance(tool, dict) else None
            repaired = _repaired(tool)
            if repaired is None:
                self.on_odd_tool(name if isinstance(name, str) else f"number {number}", "its description can't be read")
            elif name in usable:
                self.on_odd_tool(str(name), "it is listed twice; the first counts")
            else:
                usable[str(name)] = repaired
        return list(usable.values())


def _parsed(data: bytes) -> tuple[list[JSONRPCMessage], list[Any]]:
    """Return what :func:`messages_in` does, with texts in place of results' numbers that aren't finite."""
    readable, others = messages_in(data)
    if _NO_NUMBER.search(data):  # once for all, however many there are
        for message in readable:
            if isinstance(message, JSONRPCResponse):
                message.result = json.loads(json.dumps(message.result), parse_constant=str)
    return readable, others


def _beginning(data: TooLarge, outline: object) -> dict[str, Any]:
    """Return what is known of a call's result, of which the answer's two ends show an ``outline``."""
    text = (
        f"The call ran. Its answer has {data.words}: it is clipped here. "
        f"SHA-256 of the whole: {data.digest}. It begins:\n{data.head.decode(errors='replace')}"
    )
    return {
        "content": [{"type": "text", "text": text}],
        "isError": isinstance(outline, dict) and outline.get("isError") is True,
        "_meta": {CLIPPED: {"bytes": data.size, "sha256": data.digest}},
    }


def _error(request: JSONRPCRequest, words: str, from_server: object = None) -> JSONRPCError:
    """Return an error for a request, with the code of the server's own."""
    code = from_server.get("code") if isinstance(from_server, dict) else None
    known = code if isinstance(code, int) and not isinstance(code, bool) else PARSE_ERROR
    return JSONRPCError(jsonrpc="2.0", id=request.id, error=ErrorData(code=known, message=words))


def _repaired(tool: Any) -> Any:
    """Return a listed tool as the SDK takes it, unchanged where that is possible; None: it can't be read."""
    if not isinstance(tool, dict) or not isinstance(tool.get("inputSchema"), dict):
        return None
    schema = {"type": "object", **tool["inputSchema"]}
    without_nulls = {name: value for name, value in schema.items() if value is not None}
    for each in (tool, {**tool, "inputSchema": schema}, {**tool, "inputSchema": without_nulls}):
        try:
            validate_server_result("tools/list", LATEST_HANDSHAKE_VERSION, {"tools": [each]})
        except (ValidationError, ValueError, RecursionError):
            continue
        return each
    return None


class _Exits(SubprocessStreamProtocol):
    """The pipes of a process, and when it ends: ``Process.wait`` waits for every holder of the pipes, too."""

    def __init__(self) -> None:
        super().__init__(limit=PIPE_BYTES, loop=asyncio.get_running_loop())
        self._exited = asyncio.Event()

    def process_exited(self) -> None:
        """Note the end."""
        super().process_exited()
        self._exited.set()

    async def within(self, seconds: float) -> bool:
        """Return whether the process ends within so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), seconds)
        return self._exited.is_set()


@asynccontextmanager
async def process_streams(command: Command, stderr: TextIO, on_odd_tool: OnOddTool) -> AsyncIterator[TransportStreams]:
    """Start a server and yield the streams of its messages. On leaving, the server ends, with all that it started.

    Raises OSError: it can't be started.
    """
    transport, exits = await asyncio.get_running_loop().subprocess_exec(
        _Exits,
        *command.argv,
        env=command.environment,
        cwd=command.directory,
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    process = Process(transport, exits, asyncio.get_running_loop())
    assert process.stdin is not None  # noqa: S101 - asked for above
    assert process.stdout is not None  # noqa: S101 - the same
    stdin, stdout, answers = process.stdin, process.stdout, Answers(on_odd_tool)
    from_server, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, to_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await stdout.read(PIPE_BYTES):
            yield piece

    async def read() -> None:
        async with from_server:
            async for line in lines(pieces()):
                for message in await answers.read(line):
                    # The server's output is read even if no one wants it any more: else the server waits.
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await from_server.send(SessionMessage(message))
                if answers.are_too_many:  # as if it had ended
                    return

    async def write() -> None:
        async with to_server:
            async for item in to_server:
                answers.note(item.message)
                try:
                    stdin.write(written(item.message) + b"\n")
                    await stdin.drain()
                except OSError:  # the server reads no more, and may not answer what it has read
                    from_server.close()
                    return

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(write)
            try:
                yield received, sent
            finally:
                received.close()
                stdin.close()
                with anyio.CancelScope(shield=True):
                    await _end(process.pid, exits)
                tasks.cancel_scope.cancel()
    finally:
        transport.close()


async def _end(group: int, exits: _Exits) -> None:
    """Wait for the end of a server whose stdin is closed; kill what doesn't end by itself."""
    if await exits.within(END_SECONDS):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        await exits.within(END_SECONDS)


async def bound_response(response: httpx2.Response, on_odd_tool: OnOddTool) -> None:
    """Have a response read within bounds, and its answer as one that the SDK can read: a hook of an HTTP client."""
    response.headers.pop("content-encoding", None)  # we ask for none, and what it expands to has no bound
    answers = Answers(on_odd_tool, sole=True)
    for message in messages_in(response.request.content)[0]:
        answers.note(message)
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _Events(response.stream, answers)
    else:
        response.stream = _Body(response.stream, answers, is_error=response.is_error)


@dataclass
class _Body(httpx2.AsyncByteStream):
    """The body of a response that is no stream: one message."""

    inner: Any
    answers: Answers
    is_error: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = Pieces()
        async for piece in self.inner:
            pieces.add(piece)
        whole = pieces.whole()
        if self.is_error or not self.answers.waiting:  # the SDK reads it with the status, if at all
            yield b"" if isinstance(whole, TooLarge) else whole
            return
        messages = [each for each in await self.answers.read(whole) if isinstance(each, JSONRPCResponse | JSONRPCError)]
        for answer in messages[:1] or self.answers.unanswered():
            yield written(answer)

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass
class _Events(httpx2.AsyncByteStream):
    """The body of a response that is a stream of events, a message each (WHATWG HTML, "Server-sent events")."""

    inner: Any
    answers: Answers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        event = Pieces()
        async for line in lines(_with_line_feeds(self.inner)):
            if isinstance(line, TooLarge):
                if line.head.startswith(_DATA):
                    yield await self._event(replace(line, head=line.head.removeprefix(_DATA)))
            elif line.startswith(_DATA):
                event.add(line.removeprefix(_DATA) + b"\n")
            elif line:  # its kind, its id, or a comment
                yield line + b"\n"
            else:
                yield await self._event(event.whole())
                event = Pieces()
            if self.answers.are_too_many:
                return
        yield await self._event(event.whole())

    async def _event(self, data: bytes | TooLarge) -> bytes:
        messages = await self.answers.read(data)
        return b"".join(_DATA + written(message) + b"\n\n" for message in messages) or b"\n"

    async def aclose(self) -> None:
        await self.inner.aclose()


_DATA: Final = b"data:"


async def _with_line_feeds(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces with LF in place of each CR and CRLF."""
    after_cr = False
    async for piece in pieces:
        rest = piece[1:] if after_cr and piece.startswith(b"\n") else piece
        after_cr = piece.endswith(b"\r") if piece else after_cr
        yield rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
