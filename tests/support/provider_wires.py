"""What a model says, in the form in which each of three providers sends it, and what that provider is sent, read back.

The forms (order and kinds of events, names of fields, reasons to stop) are those of the recorded answers in
tests/unit/models/wire; here a test says what stands in them. The bytes go over a loopback server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from support.fake_provider import STREAM_END, FakeProvider, Received, chunk
from unit.models.wire.recordings import ANTHROPIC, GOOGLE

Ending = Literal["done", "length", "filtered"]
EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True)
class Made:
    """A call as the model makes it. ``raw``: its arguments' text. ``call_id`` None: the provider gives none."""

    name: str
    raw: str = "{}"
    call_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Said:
    """One answer. ``ending``: ``done`` is the provider's word for calls where there are calls."""

    text: str = ""
    calls: tuple[Made, ...] = ()
    ending: Ending = "done"
    tokens: tuple[int, int] = (11, 7)


@dataclass(frozen=True)
class Turn:
    """One message of a request. ``items``: ``("text", words)``, ``("call", id, name, input)``, ``("result", id, content)``."""

    role: str
    items: tuple[tuple[Any, ...], ...]

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        return [item[1:] for item in self.items if item[0] == "call"]

    @property
    def results(self) -> list[tuple[Any, ...]]:
        return [item[1:] for item in self.items if item[0] == "result"]

    @property
    def text(self) -> str:
        return "\n\n".join(item[1] for item in self.items if item[0] == "text")


def calls(*made: Made, text: str = "", **more: Any) -> Said:
    return Said(text=text, calls=made, **more)


def events(*data: Any) -> bytes:
    """Server-sent events without names."""
    return b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in data)


class Wire:
    """One provider's form. ``name``: of its profile in the tests. ``spec``: whom the profile names."""

    name: str
    spec: str
    messages: str
    """The key of a request's messages."""
    truncated: bytes = b""
    """Of a streamed answer: what never comes when it breaks off begins with this."""

    def answer(self, server: FakeProvider, said: Said, *, streamed: bool, cut: bool = False) -> None:
        """Queue an answer. ``cut``: it breaks off behind its calls, before it says why it stops."""
        content = self.stream(said) if streamed else json.dumps(self.whole(said)).encode()
        if cut:
            content = content[: content.rindex(self.truncated)] if streamed else content[:-20]
        server.answer(content, headers=EVENT_STREAM if streamed else None)

    def refuse(self, server: FakeProvider, status: int, kind: str, words: str = "the words", **headers: str) -> None:
        """Queue a refusal; ``headers``: ``_`` stands for ``-``."""
        made = {name.replace("_", "-"): value for name, value in headers.items()}
        server.answer(self.error(status, kind, words), status=status, headers=made)

    def whole(self, said: Said) -> Any:
        raise NotImplementedError

    def stream(self, said: Said) -> bytes:
        raise NotImplementedError

    def error(self, status: int, kind: str, words: str) -> Any:
        raise NotImplementedError

    def turns(self, request: Received) -> list[Turn]:
        """The request's messages, without the instructions."""
        raise NotImplementedError

    def schemas(self, request: Received) -> dict[str, Any]:
        """The name of each tool that was offered and the schema of its parameters, in order."""
        raise NotImplementedError

    def elements(self, request: Received) -> list[str]:
        """Each of the request's messages, byte for byte."""
        return list(_elements(_raw(request, self.messages)))

    def offered(self, request: Received) -> str:
        """The request's tools, byte for byte."""
        return _raw(request, "tools")


