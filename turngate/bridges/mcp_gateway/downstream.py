"""The gateway's connection to the MCP server whose tools it offers: the downstream server.

One task opens and closes each connection, because the SDK's cancel scopes must be left by the task that entered them; calls
only use it. If the server dies, the next call opens a new connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from mcp import Client, MCPError
from mcp.client.session import IncomingMessage, MessageHandlerFnT
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from turngate import mcp_traffic
from turngate.bridges.mcp_gateway.results import refused
from turngate.domain.errors import UnavailableError
from turngate.domain.text.json_text import arguments_text
from turngate.wire.external_calls import RunOrder

log = logging.getLogger("turngate.mcp_gateway")

CONNECT_SECONDS = 30.0
LISTEN_AGAIN_SECONDS = 1.0
MAX_PAGES = 100
PROTOCOL_KEYS = "io.modelcontextprotocol/"


class Connect(Protocol):
    """Starts or reaches the downstream server, and agrees with it on a version.

    ``on_odd_tool``: called with name and reason of each tool that is left out of a list. ``on_message``: with what comes unasked.
    """

    def __call__(
        self, *, on_odd_tool: Callable[[str, str], None], on_message: MessageHandlerFnT
    ) -> AbstractAsyncContextManager[Client]:
        """Return a context that holds the connection open; the same task enters and leaves it."""


class Downstream:
    """One connection at a time to the downstream server. Belongs to one event loop; :meth:`close` it at the end.

    ``on_tools_changed``: called when its list of tools may have changed: the server says so, or was restarted.
    """

    def __init__(
        self, connect: Connect, *, answer_seconds: float, on_tools_changed: Callable[[], Awaitable[None]]
    ) -> None:
        self._connect = connect
        self._answer_seconds = answer_seconds
        self._on_tools_changed = on_tools_changed
        self._session: _Session | None = None
        self._opened_before = False

    async def client(self) -> Client:
        """Return the client of a live connection. Raises UnavailableError: the server cannot be started or reached."""
        if self._session is None or self._session.over:
            self._session = _Session(self._connect, self._on_tools_changed, reconnects=self._opened_before)
        try:
            client = await asyncio.shield(self._session.opened)
        except Exception as error:
            raise UnavailableError(f"the gateway cannot reach its MCP server: {_error_text(error)}") from error
        self._opened_before = True
        return client

    async def tools(self, cursor: str | None = None) -> ListToolsResult:
        """Return one page of its tools as the server lists them. Raises UnavailableError."""
        for last in (False, True):
            client = await self.client()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
                return page.model_copy(update={"meta": end_to_end(page.meta)})
            except Exception as error:
                self.drop()  # listing changes nothing, so it may be tried again on a new connection
                if last:
                    why = f"the gateway's MCP server does not list its tools: {_error_text(error)}"
                    raise UnavailableError(why) from error
        raise AssertionError("the second attempt returns or raises")

    async def tool(self, name: str) -> Tool | None:
        """Return the tool of this name as it is described now, or None. Raises UnavailableError."""
        cursor = None
        for _page in range(MAX_PAGES):
            page = await self.tools(cursor)
            tool = next((tool for tool in page.tools if tool.name == name), None)
            if tool is not None or page.next_cursor is None:
                return tool
            cursor = page.next_cursor
        return None

    async def call(
        self, name: str, order: RunOrder, on_progress: Callable[[str], Awaitable[None]]
    ) -> CallToolResult | Literal["lost"]:
        """Send a call exactly as it was approved. ``lost``: no answer came, and the call may have happened."""
        try:
            request = mcp_traffic.call_of(name, json.loads(arguments_text(order.input)), order.idempotency_key)
        except (mcp_traffic.UnsendableError, RecursionError):
            return refused("The call did not run: its arguments can't be written as JSON.", kind="invalid_input")
        try:
            client = await self.client()
        except UnavailableError as away:
            return refused(f"The call did not run: {away.message}", kind="unavailable")

        async def report(progress: float, total: float | None, message: str | None) -> None:
            await on_progress(f"{progress:g}{'' if total is None else f' of {total:g}'}: {message or 'the call runs'}")

        answer = await self._answer(client, request, report)
        if isinstance(answer, InputRequiredResult):
            return refused("The server wants to ask a person or a model first. That is declined.", kind="tool_failure")
        return answer if answer == "lost" else answer.model_copy(update={"meta": end_to_end(answer.meta)})

    async def _answer(
        self, client: Client, request: CallToolRequest, on_progress: ProgressFnT
    ) -> CallToolResult | InputRequiredResult | Literal["lost"]:
        try:
            async with asyncio.timeout(self._answer_seconds):
                # The client decides what to do with a result that does not fit the tool's schema.
                return await client.session.send_request(request, mcp_traffic.ANSWER, progress_callback=on_progress)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self.drop()
            if error.code in mcp_traffic.ANSWER_LOST:
                return "lost"
            return refused(f"The server refused the call: {error.message}", kind="tool_failure")
        except TimeoutError:  # of this call only; others may be fine on the same connection
            log.warning("the server did not answer a call within %g s", self._answer_seconds)
            return "lost"
        except Exception as error:
            if not isinstance(error, ValidationError):  # what broke was the connection, not the one answer
                self.drop()
            log.warning("the answer to a call was lost", exc_info=True)
            return "lost"

    def drop(self) -> None:
        """Drop the connection: the next call opens a new one."""
        if self._session is not None:
            self._session.stop()
        self._session = None

    async def close(self) -> None:
        """End the connection, and the server if we started it."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()
            await session.ended()


