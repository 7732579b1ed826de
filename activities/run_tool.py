"""Activity ``run_tool``: redeem, run the handler, store its result. Nothing reaches a tool by another way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal, assert_never

import structlog
from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from turngate.activities.call_model import CallModel
from turngate.activities.engine.author_code import MOST_VIEWS_OVERDUE, await_author, in_own_thread
from turngate.activities.engine.engine import Engine, OrderLock
from turngate.activities.engine.error_log import Where, keeping_crashes, quoted, report
from turngate.activities.engine.heartbeats import heartbeating
from turngate.activities.engine.lost_workers import judging
from turngate.activities.execution.checks import redeem
from turngate.activities.execution.door import Door
from turngate.activities.execution.executor import Reporter, Unknown, execute
from turngate.activities.execution.lost_calls import note_orderly_stop, waiting_resolution
from turngate.activities.execution.preflight import Findings, Inspection, inspect
from turngate.activities.execution.progress import reporting
from turngate.activities.execution.redemption import (
    AskAgain,
    Decided,
    Delegated,
    Redeemed,
    Settled,
    Stopped,
    UnknownEnd,
    Waits,
)
from turngate.activities.execution.settlement import CallResult, end_payload, finish, run_failure
from turngate.activities.runs.step_boundary import StepStart
from turngate.domain import contract
from turngate.domain.agents.hooks import HookedCall, RunScope
from turngate.domain.contract import RunToolInput, RunToolResult
from turngate.domain.conversation.clipping import READ_RESULT, shortened
from turngate.domain.crashes import report_crash
from turngate.domain.errors import UnavailableError
from turngate.domain.tools.context import ToolContext
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.presentation import PRESENTATION
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.secrets import mask_text, masked_strings
from turngate.runtime import telemetry
from turngate.store.clock import now
from turngate.store.events import events
from turngate.store.runs import calls, executions

log = structlog.get_logger(__name__)

Recorded = StepStart | Literal["alone", "late"]
"""A stored result: with the close of its step, so that the next one begins; alone; or too late to be the call's."""

RECORD_PAUSE_SECONDS = 0.5
STOP_SECONDS = 5.0
"""How long the author's code may take to say what an interrupted call did: its run waits to end."""
UNSTORED = "It ran to its end, but its result could not be stored. This was logged."
INTERRUPTED = "The run was interrupted while it ran, and it was stopped."
MAX_INSPECTIONS = 2
"""How often author's code is called before a call starts: once for the start, once more for the person who has to be asked."""
MAX_BUG_ATTEMPTS = 8
"""Attempts that may end in an unexpected error, about half a minute in all."""
PRESENTER_SECONDS = 2.0
HOOK_SECONDS = 30.0


