"""Keep the beginning and the end of a stream of bytes whose length no one knows. Pure."""

from __future__ import annotations


class HeadTail:
    """Takes any amount of bytes, holds at most four times ``half`` of them, and never forgets how many there were."""

    def __init__(self, half: int) -> None:
        """``half``: bytes kept of the beginning, and as many of the end."""
        self.half = half
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.total += len(chunk)
        room = self.half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:][-self.half :]
        if len(self._tail) > 2 * self.half:  # Not at every chunk: cutting the front moves all that stays.
            del self._tail[: -self.half]

    @property
    def truncated(self) -> bool:
        """Whether bytes were left out."""
        return self.total > 2 * self.half

    def text(self) -> str:
        """Return what is kept, with a marker where bytes are missing; wrong UTF-8 and NUL become U+FFFD."""
        tail = bytes(self._tail[-self.half :])
        if not self.truncated:
            return _decode(bytes(self._head) + tail)
        left_out = self.total - 2 * self.half
        marker = f"\n… [{left_out} of {self.total} bytes of output left out here] …\n"
        return _decode(bytes(self._head)) + marker + _decode(tail)


def _decode(raw: bytes) -> str:
    # PostgreSQL's text and jsonb hold no NUL.
    return raw.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
