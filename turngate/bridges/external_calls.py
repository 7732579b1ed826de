"""One program's tool calls at Turngate's gate: ask about several at once, wait for the answers, start, report.

Knows no framework, and keeps nothing: whatever process asks again about the same calls goes on where the last one was.
Stands on ``turngate.client`` alone, as the adapters that use it do.
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
from pydantic_core import to_json

from turngate.client import TurngateClient
from turngate.client.external_calls import LONGEST_WAIT
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError, ConflictError, TurngateError, UnavailableError
from turngate.domain.tools.external import ExternalTool
from turngate.domain.tools.results import REFUSALS, Failure, Ok, as_object, wire_text
from turngate.domain.tools.tool import Effect
from turngate.wire.external_calls import ExternalCallView, RunOrder

Result = TypeVar("Result")
Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)

GIVE_UP_SECONDS: Final = 120.0
"""How long nobody may answer at the API before waiting is given up: long enough for a restart of the server."""
PAUSE_SECONDS: Final = 1.0
PLANNING_SECONDS: Final = 5.0
PLANNING_PAUSE_SECONDS: Final = 0.05
"""How often, and how long at most, policy's own answer is looked for where no other is waited for."""
DEFAULT_TIMEOUT: Final = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class MayRun:
    """The call may run. ``edited_input``: the JSON text that runs in place of the model's; None: the model's own."""

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
    """The call has a result, and did not run here: an earlier process reported it, or a person said it."""

    result: Ok | Failure

    @property
    def text(self) -> str:
        """What the model reads."""
        return self.result.reason if isinstance(self.result, Failure) else wire_text(self.result)


