"""A balancer of TCP connections on loopback that follows /readyz, as a Service of Kubernetes does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx

LOOK_EVERY_SECONDS = 0.2


class Balancer:
    """Sends each connection to the next API that was ready at the last look. ``ports``: of the APIs."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._turn = itertools.count()
        self._pipes: set[asyncio.Task[None]] = set()
        self.ready: tuple[int, ...] = ()
        self.refused = 0
        """Connections that came while no API was ready, or that the chosen one did not take."""

    async def follow(self) -> None:
        """Look at every /readyz, again and again."""
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            while True:
                answers = await asyncio.gather(*(self._is_ready(client, port) for port in self._ports))
                self.ready = tuple(port for port, is_ready in zip(self._ports, answers, strict=True) if is_ready)
                await asyncio.sleep(LOOK_EVERY_SECONDS)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        try:
            port = self.ready[next(self._turn) % len(self.ready)]
            above = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, ZeroDivisionError):
            self.refused += 1
            writer.transport.abort()
            return
        await asyncio.gather(_carry(reader, above[1]), _carry(above[0], writer))

    async def close(self) -> None:
        """End the connections that are left."""
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    @staticmethod
    async def _is_ready(client: httpx.AsyncClient, port: int) -> bool:
        try:
            # A connection of its own for each look: one that is kept would reach an API that takes no others.
            answer = await client.get(f"http://127.0.0.1:{port}/readyz", headers={"Connection": "close"})
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def balancing(ports: Sequence[int]) -> AsyncIterator[tuple[str, Balancer]]:
    """Run a balancer; yields its URL and it."""
    balancer = Balancer(ports)
    following = asyncio.create_task(balancer.follow())
    server = await asyncio.start_server(balancer.take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", balancer
    finally:
        following.cancel()
        server.close()
        await balancer.close()
        await asyncio.gather(following, return_exceptions=True)
