"""The MCP server behind a gateway: opened, held and closed by one task, opened anew when it has died.

The SDK's cancel scopes must be left by the task that entered them, so calls only use the connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version

import httpx2
from mcp import Client, Implementation, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ListToolsResult, PaginatedRequestParams, Tool

from turngate.domain.errors import UnavailableError

log = logging.getLogger("turngate.mcp_gateway")

CONNECT_SECONDS = 30.0
MAX_PAGES = 100
OUR_VARIABLES = "TURNGATE_"
"""Not for the server behind: with the gateway's token it could send calls of its own, or read the inbox."""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """Where the server is: a ``command`` to start on stdio, or the ``url`` of one over HTTP with these headers."""

    command: Sequence[str] = ()
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Downstream:
    """One connection at a time to the server behind. Belongs to one event loop; :meth:`close` it at the end."""

    def __init__(self, behind: Behind, *, answer_seconds: float) -> None:
        self._behind = behind
        self._answer_seconds = answer_seconds
        self._session: _Session | None = None

    async def client(self) -> Client:
        """Return the client of a connection that lives. Raises UnavailableError: the server cannot be started or reached."""
        if self._session is None or self._session.over:
            self._session = _Session(self._behind, self._answer_seconds)
        try:
            return await asyncio.shield(self._session.opened)
        except Exception as error:
            raise UnavailableError(f"the MCP server behind this gateway is not there: {_said(error)}") from error

    async def tools(self, cursor: str | None = None) -> ListToolsResult:
        """Return one page of its tools as it gives them. Raises UnavailableError."""
        for last in (False, True):
            client = await self.client()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
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
    def __init__(self, behind: Behind, answer_seconds: float) -> None:
        self.opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
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
            async with _connected(behind, answer_seconds) as client:
                self.opened.set_result(client)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits is told; of a broken one its calls find out themselves
            if not self.opened.done():
                self.opened.set_exception(error)
                self.opened.exception()  # seen: whoever waited may be gone
            else:
                log.warning("the connection to the MCP server behind ended: %s", _said(error))


@asynccontextmanager
async def _connected(behind: Behind, answer_seconds: float) -> AsyncIterator[Client]:
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
            client = await stack.enter_async_context(Client(transport, client_info=ours, cache=None))
        yield client


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):  # the SDK's task groups wrap what happened
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:500]
