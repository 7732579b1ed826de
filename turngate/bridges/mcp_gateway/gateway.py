"""``turngate mcp-gateway``: an MCP server that offers another one's tools, each call gated by Turngate (ADR 0024).

The tools are listed as the downstream server describes them. Uses the public client and the package of the extra ``mcp``,
and nothing that another program could not use.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import anyio
import uvicorn
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.message import SessionMessage
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    ListToolsResult,
    PaginatedRequestParams,
)

from turngate import __version__, mcp_traffic
from turngate.bridges.mcp_gateway.calls import GatedCalls
from turngate.bridges.mcp_gateway.downstream import Connect, Downstream
from turngate.bridges.mcp_gateway.results import refused
from turngate.client import TurngateClient
from turngate.domain.errors import UnavailableError
from turngate.mcp_traffic import TooLarge

# A gateway's clients: they are notified when the tools change, and say why they cancel a call.
#
# Both versions of the protocol: notifications on the connection, and since 2026-07-28 on a ``subscriptions/listen`` stream.


SESSION: Final = "mcp-session-id"
MOST_REMEMBERED: Final = 1_000
_OUT_OF_TIME: Final = ("timed out", "timeout", "time-out", "time out", "deadline exceeded")
"""In the reason of a cancellation: the client stopped waiting; its user did not cancel (the SDKs' own words)."""


class FrontServer(Server[Any]):
    """A server that announces that its list of tools may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return what the handshake says."""
        changes = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(changes, experimental_capabilities, extensions)


class Clients:
    """The clients of one gateway. :meth:`watch` is middleware of its server, ``listen`` serves its subscriptions."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._reasons: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def watch(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Note which clients connect, and why a call was cancelled."""
        if ctx.method == "notifications/initialized":
            _remember(self._sessions, _session(ctx), ctx.session)
        elif ctx.method == "notifications/cancelled":
            params: Mapping[str, Any] = ctx.params or {}
            _remember(self._reasons, (_session(ctx), str(params.get("requestId"))), str(params.get("reason") or ""))
        return await call_next(ctx)

    def timed_out(self, ctx: ServerRequestContext[Any, Any]) -> bool:
        """Whether a request was cancelled only because its client stopped waiting."""
        reason = self._reasons.get((_session(ctx), str(ctx.request_id)), "").lower()
        return any(words in reason for words in _OUT_OF_TIME)

    async def tools_changed(self) -> None:
        """Notify every client to list the tools again."""
        await self._bus.publish(ToolsListChanged())
        for key, session in list(self._sessions.items()):
            try:
                await session.send_tool_list_changed()
            except Exception:  # the error for a client that is gone depends on its transport
                log.debug("a client could not be notified that the tools changed", exc_info=True)
                self._sessions.pop(key, None)


def _session(ctx: ServerRequestContext[Any, Any]) -> str:
    """Name the connection: clients choose the ids of their requests, and several may count from one."""
    headers = getattr(ctx.request, "headers", None)
    return "" if headers is None else str(headers.get(SESSION, ""))


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    if len(memory) > MOST_REMEMBERED:
        memory.popitem(last=False)


log = logging.getLogger("turngate.mcp_gateway")

PIECE_BYTES: Final = 65_536
CALL_ID: Final = "turngate/call-id"
"""In a call's ``_meta``: the client's own id for it. The same id again, from any process, is the same call."""
MAX_CALL_ID: Final = 255
TASK: Final = "turngate/task"
"""In a call's ``_meta``: what the client was asked to do, for the person who decides. MCP has no other place for it."""


class McpGateway:
    """The MCP server that clients connect to. One per process; :meth:`serve_stdio` or :meth:`serve_http` runs it to its end.

    Args:
        client: of Turngate's API; its token has the scopes ``runs:write`` and ``requests:read``, and none to decide.
        connect: starts or reaches the server whose tools are offered.
        name: the gateway's name in policy (agent ``external-NAME``) and inbox. Gateways with the same name share open calls.
        trust_annotations: whether a tool that says it only reads may run without a rule.
        timeout_seconds: how long one call may run downstream.
        answer_within: seconds after which a client that cannot wait gets an answer that says to ask again; None: the client
            waits as long as it can.
    """

    def __init__(
        self,
        client: TurngateClient,
        connect: Connect,
        *,
        name: str,
        trust_annotations: bool = False,
        timeout_seconds: int = 600,
        answer_within: int | None = None,
    ) -> None:
        self._clients = Clients()
        self._downstream = Downstream(
            connect, answer_seconds=timeout_seconds, on_tools_changed=self._clients.tools_changed
        )
        self._calls = GatedCalls(
            client=client,
            downstream=self._downstream,
            source=name,
            trusted=trust_annotations,
            timeout_seconds=timeout_seconds,
            answer_within=answer_within,
        )
        self.server = FrontServer(
            f"turngate-{name}",
            version=__version__,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._clients.listen,
        )
        self.server.middleware.append(self._clients.watch)

    async def serve_stdio(self) -> None:
        """Serve the client that started this process, until it closes stdin or a signal ends the process."""
        serving = asyncio.current_task()
        assert serving is not None  # noqa: S101 - a coroutine that runs is in a task

        ours = _take_stdin()

        async def client_lines() -> AsyncIterator[bytes]:
            """Note that we are closing before the server sees the end: calls that the client did not cancel stay open."""
            async for line in mcp_traffic.lines(_pieces(ours)):
                readable, answers = from_client(line)
                for answer in answers:
                    await write.send(SessionMessage(answer))
                for message in readable:
                    yield mcp_traffic.written(message)
            self._calls.closing = True

        # In this order: stdin is read by a thread, which a signal doesn't end, so the process has to end before it.
        stdin = cast("anyio.AsyncFile[str]", client_lines())
        async with stdio_server(stdin=stdin) as (read, write), self._until_signalled(serving.cancel):
            try:
                await self.server.run(read, write, self.server.create_initialization_options())
            finally:
                self._calls.closing = True

    def web_app(self) -> Any:
        """Return what serves clients over HTTP, for :class:`HttpFront`: its own bound of a request is never reached."""
        return self.server.streamable_http_app(host="127.0.0.1", max_request_body_size=2 * mcp_traffic.MAX_MESSAGE)

    async def serve_http(self, port: int, token: str) -> None:
        """Serve clients over HTTP at ``http://127.0.0.1:PORT/mcp`` until a signal ends the process.

        This machine only, by its own names (``Host``, ``Origin``), and only clients that send the token: others have accounts
        on this machine, too.
        """
        app = HttpFront(self.web_app(), token)
        web = _Web(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1))
        async with self._until_signalled(lambda: setattr(web, "should_exit", True)):
            await web.serve()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Open and close what :attr:`server` needs, for callers that run it themselves."""
        try:
            await self._copy_instructions()
            yield
        finally:
            self._calls.closing = True
            await self._calls.aclose()
            await self._downstream.close()

    async def _copy_instructions(self) -> None:
        """Take over the downstream server's instructions for a client's model."""
        try:
            self.server.instructions = (await self._downstream.client()).instructions
        except UnavailableError as away:
            log.warning("%s", away.message)  # it is tried again with each call

    @asynccontextmanager
    async def _until_signalled(self, end: Callable[[], object]) -> AsyncIterator[None]:
        """Do as :meth:`serving`; a signal ends the block and then the process. Open calls are left for the next gateway."""
        loop = asyncio.get_running_loop()
        received: list[signal.Signals] = []

        def stop(number: signal.Signals) -> None:
            received.append(number)
            self._calls.closing = True
            end()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        try:
            async with self.serving():
                yield
        except asyncio.CancelledError:
            if not received:
                raise
        if received:
            signal.signal(received[0], signal.SIG_DFL)
            signal.raise_signal(received[0])

    async def _list_tools(self, _ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        """List the tools exactly as the downstream server does."""
        try:
            return await self._downstream.tools(None if params is None else params.cursor)
        except UnavailableError as away:
            raise MCPError(INTERNAL_ERROR, away.message) from away

    async def _call_tool(self, ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        """Bring a call through the gate. Every error becomes a result that the client's model can read."""
        meta = dict(ctx.meta or {})
        call_id = meta.get(CALL_ID)
        if call_id is not None and not (isinstance(call_id, str) and 0 < len(call_id) <= MAX_CALL_ID):
            return refused(f"_meta {CALL_ID!r} must be a text of 1 to {MAX_CALL_ID} characters", kind="invalid_input")
        task = meta.get(TASK)
        if task is not None and not isinstance(task, str):
            return refused(f"_meta {TASK!r} must be a text", kind="invalid_input")
        try:
            tool = await self._downstream.tool(params.name)
        except UnavailableError as away:
            return refused(f"The call did not run: {away.message}", kind="unavailable")
        if tool is None:
            return refused(f"There is no tool {params.name!r}. List the tools again.", kind="unknown_tool")
        pulses = 0

        async def notify(message: str) -> None:
            nonlocal pulses
            pulses += 1
            await ctx.session.report_progress(float(pulses), None, message)

        return await self._calls.call(
            tool,
            params.arguments or {},
            call_id=call_id,
            task=task,
            notify=notify,
            timed_out=lambda: self._clients.timed_out(ctx),
        )


