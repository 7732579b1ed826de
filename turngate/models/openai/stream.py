"""Read the server-sent chunks of a chat completion into one complete answer, and report their deltas on the way.

Owns how pieces are joined, when a stream is complete, and what an error in its middle means. The form is that of
https://platform.openai.com/docs/api-reference/chat-streaming; ``httpx-sse`` handles comments that keep the connection alive,
any line ending, and characters cut in two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import httpx
from httpx_sse import EventSource
from pydantic import JsonValue, ValidationError

from turngate.domain.conversation.messages import Delta, DeltaKind
from turngate.domain.errors import ModelError
from turngate.models.openai.response import Completion, thinking_in, usage_of_groq
from turngate.models.patience import listening
from turngate.models.port import OnDelta

# The pieces of a streamed chat completion, joined to the message that the server would have sent whole. Pure.
#
# Which pieces belong together is decided here; :mod:`turngate.models.openai.response` reads the whole message, streamed or not.
#
# A call is identified by its ``index``, but not every server sends one, and some send the same for all: Gemini's and Ollama's
# compatible endpoints send every call with index 0. So another id, or another name after complete arguments, begins another
# call. Some repeat id and name in every piece, so a repeated name is not reported again.


SPOKEN: Final[dict[str, DeltaKind]] = {"reasoning_content": "reasoning", "reasoning": "reasoning", "refusal": "text"}
"""Keys of a message whose text comes in pieces, in addition to its content."""
TEXT_OF_DETAIL: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""Which text of an entry of ``reasoning_details`` comes in pieces. Encrypted ones come whole
(https://openrouter.ai/docs/use-cases/reasoning-tokens)."""
TEXT_OF_BLOCK: Final = {"text": "text", "thinking": "thinking"}
"""The same for blocks of content."""


class Piece(NamedTuple):
    """What is new to a watcher. ``place``: equal for the pieces of one part."""

    kind: DeltaKind
    place: str
    text: str
    tool_name: str = ""


class Pieces:
    """The pieces of one message so far."""

    def __init__(self) -> None:
        self._opaque: dict[str, JsonValue] = {}
        self._texts: dict[str, list[str]] = {}
        self._blocks: list[JsonValue] | None = None
        self._details: list[JsonValue] = []
        self._calls = _Calls()
        self._unreadable: JsonValue = None

    def add(self, delta: JsonValue) -> list[Piece]:
        """Take the next piece, and return what watchers see of it, in order."""
        if not isinstance(delta, dict):
            self._unreadable = delta if delta is not None else self._unreadable
            return []
        pieces: list[Piece] = []
        seen: set[DeltaKind] = set()
        for key, value in delta.items():
            match key:
                case "content":
                    pieces += self._content(value)
                case "tool_calls" if isinstance(value, list):
                    pieces += self._calls.add(value)
                case "reasoning_details" if isinstance(value, list):
                    _extend(self._details, value, TEXT_OF_DETAIL)
                case _ if key in SPOKEN and isinstance(value, str):
                    self._texts.setdefault(key, []).append(value)
                    # Some gateways send the same reasoning under both names.
                    if value and (SPOKEN[key] == "text" or "reasoning" not in seen):
                        pieces.append(Piece(SPOKEN[key], SPOKEN[key] if key != "refusal" else key, value))
                        seen.add(SPOKEN[key])
                case _:
                    self._opaque[key] = _later(self._opaque.get(key), value)
        return pieces

    def message(self) -> JsonValue:
        """Return the whole message."""
        if self._unreadable is not None:
            return self._unreadable
        whole: dict[str, JsonValue] = {**self._opaque}
        for key, texts in self._texts.items():
            if whole.get(key) is None:
                whole[key] = paired("".join(texts))
        if self._blocks is not None:
            whole["content"] = [_rejoined(block) for block in self._blocks]
        if self._details:
            whole["reasoning_details"] = [_rejoined(detail) for detail in self._details]
        if calls := self._calls.whole():
            whole["tool_calls"] = calls
        return whole

    def _content(self, value: JsonValue) -> Iterator[Piece]:
        if isinstance(value, str) and self._blocks is None:
            self._texts.setdefault("content", []).append(value)
            if value:
                yield Piece("text", "content", value)
        elif isinstance(value, str):  # Mistral's reasoning models think in blocks, then continue in plain text
            yield from self._content_blocks([{"type": "text", "text": value}] if value else [])
        elif isinstance(value, list):
            yield from self._content_blocks(value)
        elif value is not None:
            self._opaque["content"] = value

    def _content_blocks(self, value: list[JsonValue]) -> Iterator[Piece]:
        if self._blocks is None:
            before = "".join(self._texts.pop("content", []))
            self._blocks = [{"type": "text", "text": before}] if before else []
        _extend(self._blocks, value, TEXT_OF_BLOCK)
        for block in value:
            if thinking := thinking_in(block):
                yield Piece("reasoning", "reasoning", thinking)
            text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
            if isinstance(text, str) and text:
                yield Piece("text", "content", text)


