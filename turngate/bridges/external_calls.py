"""One program's tool calls at Turngate's gate: ask about several at once, wait for the answers, start, report.

Knows no framework, and stores nothing: any process that asks again about the same calls continues where the last one
stopped. Uses ``turngate.client`` alone, as the adapters do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError

from turngate.bridges.reports import Reports, ok_of, patiently
from turngate.client import TurngateClient
from turngate.client.external_calls import LONGEST_WAIT
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError, ConflictError
from turngate.domain.text.json_text import arguments_text
from turngate.domain.tools.external import ExternalMessage, ExternalTool, within_bounds
from turngate.domain.tools.failures import NothingHappened
from turngate.domain.tools.results import REFUSALS, Failure, Ok, outcome_unknown, wire_text
from turngate.domain.tools.tool import Effect
from turngate.readable_schema import readable
from turngate.wire.external_calls import ExternalCallView, ExternalStart, RunOrder
from turngate.wire.orders import ExternalCallOrder

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PLANNING_SECONDS: Final = 5.0
PLANNING_PAUSE_SECONDS: Final = 0.05
"""How long, and how often, we look for policy's verdict when the caller does not wait for a person."""
DEFAULT_TIMEOUT: Final = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class GatedCall:
    """A call as its framework has it. ``input``: its arguments, as JSON text. ``context``: what the model said with it.

    ``turn``: if the model repeats a call that a person rejected in this turn, under another id, the call is closed without
    asking (I12). Empty: the turn is unknown, and each call is judged alone. ``conversation``: what led to the call, oldest
    first, of any length (:func:`turngate.domain.tools.external.message` makes one); people see it as told by this program.
    """

    tool_call_id: str
    name: str
    input: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    context: str = ""
    turn: str = ""
    conversation: Sequence[ExternalMessage] = ()


@dataclass(frozen=True, kw_only=True)
class MayRun:
    """The call may run. ``edited_input``: the JSON text that runs instead of the model's; None: the model's own."""

    edited_input: str | None = None


@dataclass(frozen=True, kw_only=True)
class MayNotRun:
    """The call does not run. ``text``: for the model, with who refused and why."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Ran(Generic[Result]):
    """The call ran in this process. ``edited_input``: as of :class:`MayRun`."""

    result: Result
    edited_input: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The call has a result, but did not run here: an earlier process reported it, or a person stated it."""

    result: Ok | Failure

    @property
    def text(self) -> str:
        """What the model reads."""
        return self.result.reason if isinstance(self.result, Failure) else wire_text(self.result)


@dataclass(frozen=True)
class _Ending:
    """What is known of a call whose handler failed (I3). ``declared``: exceptions that say so themselves."""

    tool_name: str
    is_once: bool
    declared: tuple[type[Exception], ...]

    def failure(self, error: Exception) -> Failure:
        """Return an error as it is reported."""
        kind = "execution_error"
        if isinstance(error, self.declared):
            kind = "nothing_happened" if isinstance(error, NothingHappened) else "tool_failure"
        try:
            words = f": {error}"
        except Exception:  # noqa: BLE001 - a framework's error that can't be read has ended the call all the same
            words = ""
        return Failure(kind=kind, reason=f"{type(error).__name__}{words}")

    def unknown(self, reported: Ok | Failure) -> Settled | None:
        """Return what the model reads if no one knows whether the call happened; None: that is known, or it may be repeated."""
        if not (self.is_once and isinstance(reported, Failure) and reported.kind == "execution_error"):
            return None
        why = "It failed in a way that doesn't say. A person is asked what happened."
        return Settled(result=outcome_unknown(self.tool_name, why))