def _take_stdin() -> int:
    """Return a descriptor of stdin that is ours alone: the programs that we start, and what else reads stdin, read nothing."""
    ours = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return ours


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    while piece := await anyio.to_thread.run_sync(os.read, descriptor, PIECE_BYTES, abandon_on_cancel=True):
        yield piece


def from_client(data: bytes | TooLarge) -> tuple[list[JSONRPCMessage], list[JSONRPCResponse | JSONRPCError]]:
    """Return the messages that a client sent, and answers to what can't be read: without one, the client would wait forever."""
    if isinstance(data, TooLarge):
        outline = data.outline()
        is_answer = "result" in outline or "error" in outline
        is_notification = str(outline.get("method")).startswith("notifications/")
        words = f"Nothing ran: this message has {data.words}. Send less at a time."
        return [], [] if is_answer or is_notification else [_unread(outline, words)]
    if not data.strip():
        return [], []
    readable, others = mcp_traffic.messages_in(data)
    words = "Nothing ran: this message can't be read as JSON-RPC 2.0, or nests too deep. Send it again, corrected."
    return readable, [_unread(each, words) for each in others if not (isinstance(each, dict) and "id" not in each)]


def _unread(raw: Any, words: str) -> JSONRPCResponse | JSONRPCError:
    request_id = mcp_traffic.id_in(raw)
    if isinstance(raw, dict) and raw.get("method") == "tools/call" and request_id is not None:
        result = refused(words, kind="invalid_input").model_dump(mode="json", by_alias=True, exclude_none=True)
        return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)
    code = INVALID_REQUEST if isinstance(raw, dict) else PARSE_ERROR
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=words))