class OpenAI(Wire):
    name, spec, messages = "openai", "openai:some-model", "messages"
    truncated = b'data: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}'
    ENDS: Mapping[Ending, str] = {"length": "length", "filtered": "content_filter"}

    def _finish(self, said: Said) -> str:
        return self.ENDS.get(said.ending, "tool_calls" if said.calls else "stop")

    def _usage(self, said: Said) -> dict[str, int]:
        read, written = said.tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def whole(self, said: Said) -> Any:
        made = [
            {"id": each.call_id, "type": "function", "function": {"name": each.name, "arguments": each.raw}}
            for each in said.calls
        ]
        message = {"role": "assistant", "content": said.text or None, **({"tool_calls": made} if made else {})}
        choice = {"index": 0, "finish_reason": self._finish(said), "message": message}
        return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": self._usage(said)}

    def stream(self, said: Said) -> bytes:
        pieces = [chunk({"role": "assistant", "content": ""})]
        pieces += [chunk({"content": word}) for word in _halves(said.text)]
        for index, each in enumerate(said.calls):
            begun = {
                "index": index,
                "id": each.call_id,
                "type": "function",
                "function": {"name": each.name, "arguments": ""},
            }
            pieces.append(chunk({"tool_calls": [begun]}))
            for half in _halves(each.raw):
                pieces.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": half}}]}))
        pieces += [chunk(finish_reason=self._finish(said)), chunk(usage=self._usage(said)), STREAM_END]
        return b"".join(pieces)

    def error(self, status: int, kind: str, words: str) -> Any:
        return {"error": {"message": words, "type": kind, "param": None, "code": kind}}

    def turns(self, request: Received) -> list[Turn]:
        found = []
        for message in request.body["messages"]:
            items: list[tuple[Any, ...]] = []
            if message["role"] == "tool":
                items = [("result", message["tool_call_id"], json.loads(message["content"]))]
            elif message["content"] is not None:
                items = [("text", message["content"])]
            for each in message.get("tool_calls", []):
                function = each["function"]
                items.append(("call", each["id"], function["name"], json.loads(function["arguments"])))
            if message["role"] != "system":
                found.append(Turn(message["role"], tuple(items)))
        return found

    def schemas(self, request: Received) -> dict[str, Any]:
        return {each["function"]["name"]: each["function"]["parameters"] for each in request.body["tools"]}


