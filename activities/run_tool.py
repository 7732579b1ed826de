"""Activity ``run_tool``: redeem, run the handler, store its result. Nothing reaches a tool by another way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.engine import Engine
from activities.executor import execute
from activities.heartbeats import heartbeating
from activities.redemption import AlreadySettled, OutcomeUnknown, Redeemed, redeem
from turngate.domain import contract
from turngate.domain.contract import RunToolInput, RunToolResult
from turngate.domain.errors import UnavailableError
from turngate.domain.requests import ExecutionState
from turngate.domain.results import Failure, Ok
from turngate.domain.tools import ToolContext
from turngate.store import calls, events, executions
from turngate.store.clock import now

log = structlog.get_logger(__name__)

RECORD_PAUSE_SECONDS = 0.5
MAX_SURPRISES = 8
"""Attempts that may end in an error nobody foresaw, about half a minute in all."""


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
                async with self._engine.database.write() as conn:
                    redemption = await redeem(self._engine, conn, order)
            match redemption:
                case AlreadySettled():
                    return RunToolResult(state="settled")
                case OutcomeUnknown(request_id, digest):
                    return RunToolResult(state="unknown", outcome_request_id=request_id, digest=digest)
                case Redeemed():
                    await self._execute(order, redemption)
                    return RunToolResult(state="settled")

    async def _execute(self, order: RunToolInput, redeemed: Redeemed) -> None:
        partial: list[str] = []
        workspace = redeemed.run.workspace
        ctx = ToolContext(
            run_id=order.run_id,
            tool_call_id=order.call,
            idempotency_key=redeemed.idempotency_key,
            workspace=None if workspace is None else Path(workspace),
            deadline=now() + timedelta(seconds=redeemed.tool.timeout.total_seconds()),
            partial=lambda text: partial.__setitem__(slice(None), [text]),
        )
        try:
            result = await execute(redeemed.tool, redeemed.raw_input, ctx, self._engine.services)
        except asyncio.CancelledError:
            ctx.cancelled.set()
            await self._stopped(order, "".join(partial))
            raise
        await self._record(order, redeemed, result)

    async def _stopped(self, order: RunToolInput, partial: str) -> None:
        """Note what an interrupted handler had done. ``close_step`` gives the call its result.

        Only for an interrupt: when the worker itself shuts down, the handler's end is not known to anyone, so the row
        stays ``executing`` and the next attempt treats it as a lost worker.
        """
        details = activity.cancellation_details()
        if details is None or not details.cancel_requested:
            return
        async with self._engine.database.write() as conn:
            await executions.finish(
                conn, run_id=order.run_id, tool_call_id=order.call, state="failed", partial_output=partial
            )

    async def _record(self, order: RunToolInput, redeemed: Redeemed, result: Ok | Failure) -> None:
        """Store the result. The handler has run: a store that is away is waited for, never answered by running again."""
        while True:
            try:
                return await self._record_once(order, redeemed, result)
            except UnavailableError as away:
                log.warning("store away; the result waits", run_id=order.run_id, call=order.call, why=away.message)
                await asyncio.sleep(RECORD_PAUSE_SECONDS)

    async def _record_once(self, order: RunToolInput, redeemed: Redeemed, result: Ok | Failure) -> None:
        state: ExecutionState = "succeeded" if isinstance(result, Ok) else "failed"
        told: dict[str, object] = {"tool_call_id": order.call, "tool": redeemed.tool.name, "ok": isinstance(result, Ok)}
        if isinstance(result, Failure):
            told["kind"] = result.kind
        async with self._engine.database.write() as conn:
            in_time = await executions.finish(conn, run_id=order.run_id, tool_call_id=order.call, state=state)
            if not in_time:
                # This worker was thought lost, and a person was asked what became of the call. Their inbox shows this.
                await events.append(conn, order.run_id, [("execution.late", told)])
                return
            await calls.settle(conn, order.run_id, order.call, result)
            await events.append(conn, order.run_id, [("execution.finished", told)])


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
