"""A model's responses in the wire format of each of three providers, and the requests to that provider, parsed.

The formats (order and kinds of events, names of fields, reasons to stop) are those of the recorded responses in
tests/unit/models/wire; here a test sets their content. The bytes go over a loopback server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from support.servers.fake_provider import STREAM_END, FakeProvider, Received, chunk
from unit.models.wire.recordings import ANTHROPIC, GOOGLE

Ending = Literal["done", "length", "filtered"]
EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True)
class WireCall:
    """A tool call in a response. ``raw``: its arguments' text. ``call_id`` None: the provider sends none."""

    name: str
    raw: str = "{}"
    call_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class WireResponse:
    """One response. ``ending``: with calls, ``done`` becomes the provider's reason for calls."""

    text: str = ""
    calls: tuple[WireCall, ...] = ()
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


def calls(*wire_calls: WireCall, text: str = "", **more: Any) -> WireResponse:
    return WireResponse(text=text, calls=wire_calls, **more)


def events(*data: Any) -> bytes:
    """Server-sent events without names."""
    return b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in data)


class Wire:
    """One provider's wire format. ``name``: of its profile in the tests. ``spec``: the model that the profile names."""

    name: str
    spec: str
    messages: str
    """The key of a request's messages."""
    truncated: bytes = b""
    """The first bytes that are missing when a streamed response breaks off."""

    def answer(self, server: FakeProvider, response: WireResponse, *, streamed: bool, cut: bool = False) -> None:
        """Queue a response. ``cut``: it breaks off after its calls, before the reason to stop."""
        content = self.stream(response) if streamed else json.dumps(self.whole(response)).encode()
        if cut:
            content = content[: content.rindex(self.truncated)] if streamed else content[:-20]
        server.answer(content, headers=EVENT_STREAM if streamed else None)

    def refuse(self, server: FakeProvider, status: int, kind: str, words: str = "the words", **headers: str) -> None:
        """Queue an error; in the names of ``headers``, ``_`` means ``-``."""
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        server.answer(self.error(status, kind, words), status=status, headers=http_headers)

    def whole(self, response: WireResponse) -> Any:
        raise NotImplementedError

    def stream(self, response: WireResponse) -> bytes:
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

    def _finish(self, response: WireResponse) -> str:
        return self.ENDS.get(response.ending, "tool_calls" if response.calls else "stop")

    def _usage(self, response: WireResponse) -> dict[str, int]:
        read, written = response.tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def whole(self, response: WireResponse) -> Any:
        tool_calls = [
            {"id": each.call_id, "type": "function", "function": {"name": each.name, "arguments": each.raw}}
            for each in response.calls
        ]
        message = {
            "role": "assistant",
            "content": response.text or None,
            **({"tool_calls": tool_calls} if tool_calls else {}),
        }
        choice = {"index": 0, "finish_reason": self._finish(response), "message": message}
        return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": self._usage(response)}

    def stream(self, response: WireResponse) -> bytes:
        pieces = [chunk({"role": "assistant", "content": ""})]
        pieces += [chunk({"content": word}) for word in _halves(response.text)]
        for index, each in enumerate(response.calls):
            begun = {
                "index": index,
                "id": each.call_id,
                "type": "function",
                "function": {"name": each.name, "arguments": ""},
            }
            pieces.append(chunk({"tool_calls": [begun]}))
            for half in _halves(each.raw):
                pieces.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": half}}]}))
        pieces += [chunk(finish_reason=self._finish(response)), chunk(usage=self._usage(response)), STREAM_END]
        return b"".join(pieces)

    def error(self, status: int, kind: str, words: str) -> Any:
        return {"error": {"message": words, "type": kind, "param": None, "code": kind}}

    def turns(self, request: Received) -> list[Turn]:
        turns = []
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
                turns.append(Turn(message["role"], tuple(items)))
        return turns

    def schemas(self, request: Received) -> dict[str, Any]:
        return {each["function"]["name"]: each["function"]["parameters"] for each in request.body["tools"]}