class Anthropic(Wire):
    name, spec, messages = "anthropic", ANTHROPIC, "messages"
    truncated = b"event: message_delta"
    ENDS: Mapping[Ending, str] = {"length": "max_tokens", "filtered": "refusal"}

    def _head(self, said: Said, content: list[Any], stop: str | None) -> dict[str, Any]:
        usage = {"input_tokens": said.tokens[0], "output_tokens": said.tokens[1]}
        made = {"id": "msg_01", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6"}
        return {**made, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}

    def _stop(self, said: Said) -> str:
        return self.ENDS.get(said.ending, "tool_use" if said.calls else "end_turn")

    def whole(self, said: Said) -> Any:
        content: list[Any] = [{"type": "text", "text": said.text}] if said.text else []
        content += [
            {"type": "tool_use", "id": each.call_id or "", "name": each.name, "input": json.loads(each.raw)}
            for each in said.calls
        ]
        return self._head(said, content, self._stop(said))

    def stream(self, said: Said) -> bytes:
        blocks: list[tuple[Any, str, list[str]]] = []
        if said.text:
            blocks.append(({"type": "text", "text": ""}, "text", _halves(said.text)))
        for each in said.calls:
            begun = {"type": "tool_use", "id": each.call_id or "", "name": each.name, "input": {}}
            # Anthropic sends no JSON at all for a call without arguments.
            blocks.append((begun, "input_json", ["", *(_halves(each.raw) if each.raw != "{}" else [])]))
        told: list[tuple[str, dict[str, Any]]] = [("message_start", {"message": self._head(said, [], None)})]
        for index, (begun, kind, pieces) in enumerate(blocks):
            told.append(("content_block_start", {"index": index, "content_block": begun}))
            key = "text" if kind == "text" else "partial_json"
            deltas = ({"type": f"{kind}_delta", key: piece} for piece in pieces)
            told += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
            told.append(("content_block_stop", {"index": index}))
        ended = {
            "delta": {"stop_reason": self._stop(said), "stop_sequence": None},
            "usage": {"output_tokens": said.tokens[1]},
        }
        told += [("message_delta", ended), ("message_stop", {})]
        return b"".join(
            f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode() for name, data in told
        )

    def error(self, status: int, kind: str, words: str) -> Any:
        return {"type": "error", "error": {"type": kind, "message": words}}

    def turns(self, request: Received) -> list[Turn]:
        return [Turn(message["role"], tuple(self._items(message["content"]))) for message in request.body["messages"]]

    def _items(self, content: str | list[Any]) -> Iterator[tuple[Any, ...]]:
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            match block["type"]:
                case "tool_use":
                    yield "call", block["id"], block["name"], block["input"]
                case "tool_result":
                    inner = block["content"]
                    text = inner if isinstance(inner, str) else "".join(each["text"] for each in inner)
                    yield "result", block["tool_use_id"], json.loads(text)
                case "text":
                    yield "text", block["text"]

    def schemas(self, request: Received) -> dict[str, Any]:
        return {each["name"]: each["input_schema"] for each in request.body["tools"]}


class Google(Wire):
    name, spec, messages = "google", GOOGLE, "contents"
    truncated = b'data: {"candidates": [{"content": {"parts": [{"text": ""}]'
    ENDS: Mapping[Ending, str] = {"length": "MAX_TOKENS", "filtered": "SAFETY"}
    """Beside the reason that it gives for everything else, calls included."""

    def _answer(self, said: Said, parts: list[Any], finish: str | None) -> dict[str, Any]:
        read, written = said.tokens
        candidate = {
            "content": {"parts": parts, "role": "model"},
            "index": 0,
            **({"finishReason": finish} if finish else {}),
        }
        usage = {"promptTokenCount": read, "candidatesTokenCount": written, "totalTokenCount": read + written}
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": "gemini-3-pro-preview",
            "responseId": "r1",
        }

    def _parts(self, said: Said, texts: list[str]) -> list[Any]:
        parts: list[Any] = [{"text": text} for text in texts if text]
        for each in said.calls:
            call = {"name": each.name, "args": json.loads(each.raw), **({"id": each.call_id} if each.call_id else {})}
            if each.raw == "{}":
                del call["args"]  # Google leaves it out
            parts.append({"functionCall": call})
        return parts

    def _finish(self, said: Said) -> str:
        return self.ENDS.get(said.ending, "STOP")

    def whole(self, said: Said) -> Any:
        return self._answer(said, self._parts(said, [said.text]), self._finish(said))

    def stream(self, said: Said) -> bytes:
        pieces = [self._answer(said, [part], None) for part in self._parts(said, _halves(said.text))]
        return events(*pieces, self._answer(said, [{"text": ""}], self._finish(said)))

    def error(self, status: int, kind: str, words: str) -> Any:
        return {"error": {"code": status, "message": words, "status": kind}}

    def turns(self, request: Received) -> list[Turn]:
        return [Turn(each["role"], tuple(self._items(each["parts"]))) for each in request.body["contents"]]

    def _items(self, parts: list[Any]) -> Iterator[tuple[Any, ...]]:
        for part in parts:
            if "functionCall" in part:
                call = part["functionCall"]
                yield "call", call.get("id"), call["name"], call["args"]
            elif "functionResponse" in part:
                yield "result", part["functionResponse"].get("id"), part["functionResponse"]["response"]
            elif "text" in part:
                yield "text", part["text"]

    def schemas(self, request: Received) -> dict[str, Any]:
        (declared,) = request.body["tools"]
        return {each["name"]: each["parameters_json_schema"] for each in declared["functionDeclarations"]}


class Devstral(OpenAI):
    """One of Mistral's models behind a server that speaks OpenAI's form; it has rules of its own for what it takes."""

    name, spec = "devstral", "openai:mistralai/Devstral-Small"


WIRES: tuple[Wire, ...] = (OpenAI(), Anthropic(), Google())
each_wire = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])
either_way = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
DEVSTRAL = Devstral()


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [half for half in (text[:middle], text[middle:]) if half]


def _raw(request: Received, key: str) -> str:
    """The value of this key of a body, as the text that it came as."""
    content = request.content.decode()
    begin = content.index(f'"{key}":') + len(key) + 3  # inside a string the quotes would be escaped
    begin += len(content[begin:]) - len(content[begin:].lstrip())
    _value, end = json.JSONDecoder().raw_decode(content, begin)
    return content[begin:end]


def _elements(array: str) -> Iterator[str]:
    """Each element of a JSON array, as its text."""
    at, decoder = 1, json.JSONDecoder()
    while array[at:].strip() != "]":
        at += len(array[at:]) - len(array[at:].lstrip(", \n"))
        _value, end = decoder.raw_decode(array, at)
        yield array[at:end]
        at = end
