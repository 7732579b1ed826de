"""MCP messages as they come, from servers and from clients: read in linear time and bounded memory, whatever is wrong with them.

The SDK's own readers join a message in quadratic time, keep it whatever its size, and drop what they can't read; who waits for
it waits to the end of its time. Needs the extra ``mcp``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    JSONRPCMessage,
    JSONRPCNotification,
    RequestParamsMeta,
)
from mcp_types import jsonrpc_message_adapter
from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from turngate.domain.text.json_text import without_half_pairs

KEY: Final = "turngate/idempotency-key"
"""In a call's ``_meta``: the same on every attempt of one call, for a server that wants to know a repeat."""
CLIPPED: Final = "turngate/clipped"
"""In a result's ``_meta``: the server's answer was too large. It has the answer's ``bytes`` and ``sha256``."""
ANSWER: Final[TypeAdapter[CallToolResult | InputRequiredResult]] = TypeAdapter(CallToolResult | InputRequiredResult)
"""Of a call. We don't use the SDK's own method: it drops a result that doesn't fit the tool's schema, though the call has run."""
ANSWER_LOST: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, INTERNAL_ERROR, INVALID_REQUEST})
"""Errors that the SDK also makes up itself, for an answer that never came or that it cannot read (of an HTTP server: any
5xx, a 202, a page in place of JSON). With these the call may have happened."""
MAX_MESSAGE: Final = 16_000_000
"""Bytes of one message. Of a larger one only the two ends are kept."""
MAX_CONTAINERS: Final = 1_000_000
"""Lists and objects in one message, as its brackets count; reading as many takes about a second."""
HEAD_BYTES: Final = 20_000
TAIL_BYTES: Final = 1_000
MAX_BATCH: Final = 100
"""Messages in one list."""
MAX_DIGITS: Final = 4_000
"""Of a number, as Python reads it; a longer one is read as a text."""

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_ID: Final = r'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,255}")'
_FIRST_ID: Final = re.compile(rf'\s*\{{\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?{_ID}')
_LAST_ID: Final = re.compile(rf'[{{,]\s*{_ID}\s*(?:,\s*"jsonrpc"\s*:\s*"2.0"\s*)?\}}\s*\Z')
_LAST_IS_ERROR: Final = re.compile(r'[{,]\s*"isError"\s*:\s*true\s*\}[^{}\[\]]*\}\s*\Z')


@dataclass(frozen=True)
class TooLarge:
    """A message of more than ``MAX_MESSAGE`` bytes or ``MAX_CONTAINERS`` lists and objects.

    ``head``, ``tail``: its two ends; ``size``: of the whole, in bytes; ``digest``: the whole's hex SHA-256.
    In a stream of events, the whole is the line with the message.
    """

    head: bytes
    tail: bytes
    size: int
    digest: str

    @property
    def words(self) -> str:
        """Its size, and the bound."""
        bound = f"{MAX_MESSAGE / 1e6:g} MB" if self.size > MAX_MESSAGE else f"{MAX_CONTAINERS:,} lists and objects"
        return f"{self.size / 1e6:,.1f} MB, over the bound of {bound} for one message"

    def outline(self) -> dict[str, Any]:
        """Return the members that the two ends show, those of a result too."""
        outline: dict[str, Any] = {}
        with suppress(ValueError):  # no JSON, or nested too deep
            text = _SURROGATE.sub(r"\\ufffd", self.head.decode(errors="replace"))
            message = from_json(text, allow_partial=True)
            outline |= message if isinstance(message, dict) else {}
        end = self.tail.decode(errors="replace")
        if last_id := _LAST_ID.search(end):
            outline["id"] = json.loads(last_id[1])
        if isinstance(outline.get("result"), dict) and _LAST_IS_ERROR.search(end):
            outline["result"]["isError"] = True
        return outline


