"""A real HTTP server on loopback that speaks as much of OpenAI's chat completions as a test queues.

It runs in its own thread, so that blocking tests and other processes can use it too::

    with serving_provider() as provider:
        provider.answer(completion("Hello"))
        provider.answer({"error": {"message": "slow down"}}, status=429, headers={"retry-after": "2"})
        model = OpenAICompatibleModel(provider.base_url, None, "m", timeout=5)
        ...
        assert provider.requests[0].body["model"] == "m"
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

DEADLINE_SECONDS = 60


MEANWHILE_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One queued answer. ``body``: bytes as they are, a tuple of bytes one after the other, anything else as JSON.

    ``hang``: wait until the client is gone, after the pieces of a tuple. ``breaks``: close the connection after them.
    ``meanwhile``: pieces that are sent again and again while it waits.
    """

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    breaks: bool = False
    meanwhile: tuple[bytes, ...] = ()

    @property
    def pieces(self) -> tuple[bytes, ...]:
        return self.body if isinstance(self.body, tuple) else ()

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True, kw_only=True)
class Received:
    """One request as it came. ``headers``: names in lower case. ``at``: when, on the monotonic clock."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def body(self) -> Any:
        return json.loads(self.content)


class FakeProvider:
    """The ASGI app: records requests, replays the queue in order; an empty queue answers 500."""

    def __init__(self) -> None:
        self.base_url = ""
        self.requests: list[Received] = []
        self.client_left = threading.Event()
        """Set when a client went away from an answer that hangs."""
        self._answers: deque[Answer] = deque()
        self._came = threading.Condition()

    def answer(
        self,
        body: Any = b"",
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        hang: bool = False,
        breaks: bool = False,
        meanwhile: tuple[bytes, ...] = (),
    ) -> None:
        answer = Answer(body=body, status=status, headers=headers or {}, hang=hang, breaks=breaks, meanwhile=meanwhile)
        self._answers.append(answer)

    def stream(self, *pieces: bytes, **how: Any) -> None:
        """Answer with server-sent events, each piece a body chunk of its own. ``how``: as of :meth:`answer`."""
        self.answer(pieces or (b": nothing\n\n",), headers={"content-type": "text/event-stream"}, **how)

    def reset(self) -> None:
        """Forget requests and answers, so that one server can serve many tests."""
        self.requests.clear()
        self._answers.clear()
        self.client_left.clear()

    def wait_for_requests(self, count: int) -> bool:
        """Block until this many requests have come since the reset; False when they do not come in a minute."""
        with self._came:
            return self._came.wait_for(lambda: len(self.requests) >= count, DEADLINE_SECONDS)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        content, more = b"", True
        while more:
            event = await receive()
            content += event.get("body", b"")
            more = event.get("more_body", False)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        with self._came:
            self.requests.append(Received(method=scope["method"], path=scope["path"], headers=headers, content=content))
            self._came.notify_all()
        empty = Answer(body={"error": {"message": "the test queued no more answers"}}, status=500)
        answer = self._answers.popleft() if self._answers else empty
        if answer.hang and not answer.pieces:
            await self._until_left(receive, send)
            return
        headers_sent = {"content-type": "application/json", **answer.headers}
        raw = [(name.encode(), value.encode()) for name, value in headers_sent.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        for piece in answer.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if answer.hang:
            await self._until_left(receive, send, answer.meanwhile)
        if answer.hang or answer.breaks:
            return
        if answer.pieces:
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.body", "body": answer.content})

    async def _until_left(self, receive: Any, send: Any, meanwhile: tuple[bytes, ...] = ()) -> None:
        leaving = asyncio.create_task(self._left(receive))
        while not leaving.done():
            for piece in meanwhile:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.wait({leaving}, timeout=MEANWHILE_SECONDS if meanwhile else None)
        self.client_left.set()

    @staticmethod
    async def _left(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


@contextmanager
def serving_provider() -> Iterator[FakeProvider]:
    """Serve a fresh provider on a free loopback port until the end of the block."""
    provider = FakeProvider()
    # asyncio turns Nagle's algorithm off only for sockets that say that they are TCP's; with it each answer takes 40 ms.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    provider.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    config = uvicorn.Config(provider, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        # The socket listens already, so a request before the server runs waits in the backlog.
        yield provider
    finally:
        server.should_exit = True
        thread.join(DEADLINE_SECONDS)
        listener.close()


def closed_port() -> int:
    """Return a loopback port on which no process listens, or will: it is ours until this process ends."""
    reserved = socket.socket()
    reserved.bind(("127.0.0.1", 0))
    _RESERVED.append(reserved)
    return int(reserved.getsockname()[1])


_RESERVED: list[socket.socket] = []


def tool_call(name: str, arguments: Any, *, call_id: str | None = "c1", **more: Any) -> dict[str, Any]:
    """Return one tool call as a provider sends it; ``arguments`` as text, or as an object (Ollama-like)."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def chunk(
    delta: dict[str, Any] | None = None, *, finish_reason: str | None = None, usage: Any = None, **more: Any
) -> bytes:
    """Return one server-sent chunk of a streamed completion; without a delta and a finish reason, one without choices."""
    begun = delta is not None or finish_reason is not None
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason, **more}] if begun else []
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices, "usage": usage}
    return f"data: {json.dumps(body)}\n\n".encode()


STREAM_END = b"data: [DONE]\n\n"


def completion(
    content: str | None = None,
    *,
    calls: list[dict[str, Any]] | None = None,
    finish_reason: str | None = None,
    **message: Any,
) -> dict[str, Any]:
    """Return a whole chat completion; ``message`` adds keys to its message."""
    whole: dict[str, Any] = {"role": "assistant", "content": content, **message}
    if calls:
        whole["tool_calls"] = calls
    finish = finish_reason or ("tool_calls" if calls else "stop")
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "fake-1",
        "choices": [{"index": 0, "finish_reason": finish, "message": whole}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