class Anthropic(Wire):
    name, spec, messages = "anthropic", ANTHROPIC, "messages"
    truncated = b"event: message_delta"
    ENDS: Mapping[Ending, str] = {"length": "max_tokens", "filtered": "refusal"}

    def _head(self, response: WireResponse, content: list[Any], stop: str | None) -> dict[str, Any]:
        usage = {"input_tokens": response.tokens[0], "output_tokens": response.tokens[1]}
        envelope = {"id": "msg_01", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6"}
        return {**envelope, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}

    def _stop(self, response: WireResponse) -> str:
        return self.ENDS.get(response.ending, "tool_use" if response.calls else "end_turn")

    def whole(self, response: WireResponse) -> Any:
        content: list[Any] = [{"type": "text", "text": response.text}] if response.text else []
        content += [
            {"type": "tool_use", "id": each.call_id or "", "name": each.name, "input": json.loads(each.raw)}
            for each in response.calls
        ]
        return self._head(response, content, self._stop(response))

    def stream(self, response: WireResponse) -> bytes:
        blocks: list[tuple[Any, str, list[str]]] = []
        if response.text:
            blocks.append(({"type": "text", "text": ""}, "text", _halves(response.text)))
        for each in response.calls:
            begun = {"type": "tool_use", "id": each.call_id or "", "name": each.name, "input": {}}
            # Anthropic sends no JSON at all for a call without arguments.
            blocks.append((begun, "input_json", ["", *(_halves(each.raw) if each.raw != "{}" else [])]))
        stream_events: list[tuple[str, dict[str, Any]]] = [
            ("message_start", {"message": self._head(response, [], None)})
        ]
        for index, (begun, kind, pieces) in enumerate(blocks):
            stream_events.append(("content_block_start", {"index": index, "content_block": begun}))
            key = "text" if kind == "text" else "partial_json"
            deltas = ({"type": f"{kind}_delta", key: piece} for piece in pieces)
            stream_events += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
            stream_events.append(("content_block_stop", {"index": index}))
        ended = {
            "delta": {"stop_reason": self._stop(response), "stop_sequence": None},
            "usage": {"output_tokens": response.tokens[1]},
        }
        stream_events += [("message_delta", ended), ("message_stop", {})]
        return b"".join(
            f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode() for name, data in stream_events
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
    """Every other response ends with the same reason, calls included."""

    def _answer(self, response: WireResponse, parts: list[Any], finish: str | None) -> dict[str, Any]:
        read, written = response.tokens
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

    def _parts(self, response: WireResponse, texts: list[str]) -> list[Any]:
        parts: list[Any] = [{"text": text} for text in texts if text]
        for each in response.calls:
            call = {"name": each.name, "args": json.loads(each.raw), **({"id": each.call_id} if each.call_id else {})}
            if each.raw == "{}":
                del call["args"]  # Google leaves it out
            parts.append({"functionCall": call})
        return parts

    def _finish(self, response: WireResponse) -> str:
        return self.ENDS.get(response.ending, "STOP")

    def whole(self, response: WireResponse) -> Any:
        return self._answer(response, self._parts(response, [response.text]), self._finish(response))

    def stream(self, response: WireResponse) -> bytes:
        pieces = [self._answer(response, [part], None) for part in self._parts(response, _halves(response.text))]
        return events(*pieces, self._answer(response, [{"text": ""}], self._finish(response)))

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
    """A Mistral model on a server that uses OpenAI's wire format, with stricter rules for requests."""

    name, spec = "devstral", "openai:mistralai/Devstral-Small"


WIRES: tuple[Wire, ...] = (OpenAI(), Anthropic(), Google())
each_wire = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])
either_way = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
DEVSTRAL = Devstral()


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [half for half in (text[:middle], text[middle:]) if half]


def _raw(request: Received, key: str) -> str:
    """The value of this key in a body, as the text that was sent."""
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