@dataclass
class Pieces:
    """One message as it comes, piece by piece."""

    _buffer: bytearray = field(default_factory=bytearray)
    _size: int = 0
    _sha256: Any = None

    def add(self, piece: bytes) -> None:
        """Take the next piece. The time for all of them grows with the size of the message only."""
        self._size += len(piece)
        self._buffer += piece
        if self._size <= MAX_MESSAGE:
            return
        if self._sha256 is None:
            self._sha256 = hashlib.sha256(self._buffer)
        else:
            self._sha256.update(piece)
        del self._buffer[HEAD_BYTES:-TAIL_BYTES]

    def whole(self) -> bytes | TooLarge:
        """Return the message."""
        if self._sha256 is None and self._buffer.count(b"{") + self._buffer.count(b"[") <= MAX_CONTAINERS:
            return bytes(self._buffer)
        digest = (self._sha256 or hashlib.sha256(self._buffer)).hexdigest()
        return TooLarge(bytes(self._buffer[:HEAD_BYTES]), bytes(self._buffer[-TAIL_BYTES:]), self._size, digest)


async def lines(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes | TooLarge]:
    """Yield the lines, without their ends, of what comes piece by piece."""
    line = Pieces()
    async for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for end in ended:
            line.add(end)
            yield line.whole()
            line = Pieces()
        line.add(rest)
    yield line.whole()


def value_of(text: str) -> Any:
    """Return the value of a JSON text; a lone surrogate is U+FFFD, a number of too many digits a text.

    Raises ValueError, RecursionError: no JSON, or nested too deep.
    """
    value = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else digits)
    if text.isascii() and "\\u" not in text:
        return value
    return json.loads(without_half_pairs(json.dumps(value, ensure_ascii=False)))


def messages_in(data: bytes) -> tuple[list[JSONRPCMessage], list[Any]]:
    """Return the messages that can be read, and what can't: values, or text that is no JSON.

    A list is a batch, as older protocols had it. For the SDK, a request with an odd id is a notification, which no one answers.
    """
    with suppress(ValidationError):
        as_it_is = jsonrpc_message_adapter.validate_json(data, by_name=False)
        if not isinstance(as_it_is, JSONRPCNotification) or as_it_is.method.startswith("notifications/"):
            return [as_it_is], []
    text = data.decode(errors="replace")
    try:
        raw = value_of(text)
    except (ValueError, RecursionError):
        return [], [text]
    readable: list[JSONRPCMessage] = []
    others: list[Any] = []
    for each in raw if isinstance(raw, list) and 0 < len(raw) <= MAX_BATCH else [raw]:
        message = _message_of(each)
        if message is None:
            others.append(each)
        else:
            readable.append(message)
    return readable, others


def _message_of(raw: Any) -> JSONRPCMessage | None:
    if not isinstance(raw, dict):
        return None
    repaired = {**raw, "jsonrpc": "2.0"}
    if (message_id := id_in(raw)) is not None:
        repaired["id"] = message_id
    try:
        message = jsonrpc_message_adapter.validate_python(repaired, by_name=False)
        written(message)
    except (ValueError, RecursionError):  # not of this shape, or nested too deep
        return None
    return None if isinstance(message, JSONRPCNotification) and "id" in raw else message


def id_in(raw: Any) -> int | str | None:
    """Return the id in a message that can't be read, or None."""
    message_id = raw.get("id") if isinstance(raw, dict) else None
    if isinstance(raw, str) and (first_id := _FIRST_ID.match(raw)):
        message_id = json.loads(first_id[1])
    if isinstance(message_id, float) and message_id.is_integer():
        message_id = int(message_id)
    return message_id if isinstance(message_id, int | str) and not isinstance(message_id, bool) else None


def written(message: JSONRPCMessage) -> bytes:
    """Return a message as it is sent, without the end of a line. A number that is not finite stays one: it is refused later."""
    return to_json(message.model_dump(by_alias=True, exclude_unset=True), inf_nan_mode="constants")


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
