"""The executor: decode once, inject, run, and turn whatever happens into one result. It never decides.

What happens to the model's mistakes, a tool's declared failures, crashes and timeouts is decided here and nowhere else: whether
a call failed, or no one knows whether it happened (I3).
Cancellation passes through: who cancelled, and what that means, is up to the activity.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import structlog
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from turngate.activities.engine.author_code import (
    ServiceError,
    call_injected,
    in_own_task,
    is_from_outside,
    what_failed,
)
from turngate.domain.conversation.clipping import MAX_WHOLE_CHARS, excerpt_of_unkeepable
from turngate.domain.text.sentences import as_sentence
from turngate.domain.tools import results
from turngate.domain.tools.context import NoWorkspaceError, ToolContext
from turngate.domain.tools.defaults import Defaults
from turngate.domain.tools.failures import (
    MAX_REASON_CHARS,
    InvalidToolInput,
    NothingHappened,
    OutcomeUnknown,
    ToolFailure,
)
from turngate.domain.tools.middleware import Invocation, Middleware, Proceed, Snapshot
from turngate.domain.tools.results import MAX_DEPTH, Failure, Ok, as_object, is_deeper
from turngate.domain.tools.tool import Tool
from turngate.runtime.services import svcs
from turngate.store.storable import storable

log = structlog.get_logger(__name__)


class Reporter(Protocol):
    """Where crashes are reported: ``(what happened, the error, what it is about)``."""

    async def __call__(self, says: str, error: BaseException, **names: str) -> object:
        """Report a crash. The model gets none of it: an error's text may hold secrets."""


async def only_log(says: str, error: BaseException, **names: str) -> None:
    """Log a crash with its traceback."""
    log.error(says, exc_info=error, **names)


@dataclass(frozen=True)
class Unknown:
    """A ``once`` call whose handler started, and whose end doesn't say whether it took effect (I3).

    ``why``: how it ended, in a sentence for people and the model.
    """

    why: str


class ChangedCallError(Exception):
    """Middleware changed a call's arguments and proceeded. ``by``: its name. ``place``: of the change; empty: all of them."""

    def __init__(self, by: str, place: str) -> None:
        what = f"its argument {place!r}" if place else "its arguments"
        self.words = f"middleware {by} changed {what}, and only what was shown and allowed may run"
        super().__init__(self.words)


@dataclass
class _Start:
    """Whether the handler of a call has started. From then on, an end that says nothing leaves its outcome unknown.

    ``refusal``: why it must not start; what middleware makes of it doesn't count.
    """

    tool: Tool
    has_started: bool = False
    refusal: ChangedCallError | None = None

    def begin(self) -> None:
        """Note that the handler starts. Raises RuntimeError when it must not start twice."""
        if self.has_started and self.tool.effect == "once":  # I3 holds for middleware, too
            name = self.tool.name
            raise RuntimeError(f"middleware may not proceed twice: {name!r} has effect 'once', and has been started")
        self.has_started = True

    @property
    def refused(self) -> ChangedCallError | None:
        """Why the handler has not started, if it must not."""
        return None if self.has_started else self.refusal


async def execute(
    tool: Tool,
    raw_input: str,
    ctx: ToolContext,
    services: svcs.Registry,
    report: Reporter = only_log,
    *,
    defaults: Defaults = (),
) -> Ok | Failure | Unknown:
    """Run the tool's handler once, inside its middleware, and return its result. ``report``: gets its crash.

    ``defaults``: what the arguments leave out, as it is on record.

    Unknown: the handler of a ``once`` call started, and ended neither with a result nor with a declared failure nor with
    NothingHappened. Whether a declared failure also fails the run (``failure_mode="raise"``) is up to the activity.

    Raises:
        asyncio.CancelledError: passed on when the call was cancelled from outside.
    """
    if tool.handler is None:
        return results.non_local(tool.name, tool.kind)
    try:
        params = tool.decode(raw_input, defaults)
    except InvalidToolInput as invalid:
        return results.invalid_input(str(invalid), invalid.problem)
    limit, start = asyncio.timeout(tool.timeout.total_seconds()), _Start(tool)
    decode = partial(tool.decode, raw_input, defaults)
    try:
        async with svcs.Container(services) as container, limit:
            value = await in_own_task(_invoke(params, decode, ctx, container, start))
    except BaseException as raised:  # a crash of one tool is a result the model reads, never a failed run (I9)
        if is_from_outside(raised):
            raise
        return await _raised(
            tool, start.refused or raised, report, started=start.has_started, timed_out=limit.expired()
        )
    try:
        return Ok(value=as_object(encode_success(tool, value)))
    except Exception as misfit:  # noqa: BLE001 - the same: the author's bug
        await report("tool returned what does not fit its declared success type", misfit, tool=tool.name)
    unshowable = (
        "ran to its end, but what it returned does not fit its declared type and cannot be shown. This was logged."
    )
    if tool.effect == "once":
        return Unknown(f"It {unshowable}")
    remains = "Its effects remain: do not repeat the call to get the result."
    return Failure(kind="execution_error", reason=f"{tool.name!r} {unshowable} {remains}")


