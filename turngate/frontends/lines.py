"""One JSON message a line on two byte streams: what every driver on stdio reads and writes.

Source: https://github.com/ndjson/ndjson-spec
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final

from turngate.domain.errors import InvalidInputError

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""The API takes far less; what is longer is no message, and must not fill the memory."""
_WAITING: Final = 64
"""Lines that are read ahead; then the writer waits."""


class JsonLines:
    """Lines in, messages out. Made inside the event loop that it serves; one task may receive, any may send.

    ``source``, ``sink``: blocking byte streams, such as stdin and stdout: pipes, files and terminals alike.
    """

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        self._hung_up = asyncio.Event()
        self._writing = asyncio.Lock()
        # A daemon: an end by signal must not wait for a line that no one types.
        threading.Thread(target=self._read, name="stdin-lines", daemon=True).start()

    async def receive(self) -> bytes | None:
        """Return the next line that is not blank, without its end; None at the end, or once no one reads the output any more.

        Raises InvalidInputError for a line of more than ``MAX_LINE_BYTES``, which is skipped.
        """
        while not self._hung_up.is_set():
            next_line = asyncio.ensure_future(self._lines.get())
            hung_up = asyncio.ensure_future(self._hung_up.wait())
            try:
                await asyncio.wait({next_line, hung_up}, return_when=asyncio.FIRST_COMPLETED)
                line = next_line.result() if next_line.done() else None
            finally:
                next_line.cancel()
                hung_up.cancel()
            if line is None:
                return None
            if len(line) > MAX_LINE_BYTES:
                raise InvalidInputError(f"a line has at most {MAX_LINE_BYTES:,} bytes")
            if line.strip():
                return line.strip()
        return None

    async def send(self, message: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Write one message and flush it. Once the reader has gone nothing is written, and :meth:`receive` ends."""
        line = json.dumps(message, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        async with self._writing:
            if self._hung_up.is_set():
                return
            try:
                await asyncio.to_thread(self._write, line)
            except (OSError, ValueError):  # EPIPE, or a stream that was closed
                self._hung_up.set()

    def hang_up(self) -> None:
        """Take note that no one reads the output any more: nothing is written, and :meth:`receive` ends. From any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._hung_up.set)

    def _write(self, line: bytes) -> None:
        self._sink.write(line)
        self._sink.flush()

    def _read(self) -> None:
        try:
            while line := self._source.readline(MAX_LINE_BYTES + 1):
                pending = line
                while not line.endswith(b"\n") and (line := self._source.readline(MAX_LINE_BYTES)):
                    pass  # the rest of a line that is too long
                self._hand_over(pending)
            self._hand_over(None)
        except (OSError, ValueError, RuntimeError):  # the stream, or the loop, is closed
            return

    def _hand_over(self, line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
