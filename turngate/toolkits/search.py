"""Search tools: grep and glob. Both run in a process of their own that can be stopped (see ``search_worker``)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from turngate import ToolContext, ToolFailure, tool
from turngate.toolkits import search_worker
from turngate.toolkits.confinement import machine
from turngate.toolkits.confinement.sandbox import Sandbox
from turngate.toolkits.edits import Params, WorkspacePath
from turngate.toolkits.presenters import show_matches, show_paths
from turngate.toolkits.private_files import PRIVATE_FILES
from turngate.toolkits.workspace import FileUnavailable, OutsideWorkspace, Place

SEARCH_SECONDS = 30
_WORKER = Path(search_worker.__file__)


class InvalidPattern(ToolFailure):
    """The pattern is no regular expression of Python's ``re``, or no relative glob."""

    pattern: str
    reason: str


class SearchTimeout(ToolFailure):
    """The search took too long and was stopped. Nothing was changed."""

    seconds: int
    reason: str = "the search took too long; search a smaller directory, or use a simpler pattern"


class GrepParams(Params):
    """What to look for, and where."""

    pattern: str = Field(
        min_length=1, max_length=2_000, description="Regular expression of Python's re, matched by line."
    )
    path: WorkspacePath = "."
    glob: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="Only such files, e.g. `*.py` (name) or `src/**/*.py` (path below `path`).",
    )
    ignore_case: bool = False
    limit: int = Field(default=200, ge=1, le=1000, description="Most matching lines to return.")


class Match(BaseModel):
    """One matching line, clipped to 400 characters around the match. ``line`` counts from 1."""

    path: str
    line: int
    text: str


class GrepResult(BaseModel):
    """Matches by path and line. ``files_skipped``: binary, larger than 20 MB, unreadable, or symlinks."""

    matches: list[Match]
    truncated: bool
    files_searched: int
    files_skipped: int


@tool(
    effect="read",
    ask=False,
    failures=[OutsideWorkspace, FileUnavailable, InvalidPattern, SearchTimeout],
    present=show_matches,
)
async def grep(params: GrepParams, ctx: ToolContext) -> GrepResult:
    """Search file contents with a regular expression. Skips `.git`, binary files and symlinks."""
    place = Place.of_call(ctx, params.path)
    query = params.model_dump() | {"kind": "grep", "prefix": "/".join(place.parts)}
    answer = await _search(place, query)
    if "invalid_pattern" in answer:
        raise InvalidPattern(pattern=params.pattern, reason=answer["invalid_pattern"])
    return GrepResult.model_validate(answer)


class GlobParams(Params):
    """Which paths."""

    pattern: str = Field(
        min_length=1,
        max_length=500,
        description="Relative to the workspace, e.g. `*.md` (top level) or `**/*.py` (anywhere).",
    )
    limit: int = Field(default=500, ge=1, le=5000, description="Most paths to return.")


class GlobResult(BaseModel):
    """Matching files, directory by directory. ``truncated``: there are more."""

    paths: list[str]
    truncated: bool


@tool(effect="read", ask=False, failures=[FileUnavailable, InvalidPattern, SearchTimeout], present=show_paths)
async def glob(params: GlobParams, ctx: ToolContext) -> GlobResult:
    """Find files by name pattern; `**` stands for any directories. Skips `.git` and follows no symlinks."""
    if params.pattern.startswith("/") or ".." in params.pattern.split("/"):
        raise InvalidPattern(
            pattern=params.pattern, reason="the pattern must be relative to the workspace, without '..'"
        )
    place = Place.inside(ctx.require_workspace(), ".")
    pattern = "/".join(part for part in params.pattern.split("/") if part not in ("", "."))
    answer = await _search(place, {"kind": "glob", "pattern": pattern, "limit": params.limit})
    return GlobResult.model_validate(answer)


async def _search(place: Place, query: dict[str, Any]) -> dict[str, Any]:
    # Not in a thread: a few openat calls, whose descriptor would leak if we were cancelled while a thread made them.
    async with machine.temporary_directory() as temporary:
        sandbox = Sandbox(workspace=place.root, workspace_writable=False, temporary=temporary, readable=(_WORKER,))
        return await _search_confined(place, sandbox, query)


async def _search_confined(place: Place, sandbox: Sandbox, query: dict[str, Any]) -> dict[str, Any]:
    start = place.open_any()
    try:
        argv = (sys.executable, "-I", "-S", str(_WORKER), str(start))
        command = machine.current().command(argv, sandbox, {})
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[start],
            env=command.environment,
            cwd=command.directory,
        )
    finally:
        os.close(start)
    private, complete = await asyncio.to_thread(PRIVATE_FILES.inodes)
    limits = {"cpu_seconds": SEARCH_SECONDS + 1, "private": private, "skip_links": not complete}
    question = json.dumps(query | limits).encode()
    try:
        async with asyncio.timeout(SEARCH_SECONDS):
            answer, complaint = await process.communicate(question)
    except TimeoutError:
        raise SearchTimeout(seconds=SEARCH_SECONDS) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(
            f"the search process failed ({process.returncode}): {complaint.decode(errors='replace')[-500:]}"
        )
    matches: dict[str, Any] = json.loads(answer)
    return matches
