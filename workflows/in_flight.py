"""What a run has started and waits for, so that an interrupt reaches all of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, RetryState, TemporalError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import ExternalCallInput, InterruptInput, PauseInput, ResumeInput
    from turngate.domain.runs.turn_state import TurnState

Result = TypeVar("Result")


class InFlight:
    """Activities and sub-agents' runs that an interrupt has to reach.

    ``activities``: those that are not done. ``planning``: the model was asked, and its calls are not known yet.
    """

    def __init__(self, state: TurnState) -> None:
        self._state = state
        self.activities: set[workflow.ActivityHandle[Any]] = set()
        self.planning = False
        self._news: set[tuple[str, str | None]] = set()
        self._children: set[workflow.ChildWorkflowHandle[Any, Any]] = set()
        self._signals: set[asyncio.Task[None]] = set()
        """Signals on their way to sub-agents' runs: asyncio itself holds a task only weakly."""

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
                await self._interrupt_child(child)
            await child
        finally:
            self._children.discard(child)

    def note_news(self, news: ExternalCallInput) -> None:
        """Note news of a call that another program runs; this ends the wait for it."""
        self._news.add((news.call, news.news))

    async def wait_for_news(self, call: str, news: str | None, within: timedelta | None) -> None:
        """Wait for such news, for an interrupt, or for the time to pass. Then forget the news: the next wait needs newer ones."""
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: (call, news) in self._news or self._state.interrupted,
                timeout=within,
                timeout_summary="external call",
            )
        self._news.discard((call, news))

    def interrupt(self, interrupt: InterruptInput) -> None:
        """Interrupt the run: cancel its activities, end its waits, interrupt its sub-agents. A repeat changes nothing."""
        if self._state.interrupt(by=interrupt.by, reason=interrupt.reason):
            for handle in list(self.activities):
                handle.cancel()
            for child in list(self._children):
                self._signals.add(asyncio.create_task(self._interrupt_child(child)))

    def signal_children(self, signal: str, message: PauseInput | ResumeInput) -> None:
        """Pass a pause or its end on to the sub-agents' runs."""
        for child in list(self._children):
            self._signals.add(asyncio.create_task(_signal_child(child, signal, message)))

    async def _interrupt_child(self, child: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """Pass the interrupt on, with its author and reason."""
        interrupt = InterruptInput(by=self._state.interrupted_by or "engine", reason=self._state.interrupt_reason)
        await _signal_child(child, contract.INTERRUPT, interrupt)


async def _signal_child(
    child: workflow.ChildWorkflowHandle[Any, Any], signal: str, message: InterruptInput | PauseInput | ResumeInput
) -> None:
    """Send a signal to a sub-agent's run; one that has just ended gets none."""
    with suppress(TemporalError):
        await child.signal(signal, message)
