"""``turngate mcp-gateway``: an MCP server that offers another one's tools, each call behind Turngate's gates (ADR 0024).

The tools are listed as the server behind describes them. It uses the public client and the package
of the extra ``mcp``, and nothing that another program could not use.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any, Final

import anyio
import uvicorn
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)

from turngate.bridges.mcp_gateway.calls import GatedCalls
from turngate.bridges.mcp_gateway.downstream import Behind, Downstream
from turngate.bridges.mcp_gateway.results import refused
from turngate.client import TurngateClient
from turngate.domain.errors import UnavailableError

# The clients in front of a gateway: who hears that the tools changed, and why a client gave a call up.
#
# Both eras of the protocol: notifications on the connection, and since 2026-07-28 on a ``subscriptions/listen`` stream.


SESSION: Final = "mcp-session-id"
MOST_REMEMBERED: Final = 1_000
_OUT_OF_TIME: Final = ("timed out", "timeout", "time-out", "time out", "deadline exceeded")
"""In the reason of a cancellation: the client's patience ended, and not its user's wish (the SDKs' own words)."""


class FrontServer(Server[Any]):
    """A server that says of itself that its list of tools may change."""

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
    """Those of one gateway. :meth:`watch` goes among its server's middleware, ``listen`` serves its subscriptions."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._reasons: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def watch(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Note who came, and which call was cancelled for which reason."""
        if ctx.method == "notifications/initialized":
            _remember(self._sessions, _session(ctx), ctx.session)
        elif ctx.method == "notifications/cancelled":
            told: Mapping[str, Any] = ctx.params or {}
            _remember(self._reasons, (_session(ctx), str(told.get("requestId"))), str(told.get("reason") or ""))
        return await call_next(ctx)

    def ran_out_of_time(self, ctx: ServerRequestContext[Any, Any]) -> bool:
        """Tell whether a cancelled request was given up because its client does not wait any longer."""
        reason = self._reasons.get((_session(ctx), str(ctx.request_id)), "").lower()
        return any(words in reason for words in _OUT_OF_TIME)

    async def tools_changed(self) -> None:
        """Tell everybody to list the tools again."""
        await self._bus.publish(ToolsListChanged())
        for key, session in list(self._sessions.items()):
            try:
                await session.send_tool_list_changed()
            except Exception:  # a client that is gone fails in its transport's own way
                log.debug("a client could not be told that the tools changed", exc_info=True)
                self._sessions.pop(key, None)


def _session(ctx: ServerRequestContext[Any, Any]) -> str:
    """Name the connection: ids of requests are the client's own, and several clients count from one."""
    headers = getattr(ctx.request, "headers", None)
    return "" if headers is None else str(headers.get(SESSION, ""))


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > MOST_REMEMBERED:
        kept.popitem(last=False)


log = logging.getLogger("turngate.mcp_gateway")

CALL_ID: Final = "turngate/call-id"
"""In a call's ``_meta``: the client's own id for it. The same again, from any process, is the same call."""
MAX_CALL_ID: Final = 255


class McpGateway:
    """The server in front. One per process; :meth:`serve_stdio` or :meth:`serve_http` runs it to its end.

    Args:
        client: of Turngate's API, whose token holds ``runs:write`` and ``requests:read`` and nothing that decides.
        behind: the server whose tools these are.
        name: the gateway's name in policy (agent ``external-NAME``) and inbox. Gateways of one name share open calls.
        trust_annotations: whether a tool that says it only reads runs where no rule speaks of it.
        timeout_seconds: how long one call may run behind.
        answer_within: seconds after which a client that cannot wait is told to ask again; None: it waits as long as it can.
    """

    def __init__(
        self,
        client: TurngateClient,
        behind: Behind,
        *,
        name: str,
        trust_annotations: bool = False,
        timeout_seconds: int = 600,
        answer_within: int | None = None,
    ) -> None:
        self._clients = Clients()
        self._downstream = Downstream(behind, answer_seconds=timeout_seconds, changed=self._clients.tools_changed)
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
            version=version("turngate"),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._clients.listen,
        )
        self.server.middleware.append(self._clients.watch)

    async def serve_stdio(self) -> None:
        """Serve the client that started this process, until it closes stdin or a signal ends us."""
        serving = asyncio.current_task()
        assert serving is not None  # noqa: S101 - a coroutine that runs is in a task
        async with self._until_signalled(serving.cancel), stdio_server() as (read, write):
            sender, receiver = anyio.create_memory_object_stream[Any](0)

            async def pass_on() -> None:
                """What the client has not cancelled itself must outlive it: say that we close before the end is seen."""
                async with sender:
                    async for message in read:
                        await sender.send(message)
                    self._calls.closing = True

            passing = asyncio.create_task(pass_on())
            try:
                await self.server.run(receiver, write, self.server.create_initialization_options())
            finally:
                self._calls.closing = True
                passing.cancel()

    async def serve_http(self, port: int) -> None:
        """Serve clients over HTTP at ``http://127.0.0.1:PORT/mcp``, to this machine only, until a signal ends us."""
        app = self.server.streamable_http_app(host="127.0.0.1")
        web = _Web(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1))
        async with self._until_signalled(lambda: setattr(web, "should_exit", True)):
            await web.serve()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Hold what :attr:`server` stands on, for whoever runs it themselves."""
        try:
            await self._say_what_it_says()
            yield
        finally:
            self._calls.closing = True
            await self._calls.aclose()
            await self._downstream.close()

    async def _say_what_it_says(self) -> None:
        """Take over the instructions that the server behind gives to a client's model."""
        try:
            self.server.instructions = (await self._downstream.client()).instructions
        except UnavailableError as away:
            log.warning("%s", away.message)  # it is tried again with each call

    @asynccontextmanager
    async def _until_signalled(self, end: Callable[[], object]) -> AsyncIterator[None]:
        """As :meth:`serving`; a signal ends the block, and leaves open calls for the next gateway."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self._calls.closing = True
            end()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        try:
            async with self.serving():
                yield
        except asyncio.CancelledError:
            if not self._calls.closing:
                raise

    async def _list_tools(self, _ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        """List the tools of the server behind, exactly as it does."""
        try:
            return await self._downstream.tools(None if params is None else params.cursor)
        except UnavailableError as away:
            raise MCPError(INTERNAL_ERROR, away.message) from away

    async def _call_tool(self, ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        """Bring a call through the gate. Everything that goes wrong is a result that the client's model can read."""
        meta = dict(ctx.meta or {})
        call_id = meta.get(CALL_ID)
        if call_id is not None and not (isinstance(call_id, str) and 0 < len(call_id) <= MAX_CALL_ID):
            return refused(f"_meta {CALL_ID!r} is a text of 1 to {MAX_CALL_ID} characters", kind="invalid_input")
        try:
            tool = await self._downstream.tool(params.name)
        except UnavailableError as away:
            return refused(f"The call did not run: {away.message}", kind="unavailable")
        if tool is None:
            return refused(f"There is no tool {params.name!r}. List the tools again.", kind="unknown_tool")
        pulses = 0

        async def tell(what: str) -> None:
            nonlocal pulses
            pulses += 1
            await ctx.session.report_progress(float(pulses), None, what)

        return await self._calls.call(
            tool,
            params.arguments or {},
            call_id=call_id,
            tell=tell,
            ran_out_of_time=lambda: self._clients.ran_out_of_time(ctx),
        )


class _Web(uvicorn.Server):
    """uvicorn without signal handlers of its own: ours say first that the gateway closes."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
