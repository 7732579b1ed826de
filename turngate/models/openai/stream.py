"""Server-sent chunks of a chat completion, read into one complete answer while their deltas are told.

Owns the end of a stream: what counts as whole, and what an error in its middle is. Joining pieces is
:mod:`turngate.models.openai.merge`'s. The form is that of
https://platform.openai.com/docs/api-reference/chat-streaming; comments that keep the connection alive, any line ending
and characters cut in two are ``httpx-sse``'s business.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any, Final

import httpx
from httpx_sse import EventSource
from pydantic import JsonValue, ValidationError

from turngate.domain.conversation.deltas import Delta
from turngate.domain.errors import ModelError
from turngate.models.openai.merge import Pieces, paired
from turngate.models.openai.response import Completion
from turngate.models.port import OnDelta

DONE: Final = "[DONE]"
ERROR_EVENT: Final = "error"
MAX_SHOWN_CHARS: Final = 200


class StreamedCompletion:
    """One answer as it comes. Feed it with :meth:`take`; :meth:`whole` is what the server would have sent at once."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._pieces = Pieces()
        self._parts: dict[str, int] = {}
        self._halves: dict[str, str] = {}
        self._of_choice: dict[str, JsonValue] = {}
        self._began = False
        self._error: JsonValue = None
        self._usage: JsonValue = None
        self._done = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more of this answer is to be read."""
        return self._done or bool(self._error)

    def take(self, event: str, data: str) -> None:
        """Take one server-sent event. Raises ModelError (``bad_response``, retryable) for one that is no chunk."""
        if data.strip() == DONE:
            self._done = True
            return
        chunk = _parsed(data)
        # Some servers name the event instead of wrapping the error.
        if error := chunk.get("error") or (chunk if event == ERROR_EVENT else None):
            self._error = error
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return
        for choice in choices:
            # Only the first is read of an answer that came whole, too.
            if isinstance(choice, dict) and choice.get("index") in (None, 0):
                self._take_choice(choice)

    def whole(self) -> Completion:
        """Return the complete answer, an error within it included.

        Raises:
            ModelError: ``bad_response``, retryable: the stream ended before the answer did.
        """
        if not self._error and not self._done and not self._of_choice.keys() & {"finish_reason", "error"}:
            said = "broke off before its end" if self._began else "ended before it began"
            raise _bad_response(f"the provider's stream {said}")
        choices = [{**self._of_choice, "message": self._pieces.message()}] if self._began else []
        try:
            return Completion.model_validate({"choices": choices, "usage": self._usage, "error": self._error})
        except ValidationError:
            raise _bad_response("the provider's stream does not add up to a chat completion") from None

    def _take_choice(self, choice: dict[str, JsonValue]) -> None:
        self._began = True
        for key in ("finish_reason", "native_finish_reason", "error"):
            if choice.get(key):
                self._of_choice[key] = choice[key]
        for kind, place, text, name in self._pieces.add(choice.get("delta", choice.get("message"))):
            part = self._parts.setdefault(place, len(self._parts))
            shown = paired(self._halves.pop(place, "") + text)
            if shown and "\ud800" <= shown[-1] <= "\udbff":  # half a character: it is shown with its other half
                shown, self._halves[place] = shown[:-1], shown[-1]
            if shown or name:
                self._on_delta(Delta(kind=kind, part=part, text=shown, tool_name=name))


async def read_stream(response: httpx.Response, on_delta: OnDelta, *, silence: float) -> Completion:
    """Read an answer of type ``text/event-stream`` to its end.

    ``silence``: seconds to wait for the next chunk. What only keeps the connection alive breaks no silence.

    Raises:
        ModelError: ``bad_response``, retryable: it broke off, or holds something else than chunks.
        TimeoutError: nothing came for too long.
        httpx.TransportError: the connection broke.
    """
    answer = StreamedCompletion(on_delta)
    # Always UTF-8 (https://html.spec.whatwg.org/multipage/server-sent-events.html), whatever the header says.
    response.encoding = "utf-8"
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(silence) as patience, aclosing(EventSource(response).aiter_sse()) as events:
        async for sent in events:
            if not sent.data:
                continue
            answer.take(sent.event, sent.data)
            if answer.is_over:
                break
            patience.reschedule(loop.time() + silence)
    return answer.whole()


def _parsed(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise _bad_response(f"the provider's stream holds no chunk of a chat completion: {data[:MAX_SHOWN_CHARS]}")
    return chunk


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON, though Python reads it")


def _bad_response(what: str) -> ModelError:
    return ModelError(what, error_class="bad_response", retryable=True)