class RunTool:
    """Runs one call: redeems it at the door, runs its handler, stores its result."""

    def __init__(self, engine: Engine, model: CallModel | None = None) -> None:
        self._engine = engine
        self._model = model

    @activity.defn(name=contract.RUN_TOOL)
    async def run_tool(self, order: RunToolInput) -> RunToolResult:
        """Run one call and store its result; ``asks`` when a person has to answer first. It may take the next step, too.

        Safe to repeat, and to order at any time: the store says whether the call may run, and the execution row what a repeat
        may do.

        Raises:
            ApplicationError: not retryable: ``tool_raised``, ``configuration`` for a bug in the engine that kept coming back,
                or what ends a run before its next step. Anything else raised here is retried.
        """
        async with heartbeating(seconds=_handler_seconds(order)) as heartbeat:
            async with self._engine.order_locks.hold(order.run_id, order.call) as lock:
                settled = await self._settle(order, lock)
            begin = settled if isinstance(settled, StepStart) else None
            result = RunToolResult(state="settled") if isinstance(settled, StepStart) else settled
            if result.state != "settled" or order.then_step is None or self._model is None:
                return result
            if begin is None and not _has_time():
                return result
            heartbeat.until = None
            following = await self._model.next_step(order.run_id, order.then_step, begin)
            return result.model_copy(update={"next": following})

    async def _settle(self, order: RunToolInput, lock: OrderLock) -> RunToolResult | StepStart:
        """Bring the call to its result, or to what it has to wait for; a StepStart: its step is closed, too."""
        where = Where(run_id=order.run_id, tool_call_id=order.call)
        async with _bugs_end_the_run(self._engine, order), keeping_crashes(self._engine, where):
            redemption = await self._redeem(order)
        match redemption:
            case Settled(finishes, raises):
                _fail_run(raises)
                return RunToolResult(state="settled", finishes=finishes)
            case AskAgain(again):
                return RunToolResult(state="asks", again=again)
            case Stopped():
                return RunToolResult(state="stopped")
            case Waits(wait):
                return RunToolResult(state="waits", wait=wait)
            case Delegated(child):
                return RunToolResult(state="child", child=child)
            case Redeemed():
                async with keeping_crashes(self._engine, _place_of(redemption)):
                    lock.bound(redemption.tool.timeout.total_seconds() + STOP_SECONDS)
                    return await self._execute(redemption, order)
            case _:
                assert_never(redemption)

    async def _redeem(self, order: RunToolInput, end: UnknownEnd | None = None) -> Decided:
        """Redeem the call; author's code that has a say is called between two transactions, never inside one.

        ``end``: of its start in this very attempt, if no one knows whether it took effect.
        """
        async with judging(self._engine, order.run_id, f"the start of call {order.call}", call=order.call):
            async with self._engine.database.write() as conn:
                redemption = await redeem(self._engine, conn, order, end=end)
            for _round in range(MAX_INSPECTIONS):
                if not isinstance(redemption, Inspection):
                    break
                findings = await self._inspect(redemption, hurry=end is not None and end.stopped)
                async with self._engine.database.write() as conn:
                    redemption = await redeem(self._engine, conn, order, findings, end)
        if isinstance(redemption, Inspection):
            moved = "another attempt moved this call on while it was inspected; looking again"
            raise LookupError(moved)  # noqa: TRY004 - it is about time, not about a type
        return redemption

    async def _inspect(self, inspection: Inspection, *, hurry: bool) -> Findings:
        """Call the author's code. ``hurry``: a run waits for its end; code that takes its time finds nothing."""
        try:
            async with asyncio.timeout(STOP_SECONDS if hurry else None):
                return await inspect(self._engine, inspection)
        except TimeoutError:
            return Findings()

    async def _execute(self, redeemed: Redeemed, order: RunToolInput) -> RunToolResult | StepStart:
        """Run the handler and store its result; return as :meth:`_settle`."""
        run, call = redeemed.run, redeemed.call
        partial: list[str] = []
        values = redeemed.tool.manifest.masked_input(redeemed.raw_input).values.union(redeemed.secrets.values())
        telemetry.hide(values)
        try:
            async with reporting(
                self._engine.database, run_id=run.id, tool_call_id=call.tool_call_id, values=values
            ) as emit:
                result = await self._run_handler(redeemed, partial, emit)
        except asyncio.CancelledError:
            # Only now: progress is taken for as long as the call counts as executing.
            await self._record_stop(redeemed, order, "".join(partial))
            raise
        if isinstance(result, Unknown):
            return await self._find_out(redeemed, order, mask_text(result.why, values), "".join(partial))
        fails_run = run_failure(redeemed.tool, result)
        then_step = order.then_step if redeemed.is_last_open and not fails_run and _has_time() else None
        try:
            result = without_resolved(result, redeemed)
            recorded = await self._record(redeemed, await self._call_result(redeemed, result), then_step)
        except Exception as unstorable:
            if redeemed.tool.effect != "once":
                raise
            await self._crashes(redeemed)("a result could not be stored", unstorable, tool=redeemed.tool.name)
            return await self._find_out(redeemed, order, UNSTORED, "".join(partial))
        if recorded == "late":
            return await self._came_too_late(order)
        await after_tool(self._engine, redeemed, result)
        _fail_run(fails_run)
        return RunToolResult(state="settled") if recorded == "alone" else recorded

    async def _find_out(self, redeemed: Redeemed, order: RunToolInput, why: str, partial: str) -> RunToolResult:
        """Have it found out whether a ``once`` call took effect: by its tool's probe, or by a person. It is not started here.

        While the store is away this waits. If this attempt is lost meanwhile, the next one finds a start without an end.
        """
        end = UnknownEnd(
            attempt=redeemed.attempt,
            why=why,
            partial_output=self._shortened(redeemed, partial),
        )
        while True:
            try:
                redemption = await self._redeem(order, end)
                break
            except UnavailableError as away:
                await _wait_for_store(redeemed.call, away)
        if isinstance(redemption, AskAgain):
            return RunToolResult(state="asks", again=redemption.again)
        return await self._came_too_late(order)

    def _shortened(self, redeemed: Redeemed, partial: str) -> str:
        limit = self._engine.agent(redeemed.run.agent).limits.result_chars
        return shortened(_without_resolved(partial, redeemed), limit=limit)

    async def _came_too_late(self, order: RunToolInput) -> RunToolResult:
        """Return the state of a call whose own result came too late to count.

        An attempt that was thought lost may come back between our start and our result, take ours for the lost one, and ask
        a person what happened to it. The server listens only to us: the call is settled by that person's answer.
        """
        async with self._engine.database.read() as conn:
            waiting = await waiting_resolution(await Door.at(self._engine, conn, order))
        return RunToolResult(state="settled") if waiting is None else RunToolResult(state="asks", again=waiting.again)

    async def _run_handler(
        self, redeemed: Redeemed, partial: list[str], emit: Callable[[JsonValue], None]
    ) -> Ok | Failure | Unknown:
        workspace = redeemed.run.workspace
        ctx = ToolContext(
            run_id=redeemed.run.id,
            tool_call_id=redeemed.call.tool_call_id,
            idempotency_key=redeemed.idempotency_key,
            workspace=None if workspace is None else Path(workspace),
            deadline=now() + timedelta(seconds=redeemed.tool.timeout.total_seconds()),
            precondition=redeemed.precondition,
            places=redeemed.places,
            partial=lambda text: partial.__setitem__(slice(None), [text]),
            emit=emit,
        )
        try:
            raw_input = redeemed.tool.manifest.with_values(redeemed.raw_input, redeemed.secrets)
            with self._engine.call_span(redeemed.run, redeemed.call.tool_call_id):
                return await execute(
                    redeemed.tool,
                    raw_input,
                    ctx,
                    self._engine.services,
                    self._crashes(redeemed),
                    defaults=redeemed.call.left_out,
                )
        except asyncio.CancelledError:
            ctx.cancelled.set()
            raise

    def _crashes(self, redeemed: Redeemed) -> Reporter:
        """Return where the crashes of the call's handler are reported."""
        return partial(report, self._engine, where=_place_of(redeemed))

    async def _call_result(self, redeemed: Redeemed, result: Ok | Failure) -> CallResult:
        """Return a handler's result as it is to be stored."""
        presentation = await presentation_of(redeemed, result)
        if redeemed.tool is self._engine.built_in.find(READ_RESULT):
            # The tool that reads the rest has a bound of its own; clipping what it reads would go round in circles.
            return CallResult(for_model=result, presentation=presentation)
        return CallResult.of(self._engine, redeemed.run, result, presentation=presentation)

    async def _record_stop(self, redeemed: Redeemed, order: RunToolInput, partial: str) -> None:
        """Store how far an interrupted handler came. ``close_step`` gives the call its result.

        Of a ``once`` call that is not known: its probe is asked, if that is quick, or a person.

        Only for an interrupt: when the worker itself shuts down, how the handler ends is not known to anyone, so the row
        stays ``executing`` and the next attempt treats it as a lost worker. A terminated workflow's activities are
        cancelled alike: should the run be recovered, the next attempt does the same, and this one leaves it alone.
        """
        details = activity.cancellation_details()
        if details is not None and details.worker_shutdown:
            with suppress(UnavailableError):  # then the start counts as lost
                await note_orderly_stop(self._engine, _place_of(redeemed), redeemed.tool.name)
        if details is None or not details.cancel_requested:
            return
        partial = self._shortened(redeemed, partial)
        if redeemed.tool.effect == "once":
            stopped = UnknownEnd(attempt=redeemed.attempt, why=INTERRUPTED, partial_output=partial, stopped=True)
            await self._redeem(order, stopped)
            return
        async with self._engine.database.write() as conn:
            await executions.stop(
                conn,
                run_id=redeemed.run.id,
                tool_call_id=redeemed.call.tool_call_id,
                attempt=redeemed.attempt,
                partial_output=partial,
            )

    async def _record(self, redeemed: Redeemed, result: CallResult, then_step: int | None) -> Recorded:
        """Store the result, where possible with the close of its step. ``then_step``: the one that may begin at once.

        The handler has run: while the store is away this waits, and never runs the handler again.
        """
        while True:
            try:
                begin = await self._record_with_close(redeemed.call, result, then_step)
                return begin or await self._record_once(redeemed.call, result)
            except UnavailableError as away:
                await _wait_for_store(redeemed.call, away)

    async def _record_with_close(self, call: calls.Call, result: CallResult, then_step: int | None) -> StepStart | None:
        """Store the result and close its step, in one transaction; None, and nothing is stored: not together."""
        if then_step is None or self._model is None:
            return None
        try:
            return await self._model.boundary.pass_on_with(call, result, then_step)
        except UnavailableError:
            raise
        except Exception:
            log.exception("a step was not closed with its last result", run_id=call.run_id, call=call.tool_call_id)
            return None

    async def _record_once(self, call: calls.Call, result: CallResult) -> Literal["alone", "late"]:
        async with self._engine.database.write() as conn:
            if await finish(conn, call, result):
                return "alone"
        # This worker was thought lost, and a person was asked what happened to the call. Their inbox shows this.
        async with self._engine.database.write() as conn:
            await events.append(conn, call.run_id, [("execution.late", end_payload(call, result.for_model))])
        return "late"


