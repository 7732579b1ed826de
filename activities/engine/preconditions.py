"""What people are shown of a call and what it depends on: taken when a person is asked, and again before the call starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from turngate.activities.engine import author_code
from turngate.activities.engine.author_code import (
    MOST_VIEWS_OVERDUE,
    await_author,
    call_injected,
    in_own_thread,
    what_failed,
)
from turngate.activities.engine.engine import Engine
from turngate.domain.crashes import report_crash
from turngate.domain.digest import idempotency_key
from turngate.domain.tools.context import ToolContext
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.tool import Tool
from turngate.runtime.services import svcs
from turngate.store.clock import now
from turngate.store.runs import runs

PREVIEW_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a tool's own code says of a call now. ``precondition``: what it depends on, as JSON; None: its tool doesn't say."""

    preview: Preview | None
    precondition: str | None


async def look(
    engine: Engine, tool: Tool, params: Any, run: runs.Run, tool_call_id: str, *, known: str | None = None
) -> Look:
    """Return what a person who is asked about a call is shown of it, and what it depends on.

    What fails or hangs says so, and never holds up the inbox; a precondition that failed differs from any taken later.
    ``known``: what its own function has just answered; None: it is asked.
    """
    preview = await take_preview(tool, params, run.workspace)
    try:
        if tool.precondition == "preview":
            return Look(preview=preview, precondition=_of_preview(preview))
        if known is not None:
            return Look(preview=preview, precondition=known)
        return Look(preview=preview, precondition=await precondition(engine, tool, params, run, tool_call_id))
    except Exception as error:  # noqa: BLE001 - reported, with its traceback
        report_crash("precondition failed", error, tool=tool.name)
        return Look(preview=preview, precondition=_as_json(_failed(error)))


async def precondition(engine: Engine, tool: Tool, params: Any, run: runs.Run, tool_call_id: str) -> str | None:
    """Return what the call depends on, as canonical JSON; None when its tool has none. Raises what the author's does."""
    if tool.precondition is None:
        return None
    if tool.precondition == "preview":
        return _of_preview(await _preview(tool, params, run.workspace))
    ctx = ToolContext(
        run_id=run.id,
        tool_call_id=tool_call_id,
        idempotency_key=idempotency_key(run.id, tool_call_id),
        workspace=None if run.workspace is None else Path(run.workspace),
        deadline=now() + timedelta(seconds=author_code.AUTHOR_SECONDS),
    )
    async with svcs.Container(engine.services) as container:
        answer = call_injected(tool.precondition, container, params=params, ctx=ctx)
        return _as_json(await await_author(answer, seconds=author_code.AUTHOR_SECONDS))


async def take_preview(tool: Tool, params: Any, workspace: str | None) -> Preview | None:
    """Return what the tool says will change; a preview that fails or hangs says so and never holds up the inbox."""
    try:
        return await _preview(tool, params, workspace)
    except Exception as error:  # noqa: BLE001 - the tool author's code; the operator still sees the exact arguments
        report_crash("preview failed", error, tool=tool.name)
        text = f"No preview: {type(error).__name__}: {error}"
        return Preview(kind="text", text=text, depends_on=_failed(error))


async def _preview(tool: Tool, params: Any, workspace: str | None) -> Preview | None:
    if tool.preview is None:
        return None
    take = partial(tool.preview, params, None if workspace is None else Path(workspace))
    taken = in_own_thread(take, of=tool.preview, most_overdue=MOST_VIEWS_OVERDUE)
    preview = await await_author(taken, seconds=PREVIEW_SECONDS)
    if preview is not None and preview.depends_on is not None and tool.precondition != "preview":
        raise TypeError('it returned depends_on, which counts only if its tool has precondition="preview"')
    return preview


def _of_preview(preview: Preview | None) -> str:
    return _as_json(None if preview is None else preview.depends_on)


def _failed(error: Exception) -> JsonValue:
    return {"precondition_failed": what_failed(error)}


def _as_json(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    # Half a surrogate pair, from a file name that is not UTF-8, as its JSON escape: the store would change the character
    # itself, and the precondition would never again equal itself.
    return text.encode("utf-8", "backslashreplace").decode()
