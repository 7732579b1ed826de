"""Running the calls of a step: each on its own task, through its gate, its tool, its wait or its sub-agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import assert_never

from temporalio import workflow
from temporalio.exceptions import ActivityError, ChildWorkflowError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import (
        AgentTurnInput,
        ChildRun,
        ClimbLadderInput,
        NextStep,
        PlannedCall,
        RecordExpiryInput,
        RecordExpiryResult,
        RunLimits,
        RunToolInput,
        RunToolResult,
        SettleCallInput,
        StepPlan,
        Wait,
    )
    from turngate.domain.requests import RequestStatus
    from turngate.domain.runs.turn_state import TurnState
    from turngate.workflows import activity_options
    from turngate.workflows.endings import Ending, describe_failure
    from turngate.workflows.in_flight import InFlight
    from turngate.workflows.labels import labels_of_child
    from turngate.workflows.run_control import RunControl


@dataclass
class Gate:
    """A request that a call waits for. ``since``: when its clock began; ``climbed``: how many rungs of its ladder it has.

    ``timed_out``: its time was over, and it was parked. ``notes``: what is being stored of its wait.
    """

    since: datetime
    climbed: int
    timed_out: bool = False
    notes: list[asyncio.Task[None]] = field(default_factory=list)


class StepRunner:
    """Brings the calls of a run to their results, step by step. Only its run's workflow uses it."""

    def __init__(
        self, run_id: str, limits: RunLimits, state: TurnState, in_flight: InFlight, control: RunControl
    ) -> None:
        self._run_id = run_id
        self._limits = limits
        self._state = state
        self._in_flight = in_flight
        self._control = control
        self._places = asyncio.Semaphore(limits.concurrency)
        self._gates: dict[str, Gate] = {}
        self._then_step: int | None = None
        self._next: NextStep | None = None
        self._decided: set[str] = set()
        """Calls of this step whose request has news: a person's decision, most likely."""

    async def settle_all(self, plan: StepPlan, *, then_step: int | None = None) -> Ending | None:
        """Settle every call of the step on its own task: a slow gate delays no other call.

        ``then_step``: the step that the activity which settles the last call may take (ADR 0033); None: it may not.
        """
        self._gates.clear()
        self._decided.clear()
        self._then_step = then_step
        endings = await asyncio.gather(*(self._settle(call) for call in plan.calls))
        for gate in self._gates.values():
            self._end_notes(gate)
        return next((ending for ending in endings if ending is not None), None)

    def take_next(self) -> NextStep:
        """Return, once, what an activity has reported of the next step."""
        following, self._next = self._next, None
        return following or NextStep()

    @property
    def was_decided(self) -> bool:
        """Tell whether a person decided a call of the last step, and so waits for what follows."""
        return bool(self._decided)

    async def _settle(self, call: PlannedCall) -> Ending | None:
        """Bring one call to its result: through its gate if it has one, then through its tool if it may run.

        A person may have to be asked, or asked again, before it has one.
        """
        waiting: PlannedCall | Ending | None = call
        while isinstance(waiting, PlannedCall):
            try:
                waiting = await self._run_tool(waiting) if await self._pass_gate(waiting) else None
            except ActivityError as error:  # its expiry could not be stored
                waiting = describe_failure(error)
        if waiting is not None:  # the run has to end, so it must not wait for its other calls
            self._in_flight.interrupt("engine")
        return waiting

    # Gates

    async def _pass_gate(self, call: PlannedCall) -> bool:
        """Wait until the store has news of the call's request; False when its time was over first.

        No place is held while a person thinks. Meanwhile the request climbs its ladder; neither a rung nor parking ends the
        wait. What the news is, the store tells ``run_tool``: if the request still waits, the call comes back here.
        """
        request_id = call.request_id
        if request_id is None:
            return True
        gate = self._gates.get(request_id)
        if gate is None:
            if self._state.recovering and call.waits_since is None:
                return True  # the plan is of a workflow that was lost: its request may have ended, or waits for long
            gate = self._gates[request_id] = Gate(call.waits_since or workflow.now(), call.climbed)
        passes = await self._wait_at_gate(gate, call, request_id)
        if passes:
            self._decided.add(call.call)
        else:
            self._end_notes(gate)
        return passes

    async def _wait_at_gate(self, gate: Gate, call: PlannedCall, request_id: str) -> bool:
        for rung, seconds in list(enumerate(call.ladder))[gate.climbed :]:
            if await self._has_news_by(request_id, gate.since + timedelta(seconds=seconds), "ladder"):
                return True
            gate.climbed += 1
            gate.notes.append(self._climb(request_id, rung))
        if call.expires_after_seconds is not None and not gate.timed_out:
            expires_at = gate.since + timedelta(seconds=call.expires_after_seconds)
            if await self._has_news_by(request_id, expires_at, "expiry"):
                return True
            gate.timed_out = True
            if await self._expire(request_id) == "expired":
                return False
        return await self._in_flight.wait_for_news(request_id, None, "")

    @staticmethod
    def _end_notes(gate: Gate) -> None:
        """Stop storing notes about the wait for a request that has ended."""
        for note in gate.notes:
            note.cancel()

    async def _has_news_by(self, request_id: str, until: datetime, summary: str) -> bool:
        return await self._in_flight.wait_for_news(request_id, max(until - workflow.now(), timedelta(0)), summary)

    def _climb(self, request_id: str, rung: int) -> asyncio.Task[None]:
        """Have the store note that the request climbs a rung, unless it has ended; returns the task that does."""
        order = ClimbLadderInput(run_id=self._run_id, request_id=request_id, rung=rung, at=workflow.now())
        note = workflow.start_activity(contract.CLIMB_LADDER, order, **activity_options.CLIMB_LADDER)
        return asyncio.create_task(self._store(note))

    async def _expire(self, request_id: str) -> RequestStatus:
        """Have the store end or park a request whose time is over; returns its status. A decision may have come first.

        If so, there is news of it, or soon will be.
        """
        order = RecordExpiryInput(run_id=self._run_id, request_id=request_id, at=workflow.now())
        result: RecordExpiryResult = await workflow.execute_activity(
            contract.RECORD_EXPIRY, order, result_type=RecordExpiryResult, **activity_options.RECORD_EXPIRY
        )
        if result.status not in {"pending", "expired"}:
            self._in_flight.note_news(request_id)
        return result.status

    @staticmethod
    async def _store(note: workflow.ActivityHandle[None]) -> None:
        """Store a note about a request that still waits.

        On a task of its own: a store that is away is tried for a week, with pauses, and neither a decision nor the next rung
        nor the expiry must wait for that. Each rung also notes those below it, so their order does not matter.
        """
        with suppress(ActivityError):
            await note

    # Tools

    async def _run_tool(self, call: PlannedCall) -> PlannedCall | Ending | None:
        """Run the tool in one of the step's places; returns the call as it waits for a person, if one has to be asked."""
        async with self._place():
            if self._state.interrupted:
                return None
            then_step = self._then_step if call.queue is None else None  # the worker of its queue may have no models
            handle = workflow.start_activity(
                contract.RUN_TOOL,
                RunToolInput(run_id=self._run_id, call=call.call, then_step=then_step),
                result_type=RunToolResult,
                **activity_options.run_tool(
                    call, self._limits, takes_next_step=then_step is not None, decided=call.call in self._decided
                ),
            )
            try:
                result = await self._in_flight.wait_for_activity(handle)
            except ActivityError as error:
                return describe_failure(error)
        return None if result is None else await self._follow(call, result)

    async def _follow(self, call: PlannedCall, result: RunToolResult) -> PlannedCall | Ending | None:
        """Do what ``run_tool`` answered: there is a result, or something to wait for."""
        gate = None if call.request_id is None else self._gates.get(call.request_id)
        if gate is not None and (result.again is None or result.again.request_id != call.request_id):
            self._end_notes(gate)
        match result.state:
            case "settled":
                self._state.finishing = self._state.finishing or result.finishes
                self._note_next(result.next)
                return None
            case "asks":
                return result.again
            case "stopped":
                await self._control.read()
                return call.model_copy(update={"request_id": None})
            case "waits":
                wait = result.wait or Wait()
                return await (self._wait_for_news if wait.news else self._wait_for_timer)(call, wait)
            case "child":
                return await self._run_child(call, result.child)
            case _:
                assert_never(result.state)

    def _note_next(self, following: NextStep | None) -> None:
        """Note that the step is closed in the store. A call of it that still waits at its gate has its result, too.

        It was rejected, for one, and no signal has come yet. None would be sent again: a closed step counts as noticed.
        """
        if following is None:
            return
        if self._next is None or self._next.plan is None:
            self._next = following
        for request_id in self._gates:
            self._in_flight.note_news(request_id)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Take one of the step's places as soon as the run is not held; a held run holds none."""
        while True:
            if self._state.held:
                await workflow.wait_condition(lambda: not self._state.held)
            await self._places.acquire()
            if not self._state.held:
                break
            self._places.release()
        try:
            yield
        finally:
            self._places.release()

    async def _wait_for_timer(self, call: PlannedCall, wait: Wait) -> Ending | None:
        """Hold the call on a durable timer, then store its result. An interrupt ends the wait, and closes the call."""
        timeout = timedelta(seconds=wait.seconds or 0) if wait.until is None else wait.until - workflow.now()
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._state.interrupted, timeout=max(timeout, timedelta(0)), timeout_summary="wait_until"
            )
        return await self._store_result(call)

    async def _wait_for_news(self, call: PlannedCall, wait: Wait) -> PlannedCall:
        """Wait for news of the call, or until its time is over; ``run_tool`` knows what either means.

        While its approval can be taken back, they are of the request that asks again; else of the program that runs it.
        """
        within = None
        if wait.seconds is not None:
            within = timedelta(seconds=wait.seconds)
        elif wait.until is not None:
            within = max(wait.until - workflow.now(), timedelta(0))
        name, summary = (call.call, "external call") if wait.request_id is None else (wait.request_id, "grace")
        await self._in_flight.wait_for_news(name, within, summary)
        return call.model_copy(update={"request_id": None})

    # Sub-agents

    async def _run_child(self, call: PlannedCall, child: ChildRun | None) -> Ending | None:
        """Let a sub-agent's run answer the call. That run closes by itself, also when its parent is gone."""
        if self._state.held:
            await workflow.wait_condition(lambda: not self._state.held)
        if child is not None and not self._state.interrupted:
            # The store knows how it ended, or that it could not start; the call's result says so.
            with suppress(ChildWorkflowError, WorkflowAlreadyStartedError):
                await self._run_to_end(child)
        return await self._store_result(call)

    async def _run_to_end(self, child: ChildRun) -> None:
        """Start a sub-agent's run and wait for its end, also after an interrupt, which is passed on to it."""
        limits = child.limits.with_heartbeat(self._limits.heartbeat_timeout_seconds)
        handle = await workflow.start_child_workflow(
            contract.AGENT_TURN,
            AgentTurnInput(run_id=child.run_id, agent=child.agent, limits=limits, state=child.state),
            id=child.run_id,
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            **labels_of_child(child, "sub-agent"),
        )
        await self._in_flight.wait_for_child(handle)

    async def _store_result(self, call: PlannedCall) -> Ending | None:
        """Store the result of a call that no activity was running for; of an interrupted run ``close_step`` does it."""
        if self._state.interrupted:
            return None
        order = SettleCallInput(run_id=self._run_id, call=call.call)
        try:
            await workflow.execute_activity(contract.SETTLE_CALL, order, **activity_options.SETTLE_CALL)
        except ActivityError as error:
            return describe_failure(error)
        return None