class _Calls:
    """The calls of a message, in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[Any] = []  # a piece that is not an object is kept as it is
        self._at_index: dict[int, int] = {}

    def add(self, pieces: list[JsonValue]) -> Iterator[Piece]:
        for piece in pieces:
            if not isinstance(piece, dict):
                self._calls.append(piece)  # kept, so that the model learns about it
                continue
            place = self._place_of(piece)
            call = self._calls[place]
            named, more = self._take(call, piece)
            if named or more:
                yield Piece("tool-call", f"call {place}", more, named)

    def whole(self) -> list[JsonValue]:
        calls: list[JsonValue] = []
        for call in self._calls:
            if not isinstance(call, dict):
                calls.append(call)
                continue
            function = {"name": call["name"], "arguments": _arguments(call["arguments"]), **call["of_function"]}
            calls.append({**call["opaque"], "id": call["id"], "function": function})
        return calls

    def _place_of(self, piece: dict[str, JsonValue]) -> int:
        """Return which call a piece belongs to; if it begins a call, that call is added."""
        head = _CallHead.of(piece)
        place = self._continued_by(head)
        if place is None or head.is_another_than(self._calls[place]):
            self._calls.append({"id": None, "name": None, "arguments": [], "opaque": {}, "of_function": {}})
            place = len(self._calls) - 1
        if head.place is not None:
            self._at_index[head.place] = place
        return place

    def _continued_by(self, head: _CallHead) -> int | None:
        """Return the call that the piece names by index or id, or else the last one; None: it names no known call."""
        place = None if head.place is None else self._at_index.get(head.place)
        if place is not None:
            return place
        if head.call_id:
            place = next((at for at, each in enumerate(self._calls) if _id_of(each) == head.call_id), None)
            if head.name and head.place is not None and place in self._at_index.values():
                return None  # a call with its own index, for which the server repeated another call's id
            return place
        if head.place is None and not head.name and self._calls:
            return len(self._calls) - 1
        return None

    @staticmethod
    def _take(call: dict[str, Any], piece: dict[str, JsonValue]) -> tuple[str, str]:
        """Add a piece to its call. Returns the name if the piece is the first to have it, and what it adds to the arguments."""
        function = piece.get("function")
        if not isinstance(function, dict):  # without the object around them
            function = {key: piece[key] for key in ("name", "arguments") if key in piece}
            piece = {key: value for key, value in piece.items() if key not in function}
        for key, value in piece.items():
            if key == "id":
                call["id"] = call["id"] or value
            elif key not in {"function", "index"}:
                call["opaque"][key] = _later(call["opaque"].get(key), value)
        return _take_function(call, function)


class _CallHead(NamedTuple):
    """What a piece says about its call. ``place``: its index among the calls. ``arguments``: the piece's own."""

    place: int | None
    call_id: JsonValue
    name: JsonValue
    arguments: JsonValue

    @staticmethod
    def of(piece: dict[str, JsonValue]) -> _CallHead:
        index, function = piece.get("index"), piece.get("function")
        named = function if isinstance(function, dict) else {}
        return _CallHead(
            place=index if isinstance(index, int) else None,
            call_id=piece.get("id"),
            name=named.get("name"),
            arguments=named.get("arguments"),
        )

    def is_another_than(self, call: Any) -> bool:
        """Whether the piece begins another call than this one, although the server sent the same index for both."""
        if not isinstance(call, dict):
            return True
        if self.call_id and call["id"]:
            return bool(self.call_id != call["id"])
        if not self.name or not call["name"]:
            return False
        return bool(self.name != call["name"] or (self.arguments and _is_json(_arguments(call["arguments"]))))


