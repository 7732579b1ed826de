"""A connection that is kept: opened, held and closed by one task of its own, and used by many.

The SDK's cancel scopes must be left by the task that entered them. A call therefore never opens or closes anything: it
asks the owner's task to, and is free to be cancelled at any time.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from mcp import Client

from turngate.toolkits.mcp_servers.connection import ServerAwayError

log = logging.getLogger("turngate.mcp")

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
        """Return the client once connected. Raises ServerAwayError. Safe to cancel: others may be waiting as well."""
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
        """Close now, whoever waits for an answer, and return when the server's process is gone. Safe to repeat."""
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
            self._opened.exception()  # seen: whoever waited may have been cancelled, and nobody else would look
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