async def _wait_for_store(call: calls.Call, away: UnavailableError) -> None:
    log.warning("store away; the end of a call waits", run_id=call.run_id, call=call.tool_call_id, why=away.message)
    await asyncio.sleep(RECORD_PAUSE_SECONDS)


def _place_of(redeemed: Redeemed) -> Where:
    call = redeemed.call
    return Where(run_id=call.run_id, step=call.step, tool_call_id=call.tool_call_id, attempt=redeemed.attempt)


def without_resolved(result: Ok | Failure, redeemed: Redeemed) -> Ok | Failure:
    """Return a result without the values of the call's references: they are stored nowhere."""
    if not redeemed.secrets:
        return result
    values = frozenset(redeemed.secrets.values())
    if isinstance(result, Ok):
        masked = masked_strings(result.value, values)
        return Ok(value=masked if isinstance(masked, dict) else {})
    fields = masked_strings(result.fields, values)
    return Failure(
        kind=result.kind, reason=mask_text(result.reason, values), fields=fields if isinstance(fields, dict) else {}
    )


def _without_resolved(text: str, redeemed: Redeemed) -> str:
    return mask_text(text, redeemed.secrets.values()) if redeemed.secrets else text


def _handler_seconds(order: RunToolInput) -> float | None:
    """Return how long the call itself may take where the activity has more time than that; None: Temporal's bound is its own."""
    allowed = activity.info().start_to_close_timeout
    if order.then_step is None or allowed is None:
        return None
    return allowed.total_seconds() - contract.MODEL_REQUEST_SECONDS


