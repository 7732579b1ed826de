"""Output that is kept for the result and told to watchers while it comes, ten times a second at most."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from typing import Final

from turngate.toolkits.processes.head_tail import HeadTail

TELL_SECONDS: Final = 0.1
"""At least this long between two tellings."""
MAX_TOLD_BYTES: Final = 8 * 1024
"""Most bytes of one telling: a command that floods is not worth following byte by byte, and the result keeps more."""


class LiveOutput(HeadTail):
    """Takes bytes on the event loop, and hands them on as text: whole lines, unless a line waits for its end too long."""

    def __init__(self, half: int, tell: Callable[[str], None]) -> None:
        """``half``: as in :class:`HeadTail`. ``tell`` must not block or raise."""
        super().__init__(half)
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._untold = bytearray()
        self._left_out = 0
        self._next_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; they are told soon."""
        super().feed(chunk)
        self._untold += chunk
        if (surplus := len(self._untold) - MAX_TOLD_BYTES) > 0:
            del self._untold[:surplus]
            self._left_out += surplus
        self._tell_later()

    def finish(self) -> None:
        """Tell what is left, at once; nothing is told after it. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_upto(len(self._untold), final=True)

    def _tell_later(self) -> None:
        if self._timer is None and self._untold:
            self._timer = self._loop.call_at(self._next_at, self._tell_now)

    def _tell_now(self) -> None:
        self._timer = None
        self._next_at = self._loop.time() + TELL_SECONDS
        # The beginning of a line waits for one more turn: most lines come in one piece then.
        self._tell_upto(self._untold.rfind(b"\n") + 1 or len(self._untold), final=False)
        self._tell_later()

    def _tell_upto(self, end: int, *, final: bool) -> None:
        text = self._decoder.decode(bytes(self._untold[:end]), final)
        del self._untold[:end]
        if self._left_out:
            text = f"… [{self._left_out} bytes of output passed by here] …\n{text}"
            self._left_out = 0
        if text:
            self._tell(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))