class ExternalCalls:
    """The calls of one program.

    Args:
        client: of the API.
        source: the program's name in policy and inbox.
        conversation: put before each id that a framework gave; "" where those are unique among all conversations.
        effects: tool name → what running it twice means; of others it is ``once``.
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

    async def ask(
        self,
        tool_call_id: str,
        *,
        name: str,
        input: str,  # noqa: A002 - the API's word
        description: str | None,
        parameters: Mapping[str, Any] | None,
        context: str = "",
        turn: str = "",
    ) -> str:
        """Ask whether a call may run, and return the id of its record; the same call again gets the same one.

        ``turn``: what a person rejected in it is closed, unasked, when the model calls it again under another id (I12). Empty:
        nobody knows the turn, and each call stands for itself.

        Raises:
            ConflictError: ``call_id_reused``: another call, or tool, was asked about under this id.
            ConfigurationError: the tool cannot be told to Turngate: its name, say, or a timeout over seven days.
        """
        try:
            tool = ExternalTool(
                name=name,
                description=(description or "")[:10_000],
                parameters=dict(parameters or {"type": "object"}),
                effect=self._effects.get(name, "once"),
                timeout_seconds=max(1, round(self._timeout.total_seconds())),
            )
        except ValidationError as error:
            wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
            raise ConfigurationError(f"tool {name!r} cannot be put behind the gate: {wrong}") from None
        call = await self._client.send_external_call(
            source=self._source,
            tool_call_id=f"{self._prefix}{tool_call_id}",
            tool=tool,
            raw_input=input,
            context=context[:20_000],
            # As a digest: frameworks' ids may be of any length.
            turn=framed_sha256(self._prefix, turn or f"call {tool_call_id}"),
        )
        return call.id

    async def answers(self, calls: Sequence[str], *, wait: timedelta | None) -> dict[str, MayRun | MayNotRun]:
        """Return what was answered to these calls, once all are or ``wait`` is over; None: as long as it takes.

        Calls without an answer are left out; policy's own answer is waited for in any case, as long as it takes no person.
        Raises UnavailableError when the API was away for two minutes.
        """
        until = None if wait is None else time.monotonic() + wait.total_seconds()
        planned_by = time.monotonic() + PLANNING_SECONDS
        found = {call: await self._answer(call, until, planned_by) for call in calls}
        return {call: answer for call, answer in found.items() if answer is not None}

    async def all_answers(self, calls: Sequence[str], *, wait: timedelta | None) -> dict[str, MayRun | MayNotRun]:
        """Return the answers to all these calls. Raises ConflictError ``undecided`` when ``wait`` is over before."""
        found = await self.answers(calls, wait=wait)
        if missing := [call for call in calls if call not in found]:
            raise ConflictError(f"{len(missing)} calls are not decided yet: ask again", code="undecided", calls=missing)
        return found

    async def run(
        self, call: str, handler: Callable[[RunOrder], Awaitable[Result]], *, told: Callable[[Result], Ok | Failure]
    ) -> Ran[Result] | Settled:
        """Start a call with Turngate's leave, and report its result as ``told`` reads it.

        Waits while the call may not start: a person has not answered, or another process has started a call that must not
        run twice, and has not reported yet; when the time for that is over a person says what came of it.

        What the handler raises is reported as a failure, and raised. A report that is not taken is logged, and the result
        stands: the call then counts as lost when its time is over.
        """
        attempt = secrets.token_hex(16)
        while True:
            try:
                started = await patiently(lambda: self._client.start_external_call(call, attempt=attempt))
            except ConflictError as refused:
                if refused.error_code not in {"not_ready", "already_started"}:
                    raise
            else:
                if started.run is not None:
                    return await self._run(call, attempt, started.run, handler, told)
                if started.call.result is not None:
                    return Settled(result=started.call.result)
            await patiently(lambda: self._client.get_external_call(call, wait=LONGEST_WAIT))

    async def _run(
        self,
        call: str,
        attempt: str,
        order: RunOrder,
        handler: Callable[[RunOrder], Awaitable[Result]],
        told: Callable[[Result], Ok | Failure],
    ) -> Ran[Result]:
        try:
            result = await handler(order)
        except Exception as error:
            failure = Failure(kind="execution_error", reason=f"{type(error).__name__}: {error}")
            await self._report(call, attempt, failure)
            raise
        await self._report(call, attempt, told(result))
        return Ran(result=result, edited_input=order.input if order.edited else None)

    async def _report(self, call: str, attempt: str, result: Ok | Failure) -> None:
        try:
            await patiently(lambda: self._client.report_external_call(call, attempt=attempt, result=result))
        except TurngateError:
            logger.warning("what call %s came to could not be reported; it ran", call, exc_info=True)

    async def _answer(self, call: str, until: float | None, planned_by: float) -> MayRun | MayNotRun | None:
        while True:
            left = LONGEST_WAIT if until is None else until - time.monotonic()
            wait = max(0, min(LONGEST_WAIT, math.ceil(left)))
            view = await patiently(lambda: self._client.get_external_call(call, wait=wait))  # noqa: B023 - awaited here
            if (answer := _answer_in(view)) is not None:
                return answer
            if left <= 0 and (view.state != "planning" or time.monotonic() > planned_by):
                return None
            if left <= 0:
                await asyncio.sleep(PLANNING_PAUSE_SECONDS)


async def patiently(send: Callable[[], Awaitable[Answer]]) -> Answer:
    """Send again while nobody answers: a person may take days, and the API is restarted meanwhile."""
    away_since: float | None = None
    while True:
        try:
            return await send()
        except UnavailableError:
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > GIVE_UP_SECONDS:
                raise
        await asyncio.sleep(PAUSE_SECONDS)


def _answer_in(call: ExternalCallView) -> MayRun | MayNotRun | None:
    """Whether a call may run; None: nobody has said.

    One that has a result and was not refused may, though it ran or failed before: at the door that result waits for it.
    """
    if call.state in {"planning", "waiting"}:
        return None
    if isinstance(call.result, Failure) and call.result.kind in REFUSALS:
        return MayNotRun(text=call.result.reason)
    return MayRun(edited_input=call.edited_input)


def fits(order: RunOrder, arguments: Mapping[str, Any]) -> None:
    """Make sure that these arguments are what was approved. Raises ConflictError: they are others, and must not run."""
    if json.loads(order.input or "{}") != arguments:
        raise ConflictError("the call was approved with other arguments meanwhile: nothing ran", code="other_arguments")


def ok_of(value: Any) -> Ok:
    """Return what a tool returned as a result to report; what is not JSON becomes its text."""
    text = to_json(value, fallback=str, bytes_mode="base64", inf_nan_mode="strings")
    return Ok(value=as_object(json.loads(text)))


def noted(result: Any, edited_input: str) -> str:
    """Return a result as the model reads it after an edit: with a note of what ran (I6)."""
    return wire_text(ok_of(result), edited_input=edited_input)
