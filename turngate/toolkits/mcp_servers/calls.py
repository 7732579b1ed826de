"""Calling a tool of an MCP server: look again that it is what was shown, then send the call once.

Nothing is sent a second time. Before each call the list is read again, which does two things: it proves that the
connection lives, while a broken one can still be replaced without harm, and that the tool is still the one people were
shown.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from mcp import Client, MCPError
from mcp.types import (
    PARSE_ERROR,
    CallToolResult,
    InputRequiredResult,
    Tool,
)
from pydantic import JsonValue, ValidationError

from turngate import OutcomeUnknown, ToolContext
from turngate.mcp_traffic import ANSWER, ANSWER_LOST, CLIPPED, UnsendableError, call_of
from turngate.readable_schema import misfit
from turngate.toolkits.mcp_servers.connection import ServerAwayError, connected
from turngate.toolkits.mcp_servers.content import answer, error_text
from turngate.toolkits.mcp_servers.failures import (
    McpToolError,
    McpToolGone,
    McpUnavailable,
    ToolChanged,
)
from turngate.toolkits.mcp_servers.listing import each_tool, manifest_digest
from turngate.toolkits.mcp_servers.plain_text import plain
from turngate.toolkits.mcp_servers.servers import Server

# A connection that is kept: opened, held and closed by one task of its own, and used by many.
#
# The SDK's cancel scopes must be left by the task that entered them. A call therefore never opens or closes anything: it
# asks the owner's task to, and is free to be cancelled at any time.


_LIVE: dict[asyncio.AbstractEventLoop, set[LiveSession]] = {}
"""Every session that is not over, by its loop: asyncio keeps only weak references to tasks."""


class LiveSession:
    """One open connection on the running loop. Made within it; starts to connect at once."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client]], name: str) -> None:
        self._connect = connect
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Client] = self._loop.create_future()
        self._stop = asyncio.Event()
        self._uses = 0
        self._retired = False
        # An empty context: a session outlives the call that happens to open it, and must not carry its log fields.
        self._task = self._loop.create_task(self._own(), name=f"mcp-{name}", context=contextvars.Context())
        _LIVE.setdefault(self._loop, set()).add(self)
        self._task.add_done_callback(self._over)

    @property
    def usable(self) -> bool:
        """Whether a new call may use it."""
        return not self._retired and not self._task.done()

    async def client(self) -> Client:
        """Return the client once connected. Raises ServerAwayError. Safe to cancel: others may be waiting too."""
        return await asyncio.shield(self._opened)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep it open for the block, even when it is retired meanwhile."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self._stop_if_idle()

    def retire(self) -> None:
        """Take no new calls, and close as soon as those that wait for an answer have it. Safe to repeat."""
        self._retired = True
        self._stop_if_idle()

    async def close(self) -> None:
        """Close now, even if calls wait for an answer, and return when the server's process is gone. Safe to repeat."""
        self._retired = True
        self._stop.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.wait({self._task})

    def _stop_if_idle(self) -> None:
        if self._retired and not self._uses:
            self._stop.set()

    async def _own(self) -> None:
        try:
            async with self._connect() as client:
                self._opened.set_result(client)
                await self._stop.wait()
        except ServerAwayError as away:
            self._opened.set_exception(away)
            self._opened.exception()  # seen: the waiting call may have been cancelled, and no one else would look
        except Exception as error:  # noqa: BLE001 - a connection broke; calls notice by themselves
            log.info("[mcp server %s] the connection ended: %r", self._name, error)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._opened.cancel()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("[mcp server %s] its session crashed", self._name, exc_info=error)
        sessions = _LIVE.get(self._loop, set())
        sessions.discard(self)
        if not sessions:
            _LIVE.pop(self._loop, None)


async def close_sessions() -> None:
    """Close every MCP session of the running loop, and wait until their servers are gone. Safe to repeat."""
    sessions = list(_LIVE.get(asyncio.get_running_loop(), ()))
    await asyncio.gather(*(session.close() for session in sessions))


log = logging.getLogger("turngate.mcp")

MAX_MESSAGE = 500


