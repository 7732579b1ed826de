"""What a run has started and waits for, so that an interrupt reaches each of it."""

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

    ``activities``: those that are not done. ``planning``: the model is asked, and what it wants is not known yet.
    """

    def __init__(self, state: TurnState) -> None:
        self._state = state
        self.activities: set[workflow.ActivityHandle[Any]] = set()
        self.planning = False
        self._news: set[tuple[str, str | None]] = set()
        self._children: set[workflow.ChildWorkflowHandle[Any, Any]] = set()
        self._telling: set[asyncio.Task[None]] = set()

    async def until_done(self, handle: workflow.ActivityHandle[Result]) -> Result | None:
        """Await an activity that an interrupt may cancel; None when it did."""
        self.activities.add(handle)
        try:
            return await handle
        except ActivityError as error:
            if not is_cancelled_exception(error) and not self._lost_with_its_worker(error):
                raise
            return None
        except asyncio.CancelledError:
            # Cancelled in the moment in which its result came: the SDK raises this in place of ActivityError. It must
            # not tear the step, whose other calls (a sub-agent's run, say) have still to come to their ends.
            if not self._state.interrupted:
                raise
            return None
        finally:
            self.activities.discard(handle)

    def _lost_with_its_worker(self, error: ActivityError) -> bool:
        """Tell whether an activity that an interrupt had cancelled was lost before it could let go.

        The server retries nothing that is to be cancelled, and says no more than that it timed out. The run was
        interrupted all the same.
        """
        return self._state.interrupted and error.retry_state is RetryState.CANCEL_REQUESTED

    async def until_ended(self, child: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """Await a sub-agent's run; an interrupt is passed on to it, and its end is waited for all the same."""
        self._children.add(child)
        try:
            if self._state.interrupted:  # it came while the child was being started
                await self._interrupt_child(child)
            await child
        finally:
            self._children.discard(child)

    def hear(self, told: ExternalCallInput) -> None:
        """Note news of a call that another program runs; whoever waits for it goes on."""
        self._news.add((told.call, told.news))

    async def heard(self, call: str, news: str | None, within: timedelta | None) -> None:
        """Wait for such news, for an interrupt, or for so long. They are forgotten then: the next wait is for newer ones."""
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: (call, news) in self._news or self._state.interrupted,
                timeout=within,
                timeout_summary="external call",
            )
        self._news.discard((call, news))

    def stop(self, interrupt: InterruptInput) -> None:
        """Interrupt the run: cancel what runs, end what waits, tell its sub-agents. A repeat changes nothing."""
        if self._state.interrupt(by=interrupt.by, reason=interrupt.reason):
            for handle in list(self.activities):
                handle.cancel()
            for child in list(self._children):
                self._telling.add(asyncio.create_task(self._interrupt_child(child)))

    def tell_children(self, signal: str, told: PauseInput | ResumeInput) -> None:
        """Pass a pause or its end on to the sub-agents' runs."""
        for child in list(self._children):
            self._telling.add(asyncio.create_task(_tell(child, signal, told)))

    async def _interrupt_child(self, child: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """Pass the interrupt on, in the words of whoever gave it. A child that has just ended cannot be told."""
        told = InterruptInput(by=self._state.interrupted_by or "engine", reason=self._state.interrupt_reason)
        await _tell(child, contract.INTERRUPT, told)


async def _tell(
    child: workflow.ChildWorkflowHandle[Any, Any], signal: str, told: InterruptInput | PauseInput | ResumeInput
) -> None:
    with suppress(TemporalError):
        await child.signal(signal, told)
