"""A server's stderr: into the log line by line, never the terminal, with the last lines kept to explain a failure."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

from turngate.toolkits.mcp_servers.plain_text import plain

log = logging.getLogger("turngate.mcp")

MAX_LINE = 1000
TAIL_LINES = 12
LAST_WORDS_SECONDS = 0.5
"""How long to read on after the server has ended. A grandchild that inherited the pipe may hold it open for ever."""


class StderrLog(asyncio.Protocol):
    """The reading end of a server's stderr."""

    def __init__(self, server_name: str) -> None:
        self._name = server_name
        self._rest = b""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._ended = asyncio.Event()

    @property
    def tail(self) -> str:
        """The last lines, as one text."""
        return "\n".join(self._tail)

    @asynccontextmanager
    async def pipe(self) -> AsyncIterator[TextIO]:
        """Yield the file to start the server with; on leaving, read what it said last."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w", encoding="utf-8") as writer:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, reader)
            try:
                yield writer
            finally:
                writer.close()
                try:
                    async with asyncio.timeout(LAST_WORDS_SECONDS):
                        await self._ended.wait()
                except TimeoutError:
                    pass
                finally:
                    transport.close()

    def data_received(self, data: bytes) -> None:
        """Log each whole line; one without an end is cut."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._say(line)

    def connection_lost(self, exc: Exception | None) -> None:
        """Log what had no line end."""
        del exc
        self._say(self._rest)
        self._rest = b""
        self._ended.set()

    def _say(self, line: bytes) -> None:
        text = plain(line.decode("utf-8", errors="replace").strip(), MAX_LINE)
        if text:
            self._tail.append(text)
            log.info("[mcp server %s] %s", self._name, text)
