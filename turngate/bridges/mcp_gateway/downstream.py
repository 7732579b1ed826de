"""The MCP server behind a gateway: opened, held and closed by one task, opened anew when it has died.

The SDK's cancel scopes must be left by the task that entered them, so calls only use the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, Literal, cast

import httpx2
from mcp import Client, Implementation, MCPError, StdioServerParameters, stdio_client
from mcp.client.session import IncomingMessage, MessageHandlerFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
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
    ListToolsResult,
    PaginatedRequestParams,
    RequestParamsMeta,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from turngate.bridges.mcp_gateway.results import refused
from turngate.domain.errors import UnavailableError
from turngate.wire.external_calls import RunOrder

log = logging.getLogger("turngate.mcp_gateway")

CONNECT_SECONDS = 30.0
LISTEN_AGAIN_SECONDS = 1.0
MAX_PAGES = 100
PROTOCOLS_OWN = "io.modelcontextprotocol/"
KEY: Final = "turngate/idempotency-key"
_ANSWER: Final[TypeAdapter[CallToolResult | InputRequiredResult]] = TypeAdapter(CallToolResult | InputRequiredResult)
_ANSWER_LOST: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, INTERNAL_ERROR, INVALID_REQUEST})
"""Errors that the SDK also makes up itself, for an answer that never came: with these the call may have happened."""
OUR_VARIABLES = "TURNGATE_"
"""Not for the server behind: with the gateway's token it could send calls of its own, or read the inbox."""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """Where the server is: a ``command`` to start on stdio, or the ``url`` of one over HTTP with these headers."""

    command: Sequence[str] = ()
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Downstream:
    """One connection at a time to the server behind. Belongs to one event loop; :meth:`close` it at the end.

    ``changed``: is called when its list of tools may be another: it says so, or was started anew.
    """

    def __init__(self, behind: Behind, *, answer_seconds: float, changed: Callable[[], Awaitable[None]]) -> None:
        self._behind = behind
        self._answer_seconds = answer_seconds
        self._changed = changed
        self._session: _Session | None = None
        self._opened_before = False

    async def client(self) -> Client:
        """Return the client of a connection that lives. Raises UnavailableError: the server cannot be started or reached."""
        if self._session is None or self._session.over:
            self._session = _Session(self._behind, self._answer_seconds, self._changed, anew=self._opened_before)
        try:
            client = await asyncio.shield(self._session.opened)
        except Exception as error:
            raise UnavailableError(f"the MCP server behind this gateway is not there: {_said(error)}") from error
        self._opened_before = True
        return client

    async def tools(self, cursor: str | None = None) -> ListToolsResult:
        """Return one page of its tools as it gives them. Raises UnavailableError."""
        for last in (False, True):
            client = await self.client()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
                return page.model_copy(update={"meta": end_to_end(page.meta)})
            except Exception as error:
                self.broken()  # nothing was sent that could do anything: a new connection may be tried
                if last:
                    why = f"the MCP server behind this gateway does not list its tools: {_said(error)}"
                    raise UnavailableError(why) from error
        raise AssertionError("the second attempt returns or raises")

    async def tool(self, name: str) -> Tool | None:
        """Return the tool of this name as it is described now, or None. Raises UnavailableError."""
        cursor = None
        for _page in range(MAX_PAGES):
            page = await self.tools(cursor)
            found = next((tool for tool in page.tools if tool.name == name), None)
            if found is not None or page.next_cursor is None:
                return found
            cursor = page.next_cursor
        return None

    async def call(
        self, name: str, order: RunOrder, tell: Callable[[str], Awaitable[None]]
    ) -> CallToolResult | Literal["lost"]:
        """Send a call, exactly as it was approved. ``lost``: no answer came, and it may have happened."""
        try:
            client = await self.client()
        except UnavailableError as away:
            return refused(f"The call did not run: {away.message}", kind="unavailable")
        meta = cast("RequestParamsMeta", {KEY: order.idempotency_key})  # an open map, by the specification
        params = CallToolRequestParams(name=name, arguments=json.loads(order.input or "{}"), _meta=meta)

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            await tell(f"{progress:g}{'' if total is None else f' of {total:g}'}: {message or 'the call runs'}")

        try:
            async with asyncio.timeout(self._answer_seconds):
                # Not `call_tool`, which holds the result against the tool's schema and drops one that does not fit: that is the
                # client's to judge, and the call has happened.
                answer = await client.session.send_request(
                    CallToolRequest(params=params), _ANSWER, progress_callback=heard
                )
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self.broken()
            if error.code in _ANSWER_LOST:
                return "lost"
            return refused(f"The server refused the call: {error.message}", kind="tool_failure")
        except TimeoutError:  # of this call; others may run well on the same connection
            log.warning("the server did not answer a call of %s within %g s", name, self._answer_seconds)
            return "lost"
        except Exception:
            self.broken()
            log.warning("the answer to a call of %s was lost", name, exc_info=True)
            return "lost"
        if isinstance(answer, InputRequiredResult):
            return refused(
                "The server wants to ask a person or a model before it goes on; that is declined.", kind="tool_failure"
            )
        return answer.model_copy(update={"meta": end_to_end(answer.meta)})

    def broken(self) -> None:
        """Let the next call open a new connection."""
        if self._session is not None:
            self._session.stop()
        self._session = None

    async def close(self) -> None:
        """End the connection, and with it a server that was started."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()
            await session.ended()


class _Session:
    def __init__(
        self, behind: Behind, answer_seconds: float, changed: Callable[[], Awaitable[None]], *, anew: bool
    ) -> None:
        self.opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._changed = changed
        self._anew = anew
        self._task = asyncio.create_task(self._own(behind, answer_seconds), name="mcp-gateway-downstream")

    @property
    def over(self) -> bool:
        return self._task.done() or self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    async def ended(self) -> None:
        await asyncio.wait({self._task})

    async def _own(self, behind: Behind, answer_seconds: float) -> None:
        try:
            async with _connected(behind, answer_seconds, self._hear) as client:
                self.opened.set_result(client)
                if self._anew:
                    await self._changed()
                listening = asyncio.create_task(self._listen(client))
                try:
                    await self._stop.wait()
                finally:
                    listening.cancel()
                    await asyncio.wait({listening})
        except Exception as error:  # noqa: BLE001 - whoever waits is told; of a broken one its calls find out themselves
            if not self.opened.done():
                self.opened.set_exception(error)
                self.opened.exception()  # seen: whoever waited may be gone
            else:
                log.warning("the connection to the MCP server behind ended: %s", _said(error))

    async def _hear(self, message: IncomingMessage) -> None:
        """Take a notification of the server's, as it comes on the connection in the older protocol."""
        if isinstance(message, ToolListChangedNotification):
            await self._changed()

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes, as the newer protocol has it; a stream that is lost is opened again."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while not self.over:
            try:
                async with client.listen(tools_list_changed=True) as subscription:
                    async for _event in subscription:
                        await self._changed()
            except SubscriptionLost:
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
                await self._changed()  # what changed meanwhile was not told
            except Exception:  # a server that does not serve it after all is no reason to have none
                log.warning("the server behind does not tell when its tools change", exc_info=True)
                return
            else:  # the server ended the stream in order
                return


def end_to_end(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a result's ``_meta`` without what the protocol says of one connection, such as which server answered."""
    return {name: value for name, value in meta.items() if not name.startswith(PROTOCOLS_OWN)} or None if meta else None


@asynccontextmanager
async def _connected(behind: Behind, answer_seconds: float, heard: MessageHandlerFnT) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(CONNECT_SECONDS):
            if behind.command:
                env = {name: value for name, value in os.environ.items() if not name.startswith(OUR_VARIABLES)}
                command, *args = behind.command
                transport = stdio_client(StdioServerParameters(command=command, args=args, env=env), errlog=sys.stderr)
            else:
                timeout = httpx2.Timeout(CONNECT_SECONDS, read=answer_seconds)
                http = httpx2.AsyncClient(headers=dict(behind.headers), timeout=timeout)
                transport = streamable_http_client(behind.url, http_client=await stack.enter_async_context(http))
            ours = Implementation(name="turngate-mcp-gateway", version=version("turngate"))
            client = await stack.enter_async_context(
                Client(transport, client_info=ours, cache=None, message_handler=heard)
            )
        yield client


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):  # the SDK's task groups wrap what happened
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:500]
