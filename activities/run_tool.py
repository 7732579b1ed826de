"""Activity ``run_tool``: redeem, run the handler, store its result. Nothing reaches a tool by another way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import assert_never

import structlog
from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.engine.author_code import heard
from activities.engine.engine import Engine
from activities.engine.heartbeats import heartbeating
from activities.execution.authorization import raises
from activities.execution.door import redeem
from activities.execution.executor import execute
from activities.execution.large_results import shown_to_model
from activities.execution.lost_calls import asked_outcome
from activities.execution.preflight import look
from activities.execution.progress import reporting
from activities.execution.redemption import (
    AlreadySettled,
    AskAgain,
    Decided,
    Delegated,
    LookFirst,
    OutcomeUnknown,
    Redeemed,
    Waits,
)
from activities.execution.settlement import ended_facts, ended_state
from turngate.domain import contract
from turngate.domain.agents.hooks import HookedCall, RunScope
from turngate.domain.contract import RunToolInput, RunToolResult
from turngate.domain.conversation.clipping import READ_RESULT, shortened
from turngate.domain.errors import UnavailableError
from turngate.domain.tools.context import ToolContext
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.presentation import PRESENTATION
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.clock import now
from turngate.store.events import events
from turngate.store.runs import calls, executions, whole_results

log = structlog.get_logger(__name__)

RECORD_PAUSE_SECONDS = 0.5
MAX_LOOKS = 2
"""How often the world is looked at before a call starts: once for its own sake, once for whoever has to be asked."""
MAX_SURPRISES = 8
"""Attempts that may end in an error nobody foresaw, about half a minute in all."""


@dataclass(frozen=True)
class Finished:
    """A call that ran. ``whole``: the text of a result that is shown in part. ``presentation``: JSON, None for the default."""

    tool: Tool
    result: Ok | Failure
    whole: str | None
    presentation: str | None


class RunTool:
    """The activity with what it stands on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.RUN_TOOL)
    async def run_tool(self, order: RunToolInput) -> RunToolResult:
        """Run one call and store its result; ``unknown`` when an earlier attempt of a ``once`` call was lost.

        Safe to repeat: the execution row decides what a repeat may do.

        Raises:
            ApplicationError: not retryable: ``tool_raised``, or ``configuration`` for a bug of ours that kept coming back.
                Anything else raised here is retried.
        """
        async with heartbeating():
            with _bugs_end_the_run():
                redemption = await self._redeem(order)
            match redemption:
                case AlreadySettled(finishes, raises):
                    _fail_run(raises)
                    return RunToolResult(state="settled", finishes=finishes)
                case OutcomeUnknown(request_id, digest):
                    return RunToolResult(state="unknown", outcome_request_id=request_id, digest=digest)
                case AskAgain(again):
                    return RunToolResult(state="asked_again", again=again)
                case Waits(wait):
                    return RunToolResult(state="waits", wait=wait)
                case Delegated(child):
                    return RunToolResult(state="child", child=child)
                case Redeemed():
                    if await self._execute(order, redemption):
                        return RunToolResult(state="settled")
                    return await self._too_late(order)
                case _:
                    assert_never(redemption)

    async def _redeem(self, order: RunToolInput) -> Decided:
        """Ask at the door; author's code that has to be heard is heard between two transactions, never inside one."""
        async with self._engine.database.write() as conn:
            redemption = await redeem(self._engine, conn, order)
        for _round in range(MAX_LOOKS):
            if not isinstance(redemption, LookFirst):
                break
            seen = await look(self._engine, redemption)
            async with self._engine.database.write() as conn:
                redemption = await redeem(self._engine, conn, order, seen)
        if isinstance(redemption, LookFirst):
            moved = "another attempt moved this call on while it was looked at; looking again"
            raise LookupError(moved)  # noqa: TRY004 - it is about time, not about a type
        return redemption

    async def _execute(self, order: RunToolInput, redeemed: Redeemed) -> bool:
        """Run the handler and store its result; False when that came too late to be the call's."""
        partial: list[str] = []
        try:
            async with reporting(self._engine.database, run_id=order.run_id, tool_call_id=order.call) as emit:
                result = await self._handled(order, redeemed, partial, emit)
        except asyncio.CancelledError:
            # Only now: progress is taken for as long as the call counts as executing.
            await self._stopped(order, redeemed, "".join(partial))
            raise
        if not await self._record(order, await self._finished(redeemed, result)):
            return False
        await after_tool(self._engine, redeemed, result)
        _fail_run(raises(redeemed.tool, result))
        return True

    async def _too_late(self, order: RunToolInput) -> RunToolResult:
        """Return how a call stands whose result came too late to be its own.

        An attempt that was thought lost may come back between our start and our result, take ours for the lost one, and have
        a person asked what became of it. The server hears only us: the call is settled by that person's answer.
        """
        async with self._engine.database.read() as conn:
            asked = await asked_outcome(conn, order)
        if asked is None:
            return RunToolResult(state="settled")
        return RunToolResult(state="unknown", outcome_request_id=asked.request_id, digest=asked.digest)

    async def _handled(
        self, order: RunToolInput, redeemed: Redeemed, partial: list[str], emit: Callable[[JsonValue], None]
    ) -> Ok | Failure:
        workspace = redeemed.run.workspace
        ctx = ToolContext(
            run_id=order.run_id,
            tool_call_id=order.call,
            idempotency_key=redeemed.idempotency_key,
            workspace=None if workspace is None else Path(workspace),
            deadline=now() + timedelta(seconds=redeemed.tool.timeout.total_seconds()),
            partial=lambda text: partial.__setitem__(slice(None), [text]),
            emit=emit,
        )
        try:
            return await execute(redeemed.tool, redeemed.raw_input, ctx, self._engine.services)
        except asyncio.CancelledError:
            ctx.cancelled.set()
            raise

    async def _finished(self, redeemed: Redeemed, result: Ok | Failure) -> Finished:
        """Return what is to be stored of a result: what the model is shown, the whole where that is a part, and the view."""
        # The tool that reads the rest has a bound of its own; clipping what it reads would go round in circles.
        reads = redeemed.tool is self._engine.built_in.find(READ_RESULT)
        shown, whole = (result, None) if reads else shown_to_model(self._engine, redeemed.run, result)
        return Finished(redeemed.tool, shown, whole, await presentation_of(redeemed, result))

    async def _stopped(self, order: RunToolInput, redeemed: Redeemed, partial: str) -> None:
        """Note what an interrupted handler had done. ``close_step`` gives the call its result.

        Only for an interrupt: when the worker itself shuts down, the handler's end is not known to anyone, so the row
        stays ``executing`` and the next attempt treats it as a lost worker. A terminated workflow's activities are
        cancelled alike: should the run be recovered, the next attempt does the same, and this one leaves it alone.
        """
        details = activity.cancellation_details()
        if details is None or not details.cancel_requested:
            return
        limit = self._engine.agent(redeemed.run.agent).limits.result_chars
        kept = shortened(partial, limit=limit)
        async with self._engine.database.write() as conn:
            await executions.stop(
                conn, run_id=order.run_id, tool_call_id=order.call, attempt=redeemed.attempt, partial_output=kept
            )

    async def _record(self, order: RunToolInput, finished: Finished) -> bool:
        """Store the result; False when it came too late to be the call's.

        The handler has run: a store that is away is waited for, never answered by running again.
        """
        while True:
            try:
                return await self._record_once(order, finished)
            except UnavailableError as away:
                log.warning("store away; the result waits", run_id=order.run_id, call=order.call, why=away.message)
                await asyncio.sleep(RECORD_PAUSE_SECONDS)

    async def _record_once(self, order: RunToolInput, finished: Finished) -> bool:
        result = finished.result
        told = ended_facts(order.call, finished.tool.name, result)
        async with self._engine.database.write() as conn:
            state = ended_state(result)
            in_time = await executions.finish(conn, run_id=order.run_id, tool_call_id=order.call, state=state)
            if not in_time:
                # This worker was thought lost, and a person was asked what became of the call. Their inbox shows this.
                await events.append(conn, order.run_id, [("execution.late", told)])
                return False
            digest = None if finished.whole is None else await whole_results.keep(conn, finished.whole)
            view = {"presentation": finished.presentation, "whole_result": digest}
            await calls.settle(conn, order.run_id, order.call, result, **view)
            await events.append(conn, order.run_id, [("execution.finished", told)])
        return True


