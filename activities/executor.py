"""The executor: decode once, inject, run, and turn whatever happens into one result. It never decides.

What the model's mistakes, the tool's declared failures, crashes and timeouts become is written here and nowhere else.
Cancellation passes through: who cancelled, and what that means, is the activity's business.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import structlog
import svcs
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from temporalio.exceptions import ApplicationError

from activities.author_code import call_injected
from turngate.domain import contract, results
from turngate.domain.middleware import Invocation, Proceed
from turngate.domain.results import Failure, Ok, as_object
from turngate.domain.tool_context import ToolContext
from turngate.domain.tool_failures import InvalidToolInput, ToolFailure
from turngate.domain.tools import Tool

log = structlog.get_logger(__name__)


async def execute(tool: Tool, raw_input: str, ctx: ToolContext, services: svcs.Registry) -> Ok | Failure:
    """Run the tool's handler once, inside its middleware, and return its result.

    Raises:
        ApplicationError: ``tool_raised``, not retryable: a declared failure of a tool whose failure_mode is ``raise``.
        asyncio.CancelledError: passed on when somebody cancelled the call.
    """
    if tool.handler is None:
        return results.non_local(tool.name, tool.kind)
    try:
        params = tool.decode(raw_input)
    except InvalidToolInput as invalid:
        return results.invalid_input(str(invalid), invalid.problem)
    try:
        async with svcs.Container(services) as container, asyncio.timeout(tool.timeout.total_seconds()) as limit:
            value = await _invoked(tool, params, ctx, container)
    except tool.failures as declared:
        return _declared(tool, declared)
    except TimeoutError:
        if limit.expired():
            seconds = int(tool.timeout.total_seconds())
            return Failure(kind="timeout", reason=f"{tool.name!r} did not finish within {seconds} s and was stopped.")
        return _crashed(tool)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody cancelled the call: the tool gave up by itself, as libraries do whose own task group broke.
        return Failure(kind="cancelled", reason=f"{tool.name!r} cancelled itself before it had a result.")
    except (Exception, SystemExit):  # noqa: BLE001 - a crash of one tool is a result the model reads, never a failed run (I9)
        return _crashed(tool)
    try:
        return Ok(value=as_object(_encoded(tool, value)))
    except Exception:  # noqa: BLE001 - the same: the author's bug
        return _unshowable(tool)


async def _invoked(tool: Tool, params: Any, ctx: ToolContext, container: svcs.Container) -> Any:
    """Call the handler through its middleware: the last one applied is the outermost."""
    assert tool.handler is not None  # noqa: S101 - `execute` has looked
    proceed: Proceed = partial(call_injected, tool.handler, container, params=params, ctx=ctx)
    invocation = Invocation(tool_name=tool.name, params=params, ctx=ctx)
    for middleware in tool.middleware:
        proceed = partial(middleware, invocation, proceed)
    return await proceed()


def _encoded(tool: Tool, value: Any) -> Any:
    """Return the JSON value of what the handler returned.

    It is encoded as it is: validating it first would decode a second time what the handler has decoded already, and a
    type that parses text would choke on its own value (I7). Only what does not fit the type, such as a dict in place of
    a model, is validated. Through JSON text, because NaN has no place in a result.
    """
    try:
        return json.loads(tool.success.dump_json(value, warnings="error"))
    except PydanticSerializationError as mismatch:
        try:
            fitting = tool.success.validate_python(value)
        except ValidationError:
            raise mismatch from None
        return json.loads(tool.success.dump_json(fitting))


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


def _unshowable(tool: Tool) -> Failure:
    log.exception("tool returned what does not fit its declared success type", tool=tool.name)  # noqa: LOG004 - as above
    return Failure(
        kind="execution_error",
        reason=f"{tool.name!r} ran to its end, but what it returned does not fit its declared type and cannot be shown. "
        "This was logged. Its effects stand: do not repeat the call to get the result.",
    )