class _Session:
    def __init__(self, connect: Connect, on_tools_changed: Callable[[], Awaitable[None]], *, reconnects: bool) -> None:
        self.opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._on_tools_changed = on_tools_changed
        self._reconnects = reconnects
        self._odd_tools: set[str] = set()
        self._task = asyncio.create_task(self._own(connect), name="mcp-gateway-downstream")

    @property
    def over(self) -> bool:
        return self._task.done() or self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    async def ended(self) -> None:
        if not self.opened.done():  # a server that says nothing would be waited for
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _own(self, connect: Connect) -> None:
        try:
            async with connect(on_odd_tool=self._on_odd_tool, on_message=self._on_message) as client:
                self.opened.set_result(client)
                if self._reconnects:
                    await self._on_tools_changed()
                listener = asyncio.create_task(self._listen(client))
                try:
                    await self._stop.wait()
                finally:
                    listener.cancel()
                    await asyncio.wait({listener})
        except Exception as error:  # noqa: BLE001 - callers that wait for it get it; later calls notice by themselves
            if not self.opened.done():
                self.opened.set_exception(error)
                self.opened.exception()  # marked as seen: the caller that waited may be gone
            else:
                log.warning("the connection to the gateway's MCP server ended: %s", _error_text(error))

    async def _on_message(self, message: IncomingMessage) -> None:
        """Handle a notification, which in the older protocol comes on the connection."""
        if isinstance(message, ToolListChangedNotification):
            await self._on_tools_changed()

    def _on_odd_tool(self, name: str, why: str) -> None:
        """Say once for each connection that a tool is left out."""
        if name not in self._odd_tools:
            self._odd_tools.add(name)
            log.warning("the tool %r of the gateway's MCP server is left out: %s", name[:100], why)

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes in the newer protocol. A lost stream is opened again."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while not self.over:
            try:
                async with client.listen(tools_list_changed=True) as subscription:
                    async for _event in subscription:
                        await self._on_tools_changed()
            except SubscriptionLost:
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
                await self._on_tools_changed()  # a change meanwhile was not announced
            except Exception:  # a server without subscriptions is still usable
                log.warning("the gateway's MCP server does not announce changes of its tools", exc_info=True)
                return
            else:  # the server ended the stream properly
                return


def end_to_end(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a result's ``_meta`` without the protocol's own keys, which are about one connection."""
    if meta is None:
        return None
    return {name: value for name, value in meta.items() if not name.startswith(PROTOCOL_KEYS)} or None


def _error_text(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):  # the SDK's task groups wrap what happened
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:1_500]