async def _invoke(
    params: Any, decode: Callable[[], Any], ctx: ToolContext, container: svcs.Container, start: _Start
) -> Any:
    """Call the handler through its middleware: the last one applied is the outermost.

    Each start of the handler gets arguments that no one else has seen (``decode``), so middleware can't change them, not even
    while it runs (I6).
    """
    tool, handler = start.tool, start.tool.handler
    assert handler is not None  # noqa: S101 - `execute` has looked
    if not tool.middleware:
        return await call_injected(handler, container, params=params, ctx=ctx, starting=start.begin)

    async def proceed() -> Any:
        return await call_injected(handler, container, params=decode(), ctx=ctx, starting=start.begin)

    invocation, before = Invocation(tool_name=tool.name, params=params, ctx=replace(ctx)), Snapshot.of(params)

    def around(middleware: Middleware, inner: Proceed) -> Proceed:
        async def proceed_unchanged() -> Any:
            place = before.change(Snapshot.of(invocation.params))
            if place is not None:
                start.refusal = ChangedCallError(_name_of(middleware), place)
                raise start.refusal
            return await inner()

        return partial(middleware, invocation, proceed_unchanged)

    outermost: Proceed = proceed
    for middleware in tool.middleware:
        outermost = around(middleware, outermost)
    value = await outermost()
    if start.refused is not None:
        raise start.refused
    return value


def _name_of(middleware: Middleware) -> str:
    named = middleware if hasattr(middleware, "__qualname__") else type(middleware)
    return f"{named.__module__}.{named.__qualname__}"


async def _raised(
    tool: Tool, raised: BaseException, report: Reporter, *, started: bool, timed_out: bool
) -> Failure | Unknown:
    """Return the end of a call that raised: what it says itself counts, whatever happened before."""
    if isinstance(raised, tool.failures):
        return await _declared_failure(tool, raised, report)
    match raised:
        case NothingHappened():
            words = _words(raised)
            nothing = f"{tool.name!r} changed nothing"
            return Failure(kind="nothing_happened", reason=f"{nothing}: {words}" if words else f"{nothing}.")
        case OutcomeUnknown():
            return _unknown(tool, _words(raised))
        case NoWorkspaceError() if tool.effect == "once" and started:
            return Unknown(f"It failed because {raised.message}.")
        case NoWorkspaceError():  # ours, so its words hold no secret, and say the fix
            return Failure(kind="execution_error", reason=f"{tool.name!r} did not run: {raised.message}")
        case _ if not started:
            return await _never_started(tool, raised, report, timed_out=timed_out)
        case _:
            return await _crashed(tool, raised, report, timed_out=timed_out)


def _unknown(tool: Tool, why: str) -> Failure | Unknown:
    """Return the end of a call whose own code says that it doesn't know; one that may be repeated has a plain failure."""
    why = as_sentence(why[:MAX_REASON_CHARS]) or f"{tool.name!r} says that it doesn't know."
    return Unknown(why) if tool.effect == "once" else Failure(kind="unknown", reason=why)


def _words(raised: NothingHappened | OutcomeUnknown) -> str:
    """Return what the author's exception says. It may hold anything, such as an exception, or something that can't be read."""
    try:
        return storable(str(raised.reason))[:MAX_REASON_CHARS]
    except Exception:  # noqa: BLE001 - what it means is known all the same
        return ""


async def _declared_failure(tool: Tool, declared: Exception, report: Reporter) -> Failure:
    assert isinstance(declared, ToolFailure)  # noqa: S101 - `failures` holds nothing else
    # A subclass that was not declared gets the name of the class that was: the model knows no other, and a class that no one
    # reviewed must not use the engine's own words (`class Denied(RefundDeclined)`).
    kinds: dict[type, str] = {failure: failure.kind for failure in tool.failures}
    kind = next(kinds[each] for each in type(declared).__mro__ if each in kinds)
    try:
        values = dict(declared.fields)
        fields = _shallow(json_of(values))
    except Exception as misfit:  # noqa: BLE001 - the author's bug; that it failed, and how, is known all the same
        await report("tool failed with what can't be shown", misfit, tool=tool.name)
        return Failure(kind=kind, reason=f"{tool.name!r} failed, and its details can't be shown. This was logged.")
    reason = values.get("reason") or values.get("message")
    text = storable(reason) if isinstance(reason, str) else json.dumps(fields, ensure_ascii=False)
    return Failure(kind=kind, reason=text[:MAX_REASON_CHARS], fields=fields)


