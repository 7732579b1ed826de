"""Control of a live run: hold it, let it continue, end its gates for a newer message."""

from __future__ import annotations

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import (
        NotePauseInput,
        PauseInput,
        ResumeInput,
        SupersedeInput,
        SupersedeRequestsInput,
    )
    from turngate.domain.runs.turn_state import TurnState
    from workflows import activity_options
    from workflows.in_flight import InFlight
    from workflows.priority_lock import PriorityLock, Source


class RunControl:
    """What people may ask of a live run. Only its own workflow uses it."""

    def __init__(self, run_id: str, state: TurnState, in_flight: InFlight, decision_lock: PriorityLock) -> None:
        self._run_id = run_id
        self._state = state
        self._in_flight = in_flight
        self._decision_lock = decision_lock
        self._note_lock = asyncio.Lock()

    async def pause(self, pause: PauseInput) -> None:
        """Hold the run and its sub-agents: what runs may finish, nothing new starts."""
        if self._state.pause(by=pause.by):
            self._in_flight.signal_children(contract.PAUSE, pause)
            await self._note(paused=True, by=pause.by, reason=pause.reason)

    async def resume(self, resume: ResumeInput) -> None:
        """Let the run and its sub-agents continue."""
        if self._state.resume():
            self._in_flight.signal_children(contract.RESUME, resume)
            await self._note(paused=False, by=resume.by)

    async def supersede(self, supersede: SupersedeInput) -> None:
        """End the requests that wait for a person, also those of a response that is still on its way.

        The store ends them first, as with a decision: a call whose request has ended must have its result.
        """
        await workflow.wait_condition(lambda: not self._in_flight.planning)
        async with self._decision_lock.hold(Source.MESSAGE):
            waiting = self._state.supersedable
            if not waiting:
                return
            order = SupersedeRequestsInput(
                run_id=self._run_id, request_ids=tuple(waiting), by=supersede.by, at=workflow.now()
            )
            await workflow.execute_activity(contract.SUPERSEDE_REQUESTS, order, **activity_options.SUPERSEDE_REQUESTS)
            self._state.supersede(waiting)

    async def _note(self, *, paused: bool, by: str, reason: str = "") -> None:
        """Write it to the store, in the order in which it happened."""
        note = NotePauseInput(run_id=self._run_id, paused=paused, by=by, reason=reason, at=workflow.now())
        async with self._note_lock:
            await workflow.execute_activity(contract.NOTE_PAUSE, note, **activity_options.NOTE_PAUSE)
