"""File tools: read_file, list_directory, write_file, edit_file. Text only, inside the workspace only."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import json
import os
import stat
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from turngate import NothingHappened, Preview, ToolContext, ToolFailure, tool
from turngate.domain.tools.context import NoWorkspaceError
from turngate.text.line_diff import split_lines, unified_diff
from turngate.toolkits.edits import (
    AmbiguousEdit,
    EditFileParams,
    FileText,
    Params,
    TextNotFound,
    WorkspacePath,
    apply_edit,
)
from turngate.toolkits.line_ends import like_file
from turngate.toolkits.presenters import show_change, show_entries, show_text
from turngate.toolkits.text_files import (
    MAX_TEXT_BYTES,
    Content,
    NotText,
    TooLarge,
    Written,
    change_text,
    encode_text,
    read_content,
    read_text,
    write_text,
)
from turngate.toolkits.workspace import FileUnavailable, OutsideWorkspace, Place, os_errors_as_failures, printable

MAX_READ_CHARS = 200_000
MAX_ENTRIES = 1000
MAX_RESULT_DIFF_CHARS = 4_000


class ReadFileParams(Params):
    """Which lines of which file."""

    path: WorkspacePath
    offset: int = Field(default=1, ge=1, description="First line to return, counting from 1.")
    limit: int = Field(default=2000, ge=1, le=20_000, description="Most lines to return.")


class FileContent(BaseModel):
    """Part of a file. ``lines`` is how many are in ``text``; continue with ``offset = start_line + lines``."""

    path: str
    text: str
    start_line: int
    lines: int
    total_lines: int
    truncated: bool


@tool(effect="read", ask=False, failures=[OutsideWorkspace, FileUnavailable, NotText, TooLarge], present=show_text)
async def read_file(params: ReadFileParams, ctx: ToolContext) -> FileContent:
    """Read a text file (UTF-8, at most 2 MB) as it is, without line numbers. `truncated` says that lines follow."""
    place = Place.of_call(ctx, params.path)
    lines = split_lines(await asyncio.to_thread(read_text, place))
    chosen: list[str] = []
    room = MAX_READ_CHARS
    for line in lines[params.offset - 1 : params.offset - 1 + params.limit]:
        if len(line) > room and chosen:
            break
        chosen.append(line[:room])
        room -= len(line)
        if room <= 0:
            break
    text = "".join(chosen)
    rest = lines[params.offset - 1 :]
    return FileContent(
        path=place.relative,
        text=text,
        start_line=params.offset,
        lines=len(chosen),
        total_lines=len(lines),
        truncated=len(text) < sum(map(len, rest)),
    )


class ListDirectoryParams(Params):
    """Which directory."""

    path: WorkspacePath = "."


class Entry(BaseModel):
    """One entry, not followed if it is a symlink. ``size`` in bytes, of files only."""

    name: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int | None = None


class DirectoryListing(BaseModel):
    """The first ``MAX_ENTRIES`` entries by name; ``total`` counts all."""

    path: str
    entries: list[Entry]
    total: int
    truncated: bool


@tool(effect="read", ask=False, failures=[OutsideWorkspace, FileUnavailable], present=show_entries)
async def list_directory(params: ListDirectoryParams, ctx: ToolContext) -> DirectoryListing:
    """List a directory by name, with each entry's type and size. Shows at most 1000 entries."""
    place = Place.of_call(ctx, params.path)
    names, entries = await asyncio.to_thread(_list_entries, place)
    return DirectoryListing(path=place.relative, entries=entries, total=len(names), truncated=len(names) > len(entries))


def _list_entries(place: Place) -> tuple[list[str], list[Entry]]:
    descriptor = place.open_any()
    try:
        with os_errors_as_failures(place.path):
            names = os.listdir(descriptor)  # noqa: PTH208 - a descriptor, not a path
            first = heapq.nsmallest(MAX_ENTRIES, names)
            return names, [entry for name in first if (entry := _entry(descriptor, name))]
    finally:
        os.close(descriptor)


def _entry(directory: int, name: str) -> Entry | None:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None  # Deleted since it was listed.
    readable_name = printable(name)
    if stat.S_ISREG(status.st_mode):
        return Entry(name=readable_name, type="file", size=status.st_size)
    if stat.S_ISDIR(status.st_mode):
        return Entry(name=readable_name, type="directory")
    return Entry(name=readable_name, type="symlink" if stat.S_ISLNK(status.st_mode) else "other")


class WrittenFile(BaseModel):
    """What was written. ``size_bytes``: of the whole file; ``diff``: unified, clipped, empty when nothing changed."""

    path: str
    diff: str
    size_bytes: int


class WriteFileParams(Params):
    """The whole new text."""

    path: WorkspacePath
    text: FileText = Field(description="The whole new text of the file.")