def _take_function(call: dict[str, Any], function: dict[str, JsonValue]) -> tuple[str, str]:
    named, more = "", ""
    for key, value in function.items():
        match key:
            case "name":
                if not call["name"]:
                    call["name"] = value
                    named = value if isinstance(value, str) else ""
            case "arguments":
                more = value if isinstance(value, str) else ""
                if value is not None:
                    call["arguments"].append(value)
            case _:
                call["of_function"][key] = _later(call["of_function"].get(key), value)
    return named, more


def paired(text: str) -> str:
    """Return the text with the halves of surrogate pairs, which pieces may separate, joined again."""
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _id_of(call: Any) -> JsonValue:
    return call["id"] if isinstance(call, dict) else None


def _arguments(pieces: list[JsonValue]) -> JsonValue:
    """Return the arguments: texts joined; another value (Ollama sends an object) unchanged if it came alone."""
    if not pieces:
        return None
    if len(pieces) == 1 and not isinstance(pieces[0], str):
        return pieces[0]
    return paired("".join(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in pieces))


def _is_json(arguments: JsonValue) -> bool:
    if not isinstance(arguments, str):
        return arguments is not None
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True


def _later(before: JsonValue, more: JsonValue) -> JsonValue:
    """Return a value with a later piece of it: objects and lists grow, any other value is replaced unless by null."""
    if isinstance(before, dict) and isinstance(more, dict):
        return {**before, **{key: _later(before.get(key), value) for key, value in more.items()}}
    if isinstance(before, list) and isinstance(more, list):
        return [*before, *more]
    return before if more is None else more


def _extend(entries: list[JsonValue], more: list[JsonValue], text_key: dict[str, str]) -> None:
    """Add entries; one that continues the last one (same type, same index if there are any) is joined to it.

    A joined text is a list of its pieces until :func:`_rejoined`.
    """
    for entry in more:
        key = text_key.get(str(entry.get("type"))) if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or key is None or not isinstance(entry.get(key), str | list | None):
            entries.append(entry)
            continue
        last = entries[-1] if entries else None
        if isinstance(last, dict) and all(last.get(same) == entry.get(same) for same in ("type", "index")):
            _join(last, entry, key)
        else:
            entries.append({**entry, key: _begun(entry[key])} if key in entry else entry)


def _join(last: dict[str, Any], entry: dict[str, Any], key: str) -> None:
    """Join an entry to the last one, which it continues; ``key``: of their text."""
    before, more = last.get(key), entry.get(key)
    if before is None:
        last[key] = _begun(more)
    elif isinstance(more, list):
        _extend(before, more, TEXT_OF_BLOCK)
    elif more is not None:
        before.append(more)
    last.update({name: _later(last.get(name), value) for name, value in entry.items() if name != key})


def _begun(first: Any) -> Any:
    """Return the first piece of a text as one that more pieces can join; Mistral's thinking is a list of blocks again."""
    if not isinstance(first, list):
        return None if first is None else _Text([first])
    blocks: list[JsonValue] = []
    _extend(blocks, first, TEXT_OF_BLOCK)
    return blocks


class _Text(list[JsonValue]):
    """Pieces of one text."""


def _rejoined(entry: JsonValue) -> JsonValue:
    """Return an entry with its texts in one piece."""
    if isinstance(entry, _Text):
        return paired("".join(str(piece) for piece in entry))
    if isinstance(entry, dict):
        return {key: _rejoined(value) for key, value in entry.items()}
    return [_rejoined(each) for each in entry] if isinstance(entry, list) else entry


DONE: Final = "[DONE]"
ERROR_EVENT: Final = "error"
MAX_QUOTED_CHARS: Final = 200


READ_AS_PIECES: Final = frozenset({"role", "content", "tool_calls", *SPOKEN})
NO_WORDS: Final = frozenset({"type", "id", "index", "format", "role"})
"""Keys whose texts say nothing by themselves."""


