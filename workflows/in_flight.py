"""What a run has started and waits for, so that an interrupt reaches all of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, RetryState, TemporalError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import InterruptBelowInput, InterruptBelowResult
    from turngate.domain.runs.turn_state import TurnState
    from turngate.workflows import activity_options

Result = TypeVar("Result")

MAX_NEWS = 1_000
"""Ids of requests and calls of which there is news: more, only someone who forges signals sends."""


class InFlight:
    """Activities and sub-agents' runs that an interrupt has to reach; and news of what the run waits for.

    ``activities``: those that are not done. ``cause``: what interrupts the run, where no person did.
    """

    def __init__(self, run_id: str, state: TurnState) -> None:
        self._run_id = run_id
        self._state = state
        self.cause: Literal["engine", "temporal"] = "engine"
        self.activities: set[workflow.ActivityHandle[Any]] = set()
        self._news: dict[str, None] = {}
        """Ids, in order of arrival. News may come before the run knows what they are about."""
        self._children: set[workflow.ChildWorkflowHandle[Any, Any]] = set()
        self._below: set[asyncio.Task[None]] = set()
        """Orders on their way to sub-agents' runs: asyncio itself holds a task only weakly."""

    async def wait_for_activity(self, handle: workflow.ActivityHandle[Result]) -> Result | None:
        """Await an activity that an interrupt may cancel; None if it did."""
        self.activities.add(handle)
        try:
            return await handle
        except ActivityError as error:
            if not is_cancelled_exception(error) and not self._lost_with_its_worker(error):
                raise
            return None
        except asyncio.CancelledError:
            # Cancelled in the moment in which its result came: the SDK raises this in place of ActivityError. It must not
            # tear the step, whose other calls (a sub-agent's run, for example) have to reach their ends.
            if not self._state.interrupted:
                raise
            return None
        finally:
            self.activities.discard(handle)

    def _lost_with_its_worker(self, error: ActivityError) -> bool:
        """Tell whether an activity that an interrupt had cancelled was lost before it could stop.

        The server does not retry an activity that is to be cancelled, and reports only that it timed out. The run was
        interrupted all the same.
        """
        return self._state.interrupted and error.retry_state is RetryState.CANCEL_REQUESTED

    async def wait_for_child(self, child: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """Await a sub-agent's run. An interrupt is passed on to it, and its end is awaited all the same."""
        self._children.add(child)
        try:
            if self._state.interrupted:  # the interrupt came while the child was being started
                await self._interrupt_below()
            await child
        finally:
            self._children.discard(child)

    def note_news(self, name: str) -> None:
        """Note that there is news of a request or an external call; this ends the wait for it."""
        self._news[name] = None
        if len(self._news) > MAX_NEWS:
            self._news.pop(next(iter(self._news)))

    async def wait_for_news(self, name: str, within: timedelta | None, summary: str) -> bool:
        """Wait for news, an interrupt, or for the time to pass (None: forever); False when only time has passed.

        Then forget the news: the next wait needs newer ones. Where there is news already, no timer is started, so a replay
        that merges workflow tasks gives the same commands (temporalio/sdk-rust#1146).
        """
        try:
            if not self._has_news(name):
                await workflow.wait_condition(lambda: self._has_news(name), timeout=within, timeout_summary=summary)
        except TimeoutError:
            return False
        self._news.pop(name, None)
        return True

    def _has_news(self, name: str) -> bool:
        return name in self._news or self._state.interrupted

    def interrupt(self, cause: Literal["engine", "temporal"]) -> None:
        """Interrupt the run: cancel its activities, end its waits, interrupt its sub-agents. A repeat changes nothing."""
        if self._state.interrupted:
            return
        self._state.interrupted = True
        self.cause = cause
        for handle in list(self.activities):
            handle.cancel()
        if self._children:
            self._below.add(asyncio.create_task(self._interrupt_below()))

    async def _interrupt_below(self) -> None:
        """Have the store order the runs below to stop, and tell them; one that has just ended needs no signal."""
        order = InterruptBelowInput(run_id=self._run_id, cause=self.cause)
        below: InterruptBelowResult = await workflow.execute_activity(
            contract.INTERRUPT_BELOW, order, result_type=InterruptBelowResult, **activity_options.INTERRUPT_BELOW
        )
        for run_id in below.run_ids:
            with suppress(TemporalError):
                await workflow.get_external_workflow_handle(run_id).signal(contract.CHANGED)