def _preview_write(params: WriteFileParams, workspace: Path | None) -> Preview:
    """Return what the write changes. It depends on the file that the path leads to, and on all that is in it."""
    if workspace is None:
        return Preview(kind="text", text="this write would fail: the run has no workspace")
    try:
        place = Place.inside(workspace, params.path)
        content = read_content(place)
        encoded = encode_text(place, params.text)
        if content is not None and not isinstance(content.text, str):
            warning = f"{place.relative} is no text file of at most {MAX_TEXT_BYTES} bytes; its whole content would be replaced"
            text = f"{warning} by these {len(encoded)} bytes:\n\n{params.text}"
            return Preview(kind="text", text=text, depends_on=_replaced(place, content))
        before = None if content is None else content.require_text()
        after = like_file(params.text, before)
        encode_text(place, after)
    except ToolFailure as failure:
        return _would_fail("write", failure)
    return _diff_preview(place, unified_diff(place.relative, before, after), _replaced(place, content))


def _replaced(place: Place, content: Content | None) -> JsonValue:
    return {"path": place.relative, "sha256": None if content is None else content.stamp}


@tool(
    effect="idempotent",
    ask=True,
    failures=[OutsideWorkspace, FileUnavailable, TooLarge],
    preview=_preview_write,
    precondition="preview",
    present=show_change,
)
async def write_file(params: WriteFileParams, ctx: ToolContext) -> WrittenFile:
    """Create a text file or replace its whole text. Makes missing directories. To change part of a file, use edit_file."""
    place = Place.of_call(ctx, params.path)

    def require(content: Content | None) -> None:
        _require_approved(ctx, place, _replaced(place, content))

    written = await asyncio.to_thread(write_text, place, params.text, require)
    return _file_written(place, written)


def _preview_edit(params: EditFileParams, workspace: Path | None) -> Preview:
    """Return what the edit changes. It depends on the change with the lines around it, wherever in the file they are.

    Not on the whole file: of several edits of one file in a step, each would be asked for again once another had run.
    """
    if workspace is None:
        return Preview(kind="text", text="this edit would fail: the run has no workspace")
    try:
        place = Place.inside(workspace, params.path)
        before = read_text(place)
        diff = unified_diff(place.relative, before, apply_edit(place, before, params))
    except ToolFailure as failure:
        return _would_fail("edit", failure)
    return _diff_preview(place, diff, _edited(place, diff))


def _edited(place: Place, diff: str) -> JsonValue:
    change = "".join(line for line in diff.splitlines(keepends=True) if not line.startswith("@@ "))
    return {"path": place.relative, "change": hashlib.sha256(change.encode(errors="surrogatepass")).hexdigest()}


@tool(
    effect="once",
    ask=True,
    failures=[OutsideWorkspace, FileUnavailable, NotText, TooLarge, TextNotFound, AmbiguousEdit],
    preview=_preview_edit,
    precondition="preview",
    present=show_change,
)
async def edit_file(params: EditFileParams, ctx: ToolContext) -> WrittenFile:
    """Replace text in a file, literally. `old_text` must occur exactly once, unless `replace_all` is set."""
    try:
        place = Place.of_call(ctx, params.path)
    except NoWorkspaceError as none:
        raise NothingHappened(none.message) from none

    def edit(before: str) -> str:
        after = apply_edit(place, before, params)
        if ctx.precondition is not None:
            _require_approved(ctx, place, _edited(place, unified_diff(place.relative, before, after)))
        return after

    written = await asyncio.to_thread(change_text, place, edit)
    return _file_written(place, written)


def _require_approved(ctx: ToolContext, place: Place, change: JsonValue) -> None:
    """Raise FileUnavailable if a person approved another change than the one that is about to be made."""
    if ctx.precondition is not None and json.loads(ctx.precondition) != change:
        reason = "it changed after the call was approved, so nothing was written; read it and send the call again"
        raise FileUnavailable(path=place.path, reason=reason)


def _file_written(place: Place, written: Written) -> WrittenFile:
    diff = unified_diff(place.relative, written.before, written.after, max_chars=MAX_RESULT_DIFF_CHARS)
    return WrittenFile(path=place.relative, diff=diff, size_bytes=written.size_bytes)


def _diff_preview(place: Place, diff: str, depends_on: JsonValue) -> Preview:
    if not diff:
        return Preview(kind="text", text=f"{place.relative} would stay as it is", depends_on=depends_on)
    return Preview(kind="diff", text=diff, depends_on=depends_on)


def _would_fail(what: str, failure: ToolFailure) -> Preview:
    reason = failure.fields.get("reason", failure.kind)
    return Preview(kind="text", text=f"this {what} would fail: {reason}", depends_on={"unavailable": reason})