def _has_words(value: JsonValue) -> bool:
    """Tell whether a value holds a text that isn't blank. Its depth is bounded by the JSON parser."""
    if isinstance(value, dict):
        return any(_has_words(each) for key, each in value.items() if key not in NO_WORDS)
    if isinstance(value, list):
        return any(map(_has_words, value))
    return isinstance(value, str) and bool(value.strip())


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
        self._own: dict[str, JsonValue] = {}

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete."""
        return self._done or bool(self._error)

    def take(self, event: str, data: str) -> bool:
        """Take one server-sent event; True: it says something. Raises ModelError (``bad_response``) for no chunk."""
        if data.strip() == DONE:
            self._done = True
            return True
        chunk = _parsed(data)
        # Some servers name the event instead of wrapping the error.
        if error := chunk.get("error") or (chunk if event == ERROR_EVENT else None):
            self._error = error
        self._usage = chunk.get("usage") or usage_of_groq(chunk.get("x_groq")) or self._usage
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return False
        # Of an answer that came whole, only the first choice is read, too.
        first = [each for each in choices if isinstance(each, dict) and each.get("index") in (None, 0)]
        have_words = [self._take_choice(choice) for choice in first]
        return any(have_words)

    def whole(self) -> Completion:
        """Return the complete answer, an error within it included.

        Raises:
            ModelError: ``bad_response``, retryable: the stream ended before the answer did.
        """
        if not self._error and not self._done and not self._of_choice.keys() & {"finish_reason", "error"}:
            problem = "broke off before its end" if self._began else "ended before it began"
            raise _bad_response(f"the provider's stream {problem}")
        choices = [{**self._of_choice, "message": self._pieces.message()}] if self._began else []
        try:
            return Completion.model_validate({"choices": choices, "usage": self._usage, "error": self._error})
        except ValidationError:
            raise _bad_response("the provider's stream does not add up to a chat completion") from None

    def _take_choice(self, choice: dict[str, JsonValue]) -> bool:
        """Take a choice; True: it says something."""
        self._began = True
        ends = not self._of_choice
        for key in ("finish_reason", "native_finish_reason", "error"):
            if choice.get(key):
                self._of_choice[key] = choice[key]
        delta = choice.get("delta", choice.get("message"))
        says = (ends and bool(self._of_choice)) or self._says_more(delta)
        for kind, place, text, name in self._pieces.add(delta):
            says = says or bool(name or text.strip())
            part = self._parts.setdefault(place, len(self._parts))
            complete = paired(self._halves.pop(place, "") + text)
            if complete and "\ud800" <= complete[-1] <= "\udbff":  # half a character waits for its other half
                complete, self._halves[place] = complete[:-1], complete[-1]
            if complete or name:
                self._on_delta(Delta(kind=kind, part=part, text=complete, tool_name=name))
        return says

    def _says_more(self, delta: JsonValue) -> bool:
        """Tell whether a delta says something in a place of the provider's own that is not just said again."""
        if not isinstance(delta, dict):
            return False
        own = {key: value for key, value in delta.items() if key not in READ_AS_PIECES}
        is_new = own != self._own
        self._own = own
        return is_new and _has_words(own)


async def read_stream(response: httpx.Response, on_delta: OnDelta, *, silence: float) -> Completion:
    """Read an answer of type ``text/event-stream`` to its end.

    ``silence``: seconds to wait for something that the model says. What only keeps the connection alive doesn't count: comments,
    chunks that say nothing, white space.

    Raises:
        ModelError: ``bad_response``, retryable: it broke off, or contains something else than chunks.
        TimeoutError: nothing came for too long.
        httpx.TransportError: the connection broke.
    """
    answer = StreamedCompletion(on_delta)
    # Always UTF-8 (https://html.spec.whatwg.org/multipage/server-sent-events.html), whatever the header says.
    response.encoding = "utf-8"
    async with listening(silence) as wait_on, aclosing(EventSource(response).aiter_sse()) as events:
        async for sent in events:
            if not sent.data:
                continue
            if answer.take(sent.event, sent.data):
                wait_on(1.0)
            if answer.is_over:
                break
    return answer.whole()


def _parsed(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise _bad_response(f"the provider's stream holds no chunk of a chat completion: {data[:MAX_QUOTED_CHARS]}")
    return chunk


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON, though Python reads it")


def _bad_response(what: str) -> ModelError:
    return ModelError(what, error_class="bad_response", retryable=True)
