"""How a streamed answer ended on the wire, which pydantic-ai does not say.

It takes a stream that gave no reason to stop for a whole answer, because some servers never give one, and it hides Groq's
error about a call that could not be read. So the lines of a stream are read here, too, on their way to the provider's client.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import JsonValue

DONE: Final = b"[DONE]"
MAX_LINE_BYTES: Final = 64 * 1024
"""Of a line; the rest of a longer one is not read. ``[DONE]`` and errors are short."""


@dataclass
class StreamEnd:
    """``is_done``: the stream has said that it is over. ``error``: the error that the provider sent in the stream, or None.

    ``texts``: the pieces of the answer's text before it ended.
    """

    is_done: bool = False
    error: JsonValue = None
    texts: list[str] = field(default_factory=list)

    def take(self, line: bytes) -> None:
        """Take one line of the stream."""
        name, _colon, value = line.partition(b":")
        if name != b"data":
            return
        if value.strip().startswith(DONE):
            self.is_done = True
        elif b'"error"' in value:
            chunk = _parsed(value)
            self.error = (chunk.get("error") if isinstance(chunk, dict) else None) or self.error


CURRENT: Final[ContextVar[StreamEnd | None]] = ContextVar("CURRENT", default=None)
"""Of the stream that the current task reads; None: it reads none."""


def watch_ends(client: object) -> None:
    """Have a provider's client report the end of each stream to ``CURRENT``.

    Only for clients of the family of OpenAI's, Groq's and Anthropic's. Where it has no effect, only a reason to stop counts as
    a stream's end.
    """
    hooks = getattr(getattr(client, "_client", None), "event_hooks", None)
    if isinstance(hooks, dict):
        hooks["response"].append(_watch)


async def _watch(response: Any) -> None:
    end = CURRENT.get()
    if end is not None:
        response.aiter_bytes = partial(_watched, response.aiter_bytes, end)


async def _watched(
    read: Callable[[int | None], AsyncGenerator[bytes]], end: StreamEnd, chunk_size: int | None = None
) -> AsyncGenerator[bytes]:
    begun = b""
    async with aclosing(read(chunk_size)) as chunks:
        async for chunk in chunks:
            *lines, begun = (begun + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                end.take(line)
            begun = begun[:MAX_LINE_BYTES]
            yield chunk
    end.take(begun)


def _parsed(value: bytes) -> JsonValue:
    try:
        parsed: JsonValue = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return parsed