class ExternalCalls:
    """The calls of one program.

    Args:
        client: of the API.
        source: the program's name in policy and inbox.
        conversation: a prefix for the framework's ids; "" if they are unique across conversations.
        effects: tool name → what running it twice means; ``once`` for every other tool.
        timeout: from a call's start to its report.
    """

    def __init__(
        self,
        client: TurngateClient,
        *,
        source: str,
        conversation: str = "",
        effects: Mapping[str, Effect] | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._client = client
        self._source = source
        self._prefix = f"{conversation}:" if conversation else ""
        self._effects = effects or {}
        self._timeout = timeout
        self._reports = Reports(client)

    async def ask(self, call: GatedCall) -> str:
        """Ask whether a call may run, and return the id of its record. Asking again about the same call returns the same id.

        Raises:
            ConflictError: ``call_id_reused``: another call, or tool, was asked about under this id.
            ConfigurationError: the tool cannot be described to Turngate: for example its name, or a timeout over seven days.
        """
        try:
            tool = ExternalTool(
                name=call.name,
                description=(call.description or "")[:10_000],
                parameters=readable(call.parameters or {})[0],
                effect=self._effects.get(call.name, "once"),
                timeout_seconds=max(1, round(self._timeout.total_seconds())),
            )
        except ValidationError as error:
            wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
            raise ConfigurationError(f"tool {call.name!r} cannot be gated: {wrong}") from None
        order = ExternalCallOrder(
            source=self._source,
            tool_call_id=f"{self._prefix}{call.tool_call_id}",
            tool=tool,
            input=call.input,
            context=call.context[:20_000],
            # As a digest: frameworks' ids may be of any length.
            turn=framed_sha256(self._prefix, call.turn or f"call {call.tool_call_id}"),
            conversation=within_bounds(call.conversation),
        )
        return (await self._client.send_external_call(order)).id

    async def answers(self, calls: Sequence[str], *, wait: timedelta | None) -> dict[str, MayRun | MayNotRun]:
        """Return the answers to these calls, once all have one or ``wait`` is over (None: as long as it takes).

        Calls without an answer are left out. Policy's verdict is always waited for, unless it is to ask a person.
        Raises UnavailableError if the API was unreachable for two minutes.
        """
        until = None if wait is None else time.monotonic() + wait.total_seconds()
        planned_by = time.monotonic() + PLANNING_SECONDS
        answers = {call: await self._answer(call, until, planned_by) for call in calls}
        return {call: answer for call, answer in answers.items() if answer is not None}

    async def all_answers(self, calls: Sequence[str], *, wait: timedelta | None) -> dict[str, MayRun | MayNotRun]:
        """Return the answers to all these calls. Raises ConflictError ``undecided`` if ``wait`` is over first."""
        answers = await self.answers(calls, wait=wait)
        missing = [call for call in calls if call not in answers]
        if missing:
            raise ConflictError(f"{len(missing)} calls are not decided yet: ask again", code="undecided", calls=missing)
        return answers

    async def run(
        self,
        call: str,
        handler: Callable[[RunOrder], Awaitable[Result]],
        *,
        to_report: Callable[[Result], Ok | Failure],
        declared: tuple[type[Exception], ...] = (),
    ) -> Ran[Result] | Settled:
        """Start a call when Turngate allows it, and report its result.

        Waits while the call may not start: a person has not answered, or another process started a call that must not run
        twice and has not reported yet. If that process never reports, a person says what happened.

        If the handler raises, the error is reported as a failure and raised again. But of a call that must not run twice no one
        knows then whether it happened: the error is logged, a person is asked, and the model reads that it may have happened.
        Known is only what raises NothingHappened, or an exception of ``declared``. A handler that is cancelled is reported as
        unknown, too, and the cancellation continues. A report that takes long or fails holds up no result: see
        :class:`turngate.bridges.reports.Reports`.

        ``to_report``: turns the handler's result into the one that is reported; a failure of kind ``execution_error`` counts as
        raised, and so does what this raises. ``declared``: exceptions with which the framework's tools say how their call failed.
        """
        attempt = secrets.token_hex(16)
        while True:
            try:
                started = await self._start(call, attempt)
            except ConflictError as refused:
                if refused.error_code not in {"not_ready", "already_started"}:
                    raise
            else:
                if started.run is not None:
                    ending = _Ending(
                        started.run.tool_name,
                        is_once=started.call.effect == "once",
                        declared=(NothingHappened, *declared),
                    )
                    return await self._run(call, attempt, started.run, handler, to_report, ending)
                if started.call.result is not None:
                    return Settled(result=started.call.result)
            await patiently(lambda: self._client.get_external_call(call, wait=LONGEST_WAIT))

    async def _start(self, call: str, attempt: str) -> ExternalStart:
        """Start a call. If we are cancelled before we know whether it may run, it never does, and that is reported."""
        start = asyncio.create_task(patiently(lambda: self._client.start_external_call(call, attempt=attempt)))
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            await self._reports.send_unstarted(call, attempt, start)
            raise

    async def _run(
        self,
        call: str,
        attempt: str,
        order: RunOrder,
        handler: Callable[[RunOrder], Awaitable[Result]],
        to_report: Callable[[Result], Ok | Failure],
        ending: _Ending,
    ) -> Ran[Result] | Settled:
        try:
            result = await handler(order)
            reported = to_report(result)
        except asyncio.CancelledError:
            if ending.is_once:  # another call may continue in another process
                await self._reports.send(call, attempt, None, deadline_at=order.deadline_at)
            raise
        except Exception as error:
            failure = ending.failure(error)
            await self._reports.send(call, attempt, failure, deadline_at=order.deadline_at)
            unknown = ending.unknown(failure)
            if unknown is None:
                raise
            logger.warning("call %s of %s failed, and may have happened", call, order.tool_name, exc_info=True)
            return unknown
        await self._reports.send(call, attempt, reported, deadline_at=order.deadline_at)
        return ending.unknown(reported) or Ran(result=result, edited_input=order.input if order.edited else None)

    async def _answer(self, call: str, until: float | None, planned_by: float) -> MayRun | MayNotRun | None:
        while True:
            left = LONGEST_WAIT if until is None else until - time.monotonic()
            wait = max(0, min(LONGEST_WAIT, math.ceil(left)))
            view = await patiently(lambda: self._client.get_external_call(call, wait=wait))  # noqa: B023 - awaited here
            answer = _answer_in(view)
            if answer is not None:
                return answer
            if left <= 0 and (view.state != "planning" or time.monotonic() > planned_by):
                return None
            if left <= 0:
                await asyncio.sleep(PLANNING_PAUSE_SECONDS)


def _answer_in(call: ExternalCallView) -> MayRun | MayNotRun | None:
    """Return whether a call may run, or None if that is not decided.

    A call with a result that is no refusal may run, although it ran before: starting it returns that result.
    """
    if call.state in {"planning", "waiting"}:
        return None
    if isinstance(call.result, Failure) and call.result.kind in REFUSALS:
        return MayNotRun(text=call.result.reason)
    return MayRun(edited_input=call.edited_input)


class OtherArgumentsError(ConflictError, NothingHappened):
    """The call was approved with other arguments than it would run with, so nothing ran."""

    def __init__(self) -> None:
        ConflictError.__init__(self, "the call was approved with other arguments: nothing ran", code="other_arguments")


def fits(order: RunOrder, arguments: Mapping[str, Any]) -> None:
    """Check that these arguments are the approved ones. Raises OtherArgumentsError if not: the call must not run."""
    if json.loads(arguments_text(order.input)) != arguments:
        raise OtherArgumentsError


def text_with_note(result: Any, edited_input: str) -> str:
    """Return a result as the model reads it after an edit: with a note that says what ran (I6)."""
    return wire_text(ok_of(result), edited_input=edited_input)