async def _never_started(tool: Tool, crash: BaseException, report: Reporter, *, timed_out: bool) -> Failure:
    """Return the failure of a call that ended before its handler started: in a service, or in middleware."""
    nothing = f"{tool.name!r} did not run, so nothing happened:"
    if timed_out:
        seconds = int(tool.timeout.total_seconds())
        return Failure(kind="timeout", reason=f"{nothing} its services and middleware took longer than {seconds} s.")
    await report("tool did not start", crash, tool=tool.name)
    match crash:
        case ServiceError():
            why = what_failed(crash)
        case ChangedCallError():
            why = crash.words
        case _:
            why = f"its middleware failed ({type(crash).__name__})"
    return Failure(kind="execution_error", reason=f"{nothing} {why}. This was logged.")


async def _crashed(tool: Tool, crash: BaseException, report: Reporter, *, timed_out: bool) -> Failure | Unknown:
    """Return how a call ended whose handler had started and brought neither a result nor a failure that its tool declares."""
    once, seconds = tool.effect == "once", int(tool.timeout.total_seconds())
    if timed_out:  # whatever it raised while it was being stopped
        stopped = f"did not finish within {seconds} s and was stopped."
        return Unknown(f"It {stopped}") if once else Failure(kind="timeout", reason=f"{tool.name!r} {stopped}")
    if isinstance(crash, asyncio.CancelledError):
        # No one cancelled the call: the tool cancelled itself, as libraries do whose own task group broke.
        itself = "cancelled itself before it had a result."
        return Unknown(f"It {itself}") if once else Failure(kind="cancelled", reason=f"{tool.name!r} {itself}")
    await report("tool crashed", crash, tool=tool.name)
    if once:
        return Unknown(f"It failed with {type(crash).__name__}, which its tool does not declare. This was logged.")
    return Failure(kind="execution_error", reason=f"{tool.name!r} crashed. This was logged.")


def encode_success(tool: Tool, value: Any) -> Any:
    """Return the JSON value of what the handler returned.

    It is encoded as it is: validating it first would decode a second time what the handler has decoded already, and a
    type that parses text would choke on its own value (I7). Only what does not fit the type, such as a dict in place of
    a model, is validated. It goes through JSON text, because a result must not hold NaN or infinity: those become texts.
    Of a value whose text is larger than any that is kept, there are the head and the tail with the digest of the text.

    Raises:
        Exception: it does not fit the type (pydantic's errors, or those of the author's own types), or nests deeper than
            every reader of a stored result can follow (ValueError).
    """
    if value is None:  # pydantic encodes it in place of anything; a handler that forgot its `return` is found here
        tool.success.validate_python(None)
    try:
        encoded = _encoded(tool, value)
    except PydanticSerializationError as mismatch:
        encoded = _second_try(tool, value, mismatch)
    return _shallow(encoded)


def _shallow(encoded: Any) -> Any:
    if is_deeper(encoded, MAX_DEPTH):
        raise ValueError(f"it nests deeper than {MAX_DEPTH} levels")
    return encoded


def _second_try(tool: Tool, value: Any, mismatch: PydanticSerializationError) -> Any:
    try:
        # A text with half a surrogate pair, from a file name that is not UTF-8, cannot be encoded; it is worth keeping.
        tree = tool.success.dump_python(value, mode="json", warnings="error")
    except PydanticSerializationError:
        pass
    else:
        return json_of(_with_numbers(tree, tool.success.dump_python(value)))
    try:
        fitting = tool.success.validate_python(value)
    except ValidationError:
        raise mismatch from None
    return _encoded(tool, fitting)


def _encoded(tool: Tool, value: Any) -> Any:
    """Return what pydantic writes of a value. Where it writes null for NaN or infinity, as by default, there is a text."""
    text = tool.success.dump_json(value, warnings="error")
    read = _read(text.decode())
    has_null = b"null" in text and len(text) <= MAX_WHOLE_CHARS
    return _with_numbers(read, tool.success.dump_python(value)) if has_null else read


def _with_numbers(encoded: Any, value: Any) -> Any:
    """Return JSON with the numbers that JSON can't say as texts, in place of nulls. ``value``: what was encoded."""
    match encoded:
        case None if isinstance(value, float) and not math.isfinite(value):
            return json.dumps(value)
        case dict() if isinstance(value, dict) and len(value) == len(encoded):
            pairs = zip(encoded.items(), value.values(), strict=True)
            return {name: _with_numbers(each, of_it) for (name, each), of_it in pairs}
        case list() if isinstance(value, list | tuple | set | frozenset | deque) and len(value) == len(encoded):
            return [_with_numbers(*both) for both in zip(encoded, value, strict=True)]
        case _:
            return encoded


def json_of(value: Any) -> Any:
    """Return a value that JSON can say, as it can be stored: NaN and infinity as texts, without halves of surrogate pairs."""
    return _read(storable(json.dumps(value, ensure_ascii=False)))


def _read(text: str) -> Any:
    """Return the value of a JSON text; of one that is larger than may be kept, a part, made without building the value.

    Building and walking a value of tens of millions of elements takes so long that the worker would seem lost.
    """
    if len(text) > MAX_WHOLE_CHARS:
        return excerpt_of_unkeepable(text)
    return json.loads(text, parse_constant=str)  # a type may be configured to write NaN, which is no number of JSON
