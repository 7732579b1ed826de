"""The executor: decode once, inject, run, and turn whatever happens into one result. It never decides.

What happens to the model's mistakes, a tool's declared failures, crashes and timeouts is decided here and nowhere else.
Cancellation passes through: who cancelled, and what that means, is up to the activity.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, Protocol

import structlog
import svcs
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from activities.engine.author_code import call_injected, in_own_task, is_from_outside
from turngate.domain.tools import results
from turngate.domain.tools.context import NoWorkspaceError, ToolContext
from turngate.domain.tools.failures import InvalidToolInput, ToolFailure
from turngate.domain.tools.middleware import Invocation, Proceed
from turngate.domain.tools.results import MAX_DEPTH, Failure, Ok, as_object, is_deeper
from turngate.domain.tools.tool import Tool
from turngate.store.storable import storable

log = structlog.get_logger(__name__)


class Reporter(Protocol):
    """Where crashes are reported: ``(what happened, the error, what it is about)``."""

    async def __call__(self, says: str, error: BaseException, **names: str) -> object:
        """Report a crash. The model gets none of it: an error's text may hold secrets."""


async def only_log(says: str, error: BaseException, **names: str) -> None:
    """Log a crash with its traceback."""
    log.error(says, exc_info=error, **names)


async def execute(
    tool: Tool, raw_input: str, ctx: ToolContext, services: svcs.Registry, report: Reporter = only_log
) -> Ok | Failure:
    """Run the tool's handler once, inside its middleware, and return its result. ``report``: gets its crash.

    Whether a declared failure also fails the run (``failure_mode="raise"``) is up to the activity.

    Raises:
        asyncio.CancelledError: passed on when the call was cancelled from outside.
    """
    if tool.handler is None:
        return results.non_local(tool.name, tool.kind)
    try:
        params = tool.decode(raw_input)
    except InvalidToolInput as invalid:
        return results.invalid_input(str(invalid), invalid.problem)
    limit = asyncio.timeout(tool.timeout.total_seconds())
    try:
        async with svcs.Container(services) as container, limit:
            value = await in_own_task(_invoke(tool, params, ctx, container))
    except tool.failures as declared:
        return await _declared_failure(tool, declared, report)
    except BaseException as crash:  # a crash of one tool is a result the model reads, never a failed run (I9)
        if is_from_outside(crash):
            raise
        return await _crash_failure(tool, crash, report, timed_out=limit.expired())
    try:
        return Ok(value=as_object(encode_success(tool, value)))
    except Exception as misfit:  # noqa: BLE001 - the same: the author's bug
        return await _unshowable(tool, misfit, report)


async def _invoke(tool: Tool, params: Any, ctx: ToolContext, container: svcs.Container) -> Any:
    """Call the handler through its middleware: the last one applied is the outermost."""
    handler = tool.handler
    assert handler is not None  # noqa: S101 - `execute` has looked
    started = False

    async def start() -> Any:
        nonlocal started
        if started and tool.effect == "once":  # I3 holds for middleware, too
            raise RuntimeError(
                f"middleware may not proceed twice: {tool.name!r} has effect 'once', and has been started"
            )
        started = True
        return await call_injected(handler, container, params=params, ctx=ctx)

    proceed: Proceed = start
    invocation = Invocation(tool_name=tool.name, params=params, ctx=ctx)
    for middleware in tool.middleware:
        proceed = partial(middleware, invocation, proceed)
    return await proceed()


async def _declared_failure(tool: Tool, declared: Exception, report: Reporter) -> Failure:
    assert isinstance(declared, ToolFailure)  # noqa: S101 - `failures` holds nothing else
    fields = json_of(declared.fields)
    if is_deeper(fields, MAX_DEPTH):
        return await _unshowable(tool, declared, report)
    reason = fields.get("reason") or fields.get("message")
    text = reason if isinstance(reason, str) else json.dumps(fields, ensure_ascii=False)
    # A subclass that was not declared gets the name of the class that was: the model knows no other, and a class that no one
    # reviewed must not use the engine's own words (`class Denied(RefundDeclined)`).
    kinds: dict[type, str] = {failure: failure.kind for failure in tool.failures}
    kind = next(kinds[each] for each in type(declared).__mro__ if each in kinds)
    return Failure(kind=kind, reason=text, fields=fields)


async def _crash_failure(tool: Tool, crash: BaseException, report: Reporter, *, timed_out: bool) -> Failure:
    if timed_out:  # whatever it raised while it was being stopped
        seconds = int(tool.timeout.total_seconds())
        return Failure(kind="timeout", reason=f"{tool.name!r} did not finish within {seconds} s and was stopped.")
    if isinstance(crash, asyncio.CancelledError):
        # No one cancelled the call: the tool cancelled itself, as libraries do whose own task group broke.
        return Failure(kind="cancelled", reason=f"{tool.name!r} cancelled itself before it had a result.")
    if isinstance(crash, NoWorkspaceError):  # ours, so its words hold no secret, and say the fix
        return Failure(kind="execution_error", reason=f"{tool.name!r} did not run: {crash.message}")
    await report("tool crashed", crash, tool=tool.name)
    return Failure(
        kind="execution_error", reason=f"{tool.name!r} crashed. This was logged; its arguments may be at fault."
    )


async def _unshowable(tool: Tool, misfit: Exception, report: Reporter) -> Failure:
    await report("tool returned what does not fit its declared success type", misfit, tool=tool.name)
    return Failure(
        kind="execution_error",
        reason=f"{tool.name!r} ran to its end, but what it returned does not fit its declared type and cannot be shown. "
        "This was logged. Its effects remain: do not repeat the call to get the result.",
    )


def encode_success(tool: Tool, value: Any) -> Any:
    """Return the JSON value of what the handler returned.

    It is encoded as it is: validating it first would decode a second time what the handler has decoded already, and a
    type that parses text would choke on its own value (I7). Only what does not fit the type, such as a dict in place of
    a model, is validated. It goes through JSON text, because a result must not hold NaN.

    Raises:
        Exception: it does not fit the type (pydantic's errors, or those of the author's own types), or nests deeper than
            every reader of a stored result can follow (ValueError).
    """
    if value is None:  # pydantic encodes it in place of anything; a handler that forgot its `return` is found here
        tool.success.validate_python(None)
    try:
        encoded = _read(tool.success.dump_json(value, warnings="error"))
    except PydanticSerializationError as mismatch:
        encoded = _second_try(tool, value, mismatch)
    if is_deeper(encoded, MAX_DEPTH):
        raise ValueError(f"the result nests deeper than {MAX_DEPTH} levels")
    return encoded


def _second_try(tool: Tool, value: Any, mismatch: PydanticSerializationError) -> Any:
    try:
        # A text with half a surrogate pair, from a file name that is not UTF-8, cannot be encoded; it is worth keeping.
        tree = tool.success.dump_python(value, mode="json", warnings="error")
    except PydanticSerializationError:
        pass
    else:
        return json_of(tree)
    try:
        fitting = tool.success.validate_python(value)
    except ValidationError:
        raise mismatch from None
    return _read(tool.success.dump_json(fitting))


def json_of(value: Any) -> Any:
    """Return a value that JSON can say, as it can be stored: without NaN, without halves of surrogate pairs."""
    return _read(storable(json.dumps(value, ensure_ascii=False)))


def _read(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=lambda _: None)  # a type may be configured to write NaN as such
