"""The text files that people write: settings, policies, scripts, cases. Every reader of one reads it here.

Editors on Windows save text with a byte order mark, or as UTF-16. The mark is no part of the text; UTF-16 isn't guessed at, so a
file means the same on every machine.
"""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path
from typing import Final

BYTE_ORDER_MARK: Final = "\ufeff"
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HEAD: Final = 64


class NotTextError(ValueError):
    """A file's bytes are not UTF-8; the message says what they are, and what to do."""


def read_text(file: Path) -> str:
    """Return a file's text, with plain line ends. Raises OSError, or NotTextError. Blocking."""
    return decoded(file.read_bytes()).replace("\r\n", "\n").replace("\r", "\n")


def read_regular(file: Path, most_bytes: int) -> bytes:
    """Return what is in a file that anyone may have put there. Blocking, but no file makes it wait.

    Raises OSError, or ValueError for what is no regular file or has more than ``most_bytes``.
    """
    # O_NONBLOCK: opening a FIFO that no one writes to would wait forever; regular files ignore the flag.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    with open(descriptor, "rb") as opened:  # noqa: PTH123 - a descriptor
        content = opened.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes:,} bytes")
    return content


def decoded(content: bytes) -> str:
    """Return the text of a file's bytes, without a byte order mark. Raises NotTextError."""
    if content.startswith(_UTF_16) or _alternates_with_nul(content[:_HEAD]):
        raise NotTextError("it is UTF-16 text: save it as UTF-8")
    try:
        return content.decode().removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise NotTextError(f"it is not UTF-8 text (byte {error.start + 1}): save it as UTF-8") from None


def why_unreadable(error: OSError | NotTextError) -> str:
    """Return in a few words why a file could not be read."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def _alternates_with_nul(head: bytes) -> bool:
    """Tell whether these are ASCII characters of two bytes each."""
    return len(head) > 1 and not (any(head[::2]) and any(head[1::2]))
