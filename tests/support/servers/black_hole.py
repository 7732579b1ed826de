"""A proxy on loopback that can stop forwarding without closing anything, as a NAT, a VPN or a sleeping computer does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class BlackHole:
    """Carries connections to ``port`` until :meth:`swallow`: from then on they, and new ones, stay open and silent."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_swallowing = False
        self._forgotten: set[asyncio.Task[None]] = set()
        self._pipes: set[asyncio.Task[None]] = set()
        self.url = ""

    def swallow(self) -> None:
        """Forward nothing more, in either direction."""
        self._is_swallowing = True
        self._forgotten |= self._pipes

    def release(self) -> None:
        """Carry new connections again. Those that were swallowed stay silent for good."""
        self._is_swallowing = False

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        if self._is_swallowing:
            self._forgotten.add(task)
        above = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(self._carry(task, reader, above[1]), self._carry(task, above[0], writer))
        except asyncio.CancelledError:
            for each in (writer, above[1]):
                each.transport.abort()

    async def _carry(self, task: asyncio.Task[None], source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if task not in self._forgotten:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        if task not in self._forgotten:
            sink.close()

    async def close(self) -> None:
        """End all connections."""
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)


@asynccontextmanager
async def black_hole(url: str) -> AsyncIterator[BlackHole]:
    """A proxy in front of ``url``, a server on loopback."""
    hole = BlackHole(int(url.rpartition(":")[2]))
    server = await asyncio.start_server(hole.take, "127.0.0.1", 0)
    hole.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield hole
    finally:
        server.close()
        await hole.close()
