"""The body of a response: read up to a limit, decompressed up to the same limit, and turned into text if it is text."""

from __future__ import annotations

import codecs
import re
import zlib
from dataclasses import dataclass

import httpx

# What a hostile server may send that decodes to nothing, on top of the limit, before it is hung up on.
_COMPRESSED_SLACK_BYTES = 64 * 1024
_GZIP_MAGIC = b"\x1f\x8b"

# Python also calls `idna`, `utf-7`, `unicode_escape` and the like text encodings; no server means those.
_CHARSETS = re.compile(
    r"ascii|utf-8(-sig)?|utf-(16|32)(-[bl]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|gbk|gb2312|gb18030|big5(hkscs)?"
    r"|shift_jis(_2004|x0213)?|euc_(jp|kr)|iso2022_jp|mac-roman"
)


class UnreadableBodyError(Exception):
    """The body is compressed in a way that was not asked for, or wrongly. The text says which."""


@dataclass(frozen=True)
class RawBody:
    """The first bytes of a body, decompressed. ``whole``: nothing followed."""

    content: bytes
    whole: bool


async def read_body(response: httpx.Response, limit: int) -> RawBody:
    """Read at most ``limit`` bytes of an open response, counted after decompression.

    Memory stays bounded by the limit and one network chunk, whatever the compression ratio: a decoder that is
    not told how much it may put out would inflate each chunk a thousandfold first.

    Raises UnreadableBodyError; httpx's errors pass through.
    """
    inflate = _inflater(response.headers.get("content-encoding", ""))
    content = bytearray()
    received = 0
    async for chunk in response.aiter_raw():
        received += len(chunk)
        # One byte over the limit is asked for: it tells a body of exactly the limit from a longer one.
        room = limit + 1 - len(content)
        content += chunk[:room] if inflate is None else inflate.feed(chunk, room)
        if len(content) > limit or received > limit + _COMPRESSED_SLACK_BYTES:
            return RawBody(bytes(content[:limit]), whole=False)
    return RawBody(bytes(content), whole=inflate is None or inflate.complete)


def as_text(content: bytes, charset: str | None, *, whole: bool) -> str | None:
    """Return the text, or None when it is none: not in its charset, or with NUL characters (no store takes them).

    ``charset``: as the server says; None means UTF-8, or UTF-16 with a byte order mark. Unless ``whole``, a character
    that was cut at the end is left out.
    """
    codec = _codec(content, charset)
    if codec is None:
        return None
    try:
        text = codecs.getincrementaldecoder(codec)("strict").decode(content, final=whole)
    except UnicodeError:
        return None
    return None if "\0" in text else text


def _codec(content: bytes, charset: str | None) -> str | None:
    if charset is None:
        return "utf-16" if content.startswith((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)) else "utf-8-sig"
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return None
    if not _CHARSETS.fullmatch(name):
        return None
    return "utf-8-sig" if name == "utf-8" else name


def _inflater(content_encoding: str) -> _Inflater | None:
    match content_encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return _Inflater()
        case _:
            raise UnreadableBodyError("the server compressed its answer in a way that was not asked for")


class _Inflater:
    """Gzip, any number of members (RFC 1952 §2.2), never more output than there is room for."""

    def __init__(self) -> None:
        self._fed = False
        self._member = self._new_member()

    @property
    def complete(self) -> bool:
        return self._member.eof or not self._fed

    def feed(self, compressed: bytes, room: int) -> bytes:
        """Return at most ``room`` bytes; what does not fit is lost, so stop feeding then."""
        content = bytearray()
        while compressed and len(content) < room:  # Not `room == 0`: zlib takes a limit of 0 for none at all.
            if self._member.eof:
                if not compressed.startswith(_GZIP_MAGIC):
                    break  # Padding behind the last member.
                self._member = self._new_member()
            self._fed = True
            try:
                content += self._member.decompress(compressed, room - len(content))
            except zlib.error:
                raise UnreadableBodyError("the server's compressed answer is broken") from None
            compressed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        return bytes(content)

    @staticmethod
    def _new_member() -> zlib._Decompress:
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
