"""MCP messages that the SDK can't read, in both directions: read with what is wrong replaced, or answered as unreadable.

The SDK drops such a message, and who waits for it waits to the end of its time. Needs the extra ``mcp``.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, cast

import anyio
import httpx2
from mcp.client._transport import ReadStream, TransportStreams, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    InputRequiredResult,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestParamsMeta,
)
from mcp_types import jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from turngate.domain.text.json_text import without_half_pairs

log = logging.getLogger("turngate.mcp")

Item = SessionMessage | Exception
KEY: Final = "turngate/idempotency-key"
"""In a call's ``_meta``: the same on every attempt of one call, for a server that wants to know a repeat."""
ANSWER: Final[TypeAdapter[CallToolResult | InputRequiredResult]] = TypeAdapter(CallToolResult | InputRequiredResult)
"""Of a call. We don't use the SDK's own method: it drops a result that doesn't fit the tool's schema, though the call has run."""
ANSWER_LOST: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, INTERNAL_ERROR, INVALID_REQUEST})
"""Errors that the SDK also makes up itself, for an answer that never came or that it cannot read (of an HTTP server: any
5xx, a 202, a page in place of JSON). With these the call may have happened."""
MAX_DIGITS: Final = 4_000
"""Of a number, as Python reads it; a longer one is read as a text."""
_ID: Final = re.compile(r'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,255}")')
_ID_WITHIN: Final = 1_000
"""Characters in which the id of an answer is looked for that is no JSON."""
UNREADABLE: Final = "the answer can't be read"


def value_of(text: str) -> Any:
    """Return the value of a JSON text; a lone surrogate is U+FFFD, a number of too many digits a text.

    Raises ValueError, RecursionError: no JSON, or nested too deep.
    """
    value = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else digits)
    if text.isascii() and "\\u" not in text:
        return value
    return json.loads(without_half_pairs(json.dumps(value, ensure_ascii=False)))


def unread(error: Exception) -> Any:
    """Return what an error of the SDK's reader is about: text that is no JSON for it, or a value; None: it doesn't say."""
    if not isinstance(error, ValidationError):
        return None
    for each in error.errors(include_url=False, include_context=False):
        if each["type"] == "json_invalid" or isinstance(each["input"], list):
            return each["input"]
        if each["type"] == "missing" and isinstance(each["input"], dict):
            return each["input"]
    return None


def messages_in(raw: Any) -> tuple[list[SessionMessage], list[Any]]:
    """Return the messages that can be read after all, and what can't. A list is a batch, as older protocols had it."""
    if isinstance(raw, str):
        try:
            raw = value_of(raw)
        except (ValueError, RecursionError):
            return [], [raw]
    readable, others = [], []
    for each in raw if isinstance(raw, list) else [raw]:
        whole = {**each, "jsonrpc": "2.0"} if isinstance(each, dict) else each
        try:
            readable.append(SessionMessage(jsonrpc_message_adapter.validate_python(whole, by_name=False)))
        except ValidationError:
            others.append(each)
    return readable, others


def id_in(raw: Any) -> int | str | None:
    """Return the id in a message that can't be read, or None."""
    message_id = raw.get("id") if isinstance(raw, dict) else None
    if isinstance(raw, str) and (match := _ID.search(raw[:_ID_WITHIN])):
        message_id = json.loads(match[1])
    if isinstance(message_id, float) and message_id.is_integer():
        message_id = int(message_id)
    return message_id if isinstance(message_id, int | str) and not isinstance(message_id, bool) else None


class UnsendableError(Exception):
    """A message that can't be written as JSON: half a character, or nested too deep. Nothing was sent."""


def call_of(name: str, arguments: dict[str, JsonValue], key: str) -> CallToolRequest:
    """Return the request of a call. Raises UnsendableError: the SDK's writer would end with it, and the connection too."""
    meta = cast("RequestParamsMeta", {KEY: key})  # an open map, by the specification
    try:
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments, _meta=meta))
        to_json(request.model_dump(by_alias=True, mode="json", exclude_none=True))
    except (ValueError, RecursionError) as error:
        raise UnsendableError(str(error)[:200]) from error
    return request


