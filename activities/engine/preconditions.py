"""Preconditions: what a call depends on, taken when a person is asked about it and again before it starts."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import svcs

from turngate.activities.engine import author_code
from turngate.activities.engine.author_code import await_author, call_injected
from turngate.activities.engine.engine import Engine
from turngate.domain.crashes import report_crash
from turngate.domain.digest import idempotency_key
from turngate.domain.tools.context import ToolContext
from turngate.domain.tools.tool import Tool
from turngate.store.clock import now
from turngate.store.runs import runs


async def precondition(engine: Engine, tool: Tool, params: Any, run: runs.Run, tool_call_id: str) -> str | None:
    """Return what the call depends on, as canonical JSON; None when its tool has none. Raises what the author's does."""
    if tool.precondition is None:
        return None
    ctx = ToolContext(
        run_id=run.id,
        tool_call_id=tool_call_id,
        idempotency_key=idempotency_key(run.id, tool_call_id),
        workspace=None if run.workspace is None else Path(run.workspace),
        deadline=now() + timedelta(seconds=author_code.AUTHOR_SECONDS),
    )
    async with svcs.Container(engine.services) as container:
        answer = call_injected(tool.precondition, container, params=params, ctx=ctx)
        value = await await_author(answer, seconds=author_code.AUTHOR_SECONDS)
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    # Half a surrogate pair, from a file name that is not UTF-8, as its JSON escape: the store would change the character
    # itself, and the precondition would never again equal itself.
    return text.encode("utf-8", "backslashreplace").decode()


async def precondition_or_failure(
    engine: Engine, tool: Tool, params: Any, run: runs.Run, tool_call_id: str
) -> str | None:
    """As :func:`precondition`; a failure is returned as a value, which differs from any precondition taken later."""
    try:
        return await precondition(engine, tool, params, run, tool_call_id)
    except Exception as error:  # noqa: BLE001 - reported, with its traceback
        report_crash("precondition failed", error, tool=tool.name)
        return json.dumps({"precondition_failed": type(error).__name__})
