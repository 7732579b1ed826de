"""The executor: decode once, inject, run, and turn whatever happens into one result. It never decides.

What the model's mistakes, the tool's declared failures, crashes and timeouts become is written here and nowhere else.
Cancellation passes through: who cancelled, and what that means, is the activity's business.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import structlog
import svcs
from pydantic import BaseModel
from temporalio.exceptions import ApplicationError

from turngate.domain import contract, results
from turngate.domain.results import Failure, Ok, as_object
from turngate.domain.tools import InvalidToolInput, Tool, ToolContext, ToolFailure

log = structlog.get_logger(__name__)


async def execute(tool: Tool, raw_input: str, ctx: ToolContext, services: svcs.Registry) -> Ok | Failure:
    """Run the tool's handler once and return its result.

    Raises:
        ApplicationError: ``tool_raised``, not retryable: a declared failure of a tool whose failure_mode is ``raise``.
        asyncio.CancelledError: passed on.
    """
    if tool.handler is None:
        return Failure(kind="non_local_tool", reason=f"{tool.name!r} is declared, but nothing here can run it.")
    try:
        params = tool.decode(raw_input)
    except InvalidToolInput as problem:
        return results.invalid_input(str(problem))
    try:
        async with svcs.Container(services) as container, asyncio.timeout(tool.timeout.total_seconds()) as limit:
            value = await tool.handler(**await _arguments(tool, params, ctx, container))
            return Ok(value=as_object(tool.success.dump_python(tool.success.validate_python(value), mode="json")))
    except tool.failures as declared:
        return _declared(tool, declared)
    except TimeoutError:
        if limit.expired():
            seconds = int(tool.timeout.total_seconds())
            return Failure(kind="timeout", reason=f"{tool.name!r} did not finish within {seconds} s and was stopped.")
        return _crashed(tool)
    except Exception:  # noqa: BLE001 - a crash of one tool is a result the model reads, never a failed run (I9)
        return _crashed(tool)


async def _arguments(
    tool: Tool, params: BaseModel | None, ctx: ToolContext, container: svcs.Container
) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if tool.params_name is not None:
        arguments[tool.params_name] = params
    if tool.ctx_name is not None:
        arguments[tool.ctx_name] = ctx
    for name, service in tool.services:
        arguments[name] = await container.aget(service)
    return arguments


def _declared(tool: Tool, declared: Exception) -> Failure:
    assert isinstance(declared, ToolFailure)  # noqa: S101 - `failures` holds nothing else
    if tool.failure_mode == "raise":
        raise ApplicationError(
            f"tool {tool.name!r} failed: {declared.kind} {declared}",
            "tool_raised",
            type=contract.ERROR_TOOL_RAISED,
            non_retryable=True,
        ) from declared
    reason = declared.fields.get("reason") or declared.fields.get("message")
    text = reason if isinstance(reason, str) else json.dumps(declared.fields, ensure_ascii=False)
    return Failure(kind=declared.kind, reason=text, fields=declared.fields)


def _crashed(tool: Tool) -> Failure:
    """The operator's log gets the traceback; the model gets the type, not the message (it may hold secrets)."""
    log.exception("tool crashed", tool=tool.name)  # noqa: LOG004 - every caller is an except block
    return Failure(
        kind="execution_error", reason=f"{tool.name!r} crashed. This was logged; its arguments may be at fault."
    )