class ReadableMessages:
    """A stream of messages in which ``read`` makes other items of each that the SDK could not read."""

    def __init__(self, inner: ReadStream[Item], read: Callable[[Item], Iterable[Item]]) -> None:
        self._inner = inner
        self._read = read
        self._ready: deque[Item] = deque()

    @property
    def last_context(self) -> Any:
        """The sender's context, where the transport passes one on."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Item:
        """Return the next item."""
        while not self._ready:
            self._ready.extend(self._read(await self._inner.receive()))
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


class _Requests:
    """A client's requests that have no answer yet: id → method."""

    def __init__(self, inner: WriteStream[SessionMessage], on_odd_tool: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._on_odd_tool = on_odd_tool
        self._waiting: dict[str, tuple[int | str, str]] = {}

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        if isinstance(item.message, JSONRPCRequest):
            self._waiting[str(item.message.id)] = (item.message.id, item.message.method)
        await self._inner.send(item)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def answers(self, item: Item) -> Iterable[Item]:
        """Return what a server's message says; an answer that can't be read is an error of its request."""
        if isinstance(item, SessionMessage):
            yield self._settled(item)
            return
        raw = unread(item)
        if raw is None:
            yield item
            return
        readable, others = messages_in(raw)
        for message in readable:
            yield self._settled(message)
        for each in others:
            if (lost := self._lost(each)) is not None:
                yield lost
            else:
                log.warning("an MCP server sent what is no message, %r", str(each)[:200])

    def _settled(self, item: SessionMessage) -> SessionMessage:
        message = item.message
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return item
        _id, method = self._waiting.pop(str(message.id), (None, ""))
        if method == "tools/list" and isinstance(message, JSONRPCResponse):
            message.result["tools"] = self._usable(message.result.get("tools"))
        return item

    def _lost(self, raw: Any) -> SessionMessage | None:
        """Return an error for the request that this would have answered; None: it answers none."""
        key = str(id_in(raw))
        if isinstance(raw, dict):
            is_answer = "result" in raw or "error" in raw or ("method" not in raw and key in self._waiting)
        else:
            is_answer = str(raw).lstrip().startswith("{")
        if not is_answer:
            return None
        if key not in self._waiting and len(self._waiting) == 1 and id_in(raw) is None:
            (key,) = self._waiting  # without an id it can only be the one that is waited for
        request_id, _method = self._waiting.pop(key, (None, ""))
        if request_id is None:
            return None
        error = ErrorData(code=PARSE_ERROR, message=UNREADABLE)
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

    def _usable(self, listed: Any) -> list[Any]:
        """Return the listed tools without those that the SDK would refuse the whole list for."""
        usable: list[Any] = []
        for number, tool in enumerate(listed if isinstance(listed, list) else [], 1):
            name = tool.get("name") if isinstance(tool, dict) else None
            repaired = _repaired(tool)
            if repaired is None:
                self._on_odd_tool(
                    name if isinstance(name, str) else f"number {number}", "its description can't be read"
                )
            elif any(each["name"] == name for each in usable):
                self._on_odd_tool(str(name), "it is listed twice; the first counts")
            else:
                usable.append(repaired)
        return usable


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


@asynccontextmanager
async def readable(
    transport: AbstractAsyncContextManager[TransportStreams], on_odd_tool: Callable[[str, str], None]
) -> AsyncIterator[TransportStreams]:
    """Yield a client's transport on which every request gets an answer that the server sent, readable or not.

    ``on_odd_tool``: called with name and reason of each listed tool that is left out of a list.
    """
    async with transport as (read, write):
        requests = _Requests(write, on_odd_tool)
        yield ReadableMessages(read, requests.answers), requests


async def read_leniently(response: httpx2.Response) -> None:
    """Make a response readable whose JSON has lone surrogates: a hook of an HTTP client."""
    if response.headers.get("content-encoding", "identity") == "identity":
        response.stream = _Lines(response.stream)


class _Lines(httpx2.AsyncByteStream):
    """A body line by line, each that is or has JSON (``data: {…}``) with lone surrogates as U+FFFD."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._inner:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield _line(line) + b"\n"
        if rest:
            yield _line(rest)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _line(line: bytes) -> bytes:
    if b"\\ud" not in line.lower():
        return line
    head, brace, body = line.partition(b"{")
    try:
        value = value_of((brace + body).decode(errors="replace"))
    except (ValueError, RecursionError):
        return line
    return head + json.dumps(value).encode()