def _fail_run(why: str) -> None:
    """End the run with a failure whose tool is declared to raise. The call has its result by now, so that a retry knows."""
    if why:
        raise ApplicationError(why, "tool_raised", type=contract.ERROR_TOOL_RAISED, non_retryable=True)


@contextmanager
def _bugs_end_the_run() -> Iterator[None]:
    """Retry what redemption did not foresee a few times, then fail the run with its words.

    A store that is away is waited for as long as it takes; a bug would be retried for a week in silence.
    """
    try:
        yield
    except (UnavailableError, ApplicationError):
        raise
    except Exception as error:
        last = activity.info().attempt >= MAX_SURPRISES
        why = f"{type(error).__name__}: {error}"
        raise ApplicationError(why, "bug", type=contract.ERROR_CONFIGURATION, non_retryable=last) from error


# After a call has run: the agent's after-hooks, and the tool's own view of its result for people. Neither can change it.


log = structlog.get_logger(__name__)

PRESENTER_SECONDS = 2.0
HOOK_SECONDS = 30.0


async def presentation_of(redeemed: Redeemed, result: Ok | Failure) -> str | None:
    """Return the tool's own view of call and result as JSON; None for a tool without one, or one that fails or hangs."""
    if redeemed.tool.present is None:
        return None
    try:
        params = redeemed.tool.decode(redeemed.raw_input)
        shown = asyncio.to_thread(redeemed.tool.presentation_of, params, result)
        return PRESENTATION.dump_json(await heard(shown, seconds=PRESENTER_SECONDS)).decode()
    except Exception:
        log.exception("presenter failed", tool=redeemed.tool.name)
        return None


async def after_tool(engine: Engine, redeemed: Redeemed, result: Ok | Failure) -> None:
    """Show the stored result to the agent's hooks; what they raise is logged."""
    run, call = redeemed.run, redeemed.call
    agent = engine.agent(run.agent)
    if not agent.hooks:
        return
    try:
        params = redeemed.tool.decode(redeemed.raw_input)
    except InvalidToolInput:
        return  # its policy has changed under it: the result says so
    scope = RunScope(run_id=run.id, agent=agent.name, step=call.step)
    hooked = HookedCall(
        tool_name=call.tool_name, tool_call_id=call.tool_call_id, raw_input=redeemed.raw_input, params=params
    )
    for hook in agent.hooks:
        try:
            await heard(hook.after_tool(scope, hooked, result), seconds=HOOK_SECONDS)
        except Exception:
            log.exception("after_tool hook failed", hook=type(hook).__name__, tool=call.tool_name, run_id=run.id)
