"""One call of one tool without an engine: through the executor, with a context of its own."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import svcs

from turngate import Failure, Ok, Tool, ToolContext
from turngate.activities.execution.executor import Unknown, execute


async def run_tool(tool: Tool | None, **tool_input: Any) -> Ok | Failure | Unknown:
    assert tool is not None
    ctx = ToolContext(
        run_id="run_1",
        tool_call_id="call_1",
        idempotency_key="key_1",
        workspace=None,
        deadline=datetime.now(UTC) + timedelta(hours=1),
    )
    return await execute(tool, json.dumps(tool_input), ctx, svcs.Registry())


async def read_tool(tool: Tool | None, **tool_input: Any) -> dict[str, Any]:
    """Return the result's value, or a failure's kind, its message for the model (``reason``) and its fields."""
    result = await run_tool(tool, **tool_input)
    if isinstance(result, Ok):
        return result.value
    assert isinstance(result, Failure)
    return {**(result.fields or {}), "kind": result.kind, "message": result.reason}
