"""Text files inside the workspace: bounded reading, atomic writing.

Owns the size limit and what counts as text. Blocking: call it from a thread.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from turngate import ToolFailure
from turngate.toolkits.line_ends import like_file
from turngate.toolkits.loaded_files import LOADED_FILES
from turngate.toolkits.workspace import FileUnavailable, Place

MAX_TEXT_BYTES = 2_000_000
"""Largest file that is read or written, in bytes."""
MAX_HASHED_BYTES = 100_000_000
"""Largest file whose content is hashed; a larger one is identified by its size and time of change."""

_LOADED = "the worker runs from it, so no tool changes it: ask a person to make this change"

# Two edits of one file in one step run at the same time, each read-change-replace: without this the second would undo
# the first. Held for milliseconds. Another process that edits the same file is not held back.
_one_writer = threading.Lock()


class NotText(ToolFailure):
    """The file holds NUL bytes or is not UTF-8."""

    path: str
    reason: str


class TooLarge(ToolFailure):
    """The file, before or after the change, passes the limit. Sizes in bytes."""

    path: str
    size_bytes: int
    limit_bytes: int = MAX_TEXT_BYTES
    reason: str = "files of this size are not read or written whole; use grep, or bash with head, tail or sed"


class Content(NamedTuple):
    """What one read of a file found. ``text``: what it says, or why that isn't text; ``stamp``: as of :func:`content_stamp`."""

    text: str | NotText | TooLarge
    stamp: str

    def require_text(self) -> str:
        """Return what it says. Raises NotText, TooLarge."""
        if isinstance(self.text, ToolFailure):
            raise self.text
        return self.text


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a write did. ``before``: the text it replaced, None when there was none."""

    before: str | None
    after: str
    size_bytes: int


def read_text(place: Place) -> str:
    """Return the whole text, line endings untouched.

    Raises FileUnavailable, OutsideWorkspace, NotText, TooLarge.
    """
    with place.parent() as parent:
        return _content_below(place, parent).require_text()


def read_content(place: Place) -> Content | None:
    """Return what is in a file, and the digest of exactly these bytes; None when there is no such file.

    Raises FileUnavailable, OutsideWorkspace.
    """
    try:
        with place.parent() as parent:
            return _content_below(place, parent)
    except FileUnavailable as failure:
        if failure.is_missing():
            return None
        raise


def write_text(place: Place, text: str, require: Callable[[Content | None], None] = lambda _content: None) -> Written:
    """Make the file or replace its whole text, all or nothing; missing directories are made. Safe to repeat.

    Readers see the old file or the new one, and a crash leaves one of them: the new text goes to a temporary file in
    the same directory, is synced, then renamed over. Permission bits stay, and so do the line ends and the byte order mark
    of a text file (:func:`~turngate.toolkits.line_ends.like_file`). A file that was no text is replaced too; ``before`` is
    then None. ``require``: raises if what is about to be replaced (None: no file) isn't what it should be.

    Raises FileUnavailable (also for a file without any write permission bit), OutsideWorkspace, TooLarge.
    """
    encode_text(place, text)
    with place.parent(create=True) as parent, _one_writer:
        mode = _existing_mode(place, parent)
        content = None if mode is None else _content_below(place, parent)
        require(content)
        before = content.text if content is not None and isinstance(content.text, str) else None
        after = like_file(text, before)
        encoded = encode_text(place, after)
        _replace(parent, place.parts[-1], encoded, mode)
    return Written(before=before, after=after, size_bytes=len(encoded))


def change_text(place: Place, change: Callable[[str], str]) -> Written:
    """Replace the text of a file that exists by ``change(text)``, as :func:`write_text` does.

    ``change`` must be pure; what it raises is passed on and leaves the file as it was.

    Raises FileUnavailable, OutsideWorkspace, NotText, TooLarge.
    """
    with place.parent() as parent, _one_writer:
        before = _content_below(place, parent).require_text()
        mode = _existing_mode(place, parent)
        after = change(before)
        encoded = encode_text(place, after)
        _replace(parent, place.parts[-1], encoded, mode)
    return Written(before=before, after=after, size_bytes=len(encoded))


def encode_text(place: Place, text: str) -> bytes:
    """Return the text as UTF-8; raises TooLarge when it passes the limit."""
    encoded = text.encode()
    if len(encoded) > MAX_TEXT_BYTES:
        raise TooLarge(path=place.relative, size_bytes=len(encoded))
    return encoded


def content_stamp(place: Place, copy: Path | None = None) -> str | None:
    """Return a text that differs when the file's content does: its hex SHA-256; None when there is no such file.

    ``copy``: where to make a copy of exactly the content that the digest is of, with its permissions; not of a file above
    ``MAX_HASHED_BYTES``. Raises FileUnavailable, OutsideWorkspace.
    """
    try:
        with place.parent() as parent, open(place.open_file(parent), "rb") as file:  # noqa: PTH123 - a descriptor
            status = os.fstat(file.fileno())
            if status.st_size > MAX_HASHED_BYTES:
                return _state_of_large(status)
            if copy is None:
                return hashlib.file_digest(file, "sha256").hexdigest()
            with copy.open("w+b") as copied:
                shutil.copyfileobj(file, copied)
                copied.seek(0)
                os.fchmod(copied.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
                return hashlib.file_digest(copied, "sha256").hexdigest()
    except FileUnavailable as failure:
        if failure.is_missing():
            return None
        raise


def _state_of_large(status: os.stat_result) -> str:
    # Not st_mtime_ns: anyone who changes the file can set that.
    return f"{status.st_size} bytes, changed at {status.st_ctime_ns} ns"


def _content_below(place: Place, parent: int) -> Content:
    with open(place.open_file(parent), "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        status, raw = os.fstat(file.fileno()), file.read(MAX_TEXT_BYTES + 1)
        text = _text_of(place, raw, status)
        if max(status.st_size, len(raw)) > MAX_HASHED_BYTES:
            return Content(text, _state_of_large(status))
        digest = hashlib.sha256(raw)
        while rest := file.read(MAX_TEXT_BYTES):
            digest.update(rest)
    return Content(text, digest.hexdigest())


def _text_of(place: Place, raw: bytes, status: os.stat_result) -> str | NotText | TooLarge:
    """Return what the first bytes of a file say, which are all of it unless it is too large; or why that isn't text."""
    if len(raw) > MAX_TEXT_BYTES:
        return TooLarge(path=place.relative, size_bytes=max(status.st_size, len(raw)))
    if b"\0" in raw:
        return NotText(path=place.relative, reason="the file holds NUL bytes, so it is not text")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return NotText(path=place.relative, reason=f"the file is not UTF-8: byte {error.start} is wrong")


def _existing_mode(place: Place, parent: int) -> int | None:
    """Return the permission bits of the file that is about to be replaced, or None. Raises FileUnavailable: it may not be."""
    if LOADED_FILES.holds(place.real):
        raise FileUnavailable(path=place.path, reason=_LOADED)
    try:
        descriptor = place.open_file(parent)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if LOADED_FILES.is_file(status):
        raise FileUnavailable(path=place.path, reason=_LOADED)
    # Renaming over a file asks only the directory's permission; the file's own must count too.
    if not mode & 0o222:
        raise FileUnavailable(path=place.path, reason="the file is read-only")
    return mode


def _replace(parent: int, name: str, encoded: bytes, mode: int | None) -> None:
    temporary = f".turngate-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666, dir_fd=parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(encoded)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
    os.fsync(parent)
