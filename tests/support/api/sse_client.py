"""One who watches a stream of the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from httpx_sse import ServerSentEvent, aconnect_sse
from support.api.api_server import Api


@asynccontextmanager
async def watching(api: Api, path: str, **headers: str) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
    """A stream without the empty events that httpx-sse makes of heartbeat comments; at most 20 s."""
    async with asyncio.timeout(60), aconnect_sse(api.operator, "GET", path, headers=headers) as source:
        yield (sent async for sent in source.aiter_sse() if sent.data)
