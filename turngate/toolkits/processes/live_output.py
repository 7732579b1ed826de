"""Output that is kept for the result and shown to watchers while it comes, ten times a second at most."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from typing import Final

from turngate.toolkits.processes.head_tail import HeadTail

SEND_SECONDS: Final = 0.1
"""At least this long between two pieces."""
MAX_PIECE_BYTES: Final = 8 * 1024
"""Most bytes of one piece: a command that floods is not worth following byte by byte, and the result keeps more."""


class LiveOutput(HeadTail):
    """Takes bytes on the event loop, and hands them on as text: whole lines, unless a line waits for its end too long."""

    def __init__(self, half: int, send: Callable[[str], None]) -> None:
        """``half``: as in :class:`HeadTail`. ``send`` must not block or raise."""
        super().__init__(half)
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unsent = bytearray()
        self._left_out = 0
        self._next_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; they are sent soon."""
        super().feed(chunk)
        self._unsent += chunk
        if (surplus := len(self._unsent) - MAX_PIECE_BYTES) > 0:
            del self._unsent[:surplus]
            self._left_out += surplus
        self._send_later()

    def finish(self) -> None:
        """Send what is left, at once; nothing is sent after it. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send_until(len(self._unsent), final=True)

    def _send_later(self) -> None:
        if self._timer is None and self._unsent:
            self._timer = self._loop.call_at(self._next_at, self._send_now)

    def _send_now(self) -> None:
        self._timer = None
        self._next_at = self._loop.time() + SEND_SECONDS
        # The beginning of a line waits for one more turn: most lines come in one piece then.
        self._send_until(self._unsent.rfind(b"\n") + 1 or len(self._unsent), final=False)
        self._send_later()

    def _send_until(self, end: int, *, final: bool) -> None:
        text = self._decoder.decode(bytes(self._unsent[:end]), final)
        del self._unsent[:end]
        if self._left_out:
            text = f"… [{self._left_out} bytes of output passed by here] …\n{text}"
            self._left_out = 0
        if text:
            self._send(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))