_NO_TOKEN: Final = b"Send the gateway's token as `Authorization: Bearer TOKEN`. It prints the token when it starts.\n"
_ONE_MESSAGE: Final = "Nothing ran: send one JSON-RPC 2.0 message in each request."


class HttpFront:
    """The gateway over HTTP, an ASGI app: a request needs the token, and its message is read as it is on stdio."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            tokens = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(tokens) != 1 or not hmac.compare_digest(tokens[0], self._expected):
                await _respond(send, 401, _NO_TOKEN, b"text/plain", (b"www-authenticate", b"Bearer"))
                return
            if scope["method"] == "POST":
                await self._post(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _post(self, scope: Any, receive: Any, send: Any) -> None:
        pieces, is_whole = mcp_traffic.Pieces(), False
        while not is_whole:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            pieces.add(event.get("body", b""))
            is_whole = not event.get("more_body", False)
        readable, answers = from_client(pieces.whole())
        if len(readable) != 1 or answers:
            answer = answers[0] if answers and not readable else _unread({}, _ONE_MESSAGE)
            status = 400 if answer.id is None else 200
            await _respond(send, status, mcp_traffic.written(answer), b"application/json")
            return
        body = [{"type": "http.request", "body": mcp_traffic.written(readable[0])}]

        async def replayed() -> Any:
            return body.pop() if body else await receive()

        await self._app(scope, replayed, send)


async def _respond(send: Any, status: int, body: bytes, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
    headers = (*headers, (b"content-type", kind))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Web(uvicorn.Server):
    """uvicorn without its own signal handlers: ours note first that the gateway is closing."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