@dataclass(kw_only=True)
class Calls:
    """Calls to one server, over one live session for each event loop that makes any."""

    name: str
    server: Server
    connect_seconds: float
    answer_seconds: float
    _live: dict[asyncio.AbstractEventLoop, LiveSession] = field(default_factory=dict, repr=False)

    async def call(self, tool: str, arguments: dict[str, JsonValue], ctx: ToolContext, shown_digest: str) -> JsonValue:
        """Call the tool once and return its answer; raises one of this package's failures."""
        for last_attempt in (False, True):
            session, client = await self._session()
            with session.in_use():
                try:
                    async with asyncio.timeout(self.connect_seconds):
                        current = await self._look_up(client, tool)
                except Exception as broken:  # noqa: BLE001 - whatever it was, nothing has been sent
                    session.retire()
                    log.info("[mcp server %s] the connection broke: %r", self.name, broken)
                    if last_attempt:
                        self._away("it does not list its tools", broken)
                    continue
                checked = self._check(tool, current, shown_digest)
                return await self._send(session, client, checked, arguments, ctx)
        raise AssertionError("the second attempt returns or raises")

    async def _session(self) -> tuple[LiveSession, Client]:
        loop = asyncio.get_running_loop()
        session = self._live.get(loop)
        if session is None or not session.usable:
            for closed in [each for each in self._live if each.is_closed()]:
                del self._live[closed]
            session = self._live[loop] = LiveSession(self._connected, self.name)
        try:
            return session, await session.client()
        except ServerAwayError as away:
            self._away("it cannot be reached", away)

    def _connected(self) -> AbstractAsyncContextManager[Client]:
        return connected(self.server, name=self.name, seconds=self.connect_seconds, answer_seconds=self.answer_seconds)

    async def _look_up(self, client: Client, name: str) -> Tool | None:
        async with aclosing(each_tool(client)) as tools:
            async for tool in tools:
                if tool.name == name:
                    return tool
        return None

    def _check(self, name: str, current: Tool | None, shown_digest: str) -> Tool:
        if current is None:
            raise McpToolGone(reason=f"The MCP server {self.name!r} does not have {name!r} any more. Nothing ran.")
        digest = manifest_digest(current)
        if digest != shown_digest:
            raise ToolChanged(
                reason=f"The MCP server {self.name!r} describes {name!r} differently from what was shown when this "
                "worker started, so the call did not run. Do not repeat it: someone has to look at what changed and "
                "restart the worker.",
                shown_digest=shown_digest,
                current_digest=digest,
            )
        return current

    async def _send(
        self, session: LiveSession, client: Client, tool: Tool, arguments: dict[str, JsonValue], ctx: ToolContext
    ) -> JsonValue:
        """Send the call. From here on it may have happened, whatever goes wrong."""

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            event: dict[str, JsonValue] = {"progress": progress}
            if total is not None:
                event["total"] = total
            if message is not None:
                event["message"] = plain(message, MAX_MESSAGE)
            ctx.emit(event)

        try:
            # Not the client's method, which sends again by itself when a server wants input or other headers.
            request = call_of(tool.name, arguments, ctx.idempotency_key)
            result = await client.session.send_request(request, ANSWER, progress_callback=progressed)
        except UnsendableError as error:
            raise McpToolError(
                reason="Nothing was sent: these arguments can't be written as JSON. Send others."
            ) from error
        except MCPError as error:
            if error.code not in ANSWER_LOST:
                raise McpToolError(
                    reason=plain(f"The server refused the call: {error.message}", MAX_MESSAGE)
                ) from error
            self._lost(session, tool.name, error)
        except Exception as error:  # noqa: BLE001 - the connection broke in another way; the call may be on its way
            self._lost(session, tool.name, error)
        return self._answer(tool, result)

    def _answer(self, tool: Tool, result: CallToolResult | InputRequiredResult) -> JsonValue:
        if isinstance(result, InputRequiredResult):
            raise McpToolError(
                reason="The server wants to ask a person or a model before it continues; that is declined."
            )
        if result.is_error:
            raise McpToolError(reason=error_text(result))
        if CLIPPED in (result.meta or {}):
            return answer(result)
        if tool.output_schema is not None and (why := misfit(result.structured_content, tool.output_schema)):
            log.warning("[mcp server %s] %s answered what it should not: %s", self.name, tool.name, why)
            raise OutcomeUnknown(
                "The call ran, and its answer does not fit what the server promised, so it cannot be shown. "
                "Its effects remain: do not repeat it to get the answer."
            )
        return answer(result)

    def _lost(self, session: LiveSession, tool: str, error: Exception) -> NoReturn:
        if not isinstance(error, ValidationError) and getattr(error, "code", None) != PARSE_ERROR:
            session.retire()  # what broke was the connection, not the one answer
        log.warning("[mcp server %s] the answer to a call of %s was lost: %r", self.name, tool, error)
        why = plain(str(error), MAX_MESSAGE)
        raise OutcomeUnknown(
            f"The call was sent to the MCP server {self.name!r}, and no answer that can be read came back ({why})."
        ) from error

    def _away(self, what: str, error: Exception) -> NoReturn:
        log.warning("[mcp server %s] %s: %s", self.name, what, error)
        raise McpUnavailable(
            reason=f"The MCP server {self.name!r} is not available: {what}. Nothing was sent; the call did not run."
        ) from error