def _has_time() -> bool:
    """Tell whether the activity has as much time left as an attempt to take a step has."""
    info = activity.info()
    if info.start_to_close_timeout is None:
        return True
    left = info.started_time + info.start_to_close_timeout - now()
    return left >= timedelta(seconds=contract.MODEL_REQUEST_SECONDS)


async def presentation_of(redeemed: Redeemed, result: Ok | Failure) -> str | None:
    """Return the tool's own view of call and result as JSON; None for a tool without one, or one that fails or hangs."""
    if redeemed.tool.present is None:
        return None
    try:
        params = redeemed.call.decoded_by(redeemed.tool)
        draw = partial(redeemed.tool.presentation_of, params, result)
        view = in_own_thread(draw, of=redeemed.tool.present, most_overdue=MOST_VIEWS_OVERDUE)
        return PRESENTATION.dump_json(await await_author(view, seconds=PRESENTER_SECONDS)).decode()
    except Exception as error:  # noqa: BLE001 - reported; people see the result as it is
        report_crash("presenter failed", error, tool=redeemed.tool.name)
        return None


async def after_tool(engine: Engine, redeemed: Redeemed, result: Ok | Failure) -> None:
    """Show the stored result to the agent's hooks. They can't change it; what they raise is logged."""
    run, call = redeemed.run, redeemed.call
    agent = engine.agent(run.agent)
    if not agent.hooks:
        return
    try:
        params = redeemed.call.decoded_by(redeemed.tool)
    except InvalidToolInput:
        return  # the tool's types have changed since the call was planned: the result says so
    scope = RunScope(run_id=run.id, agent=agent.name, step=call.step)
    hooked = HookedCall(
        tool_name=call.tool_name, tool_call_id=call.tool_call_id, raw_input=redeemed.raw_input, params=params
    )
    for hook in agent.hooks:
        try:
            await await_author(hook.after_tool(scope, hooked, result), seconds=HOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - reported, with its traceback
            names = {"hook": type(hook).__name__, "tool": call.tool_name}
            await report(engine, "after_tool hook failed", error, _place_of(redeemed), **names)


def _fail_run(why: str) -> None:
    """Fail the run when the call's tool is declared to raise. The call has its result by now, so a retry knows it."""
    if why:
        raise ApplicationError(why, "tool_raised", type=contract.ERROR_TOOL_RAISED, non_retryable=True)


@asynccontextmanager
async def _bugs_end_the_run(engine: Engine, order: RunToolInput) -> AsyncIterator[None]:
    """Retry an unexpected error of redemption a few times, then fail the run with its text.

    A store that is away is waited for as long as it takes; a bug would be retried for a week in silence.
    """
    try:
        yield
    except (UnavailableError, ApplicationError):
        raise
    except Exception as error:
        last = activity.info().attempt >= MAX_BUG_ATTEMPTS
        where = Where(run_id=order.run_id, tool_call_id=order.call)
        error_id = await report(engine, "a call could not be redeemed", error, where)
        why = quoted(f"{type(error).__name__}: {error}", error_id)
        raise ApplicationError(why, "bug", type=contract.ERROR_CONFIGURATION, non_retryable=last) from error
