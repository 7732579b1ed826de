"""Running the calls of a step: each on its own task, through its gate, its tool, its wait or its sub-agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
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
        InterruptInput,
        PlannedCall,
        RecordExpiryInput,
        RunLimits,
        RunToolInput,
        RunToolResult,
        SettleCallInput,
        StepPlan,
        Wait,
    )
    from turngate.domain.policy.terms import PLAIN_TERMS
    from turngate.domain.requests import runs_the_call
    from turngate.domain.runs.turn_state import Gate, TurnState
    from workflows import activity_options
    from workflows.endings import Ending, describe_failure
    from workflows.in_flight import InFlight
    from workflows.priority_lock import PriorityLock, Source


class StepRunner:
    """Brings the calls of a run to their results, step by step. Only its run's workflow uses it."""

    def __init__(
        self, run_id: str, limits: RunLimits, state: TurnState, in_flight: InFlight, decision_lock: PriorityLock
    ) -> None:
        self._run_id = run_id
        self._limits = limits
        self._state = state
        self._in_flight = in_flight
        self._decision_lock = decision_lock
        self._places = asyncio.Semaphore(limits.concurrency)

    async def settle_all(self, plan: StepPlan) -> Ending | None:
        """Settle every call of the step on its own task: a slow gate delays no other call."""
        self._open_gates(plan.calls)
        endings = await asyncio.gather(*(self._settle(call) for call in plan.calls))
        return next((ending for ending in endings if ending is not None), None)

    async def _settle(self, call: PlannedCall) -> Ending | None:
        """Bring one call to its result: through its gate if it has one, then through its tool if it may run."""
        failure = None
        if call.request_id is None:
            failure = await self._run_tool(call, decision_id=None)
        else:
            try:
                gate = await self._wait_at_gate(call, call.request_id)
            except ActivityError as error:  # its expiry could not be stored
                failure = describe_failure(error)
            else:
                if gate.verb is not None and runs_the_call(gate.kind, gate.verb, gate.outcome):
                    failure = await self._run_tool(call, decision_id=gate.decision_id)
        if failure is not None:  # the run has to end, so it must not wait for its other calls
            self._in_flight.interrupt(InterruptInput(by="engine", reason=failure.reason))
        return failure

    # Gates

    def _open_gates(self, planned: Sequence[PlannedCall]) -> None:
        """Open the gates of these calls, and leave a command for it in history.

        A workflow task without commands may be merged with the next one on replay, and of a merged task Temporal delivers
        decisions before the activity's result that opened their gate (temporalio/sdk-rust#1146). A decision that found its
        gate the first time would not find it then, others would pass it, and the run would be stuck as not deterministic.
        If no timer of a gate is such a command, a memo is; it also shows on Temporal's page what was asked last.
        """
        opened = [(call, call.request_id) for call in planned if call.request_id not in self._state.gates]
        request_ids = [request_id for call, request_id in opened if request_id is not None]
        for call, request_id in opened:
            if request_id is not None:  # else the call has no gate
                self._state.gates[request_id] = self._gate_of(call)
        timed = any(call.expires_after_seconds is not None or (call.terms or PLAIN_TERMS).ladder for call, _ in opened)
        if request_ids and not timed:
            workflow.upsert_memo({"last_asked": request_ids})

    def _gate_of(self, call: PlannedCall) -> Gate:
        terms = call.terms or PLAIN_TERMS
        gate = Gate(call=call.call, kind=call.kind, digest=call.digest, not_by=call.not_by, terms=terms)
        if self._state.interrupted:
            gate.status = "cancelled"
        return gate

    async def _wait_at_gate(self, call: PlannedCall, request_id: str) -> Gate:
        """Wait until the request is decided, expired or cancelled. No place is held while a person thinks.

        Meanwhile the request climbs its ladder. Neither a rung nor parking ends the wait.
        """
        gate = self._state.gates[request_id]
        opened_at = gate.opened_at or workflow.now()
        notes: list[asyncio.Task[None]] = []
        for rung in gate.terms.rungs_before(call.expires_after_seconds)[gate.climbed :]:
            after = timedelta(seconds=gate.terms.ladder[rung].after_seconds)
            if await self._ends_before(gate, opened_at + after, "ladder"):
                break
            notes += await self._climb(request_id, rung)
        if gate.status == "pending" and call.expires_after_seconds is not None:
            expires_at = opened_at + timedelta(seconds=call.expires_after_seconds)
            if not await self._ends_before(gate, expires_at, "expiry"):
                notes += await self._expire(gate, request_id)
        await workflow.wait_condition(lambda: gate.status != "pending")
        for note in notes:  # a request that has ended needs no more notes about its wait
            note.cancel()
        return gate

    async def _ends_before(self, gate: Gate, until: datetime, summary: str) -> bool:
        """Wait for the end of a request until an instant; False if it is still pending then."""
        timeout = max(until - workflow.now(), timedelta(0))
        try:
            await workflow.wait_condition(lambda: gate.status != "pending", timeout=timeout, timeout_summary=summary)
        except TimeoutError:
            return False
        return True

    async def _climb(self, request_id: str, rung: int) -> list[asyncio.Task[None]]:
        """Climb one rung of the ladder, unless a decision came first; returns the task that notes it in the store."""
        async with self._decision_lock.hold(Source.TIMER):
            climbed = self._state.climb(request_id, rung)
        if not climbed:
            return []
        order = ClimbLadderInput(run_id=self._run_id, request_id=request_id, rung=rung, at=workflow.now())
        note = workflow.start_activity(contract.CLIMB_LADDER, order, **activity_options.CLIMB_LADDER)
        return [asyncio.create_task(self._store(note))]

    async def _expire(self, gate: Gate, request_id: str) -> list[asyncio.Task[None]]:
        """End or park a request whose time is over, unless a decision came first.

        The store has an expiry before its call counts as settled. Parking is only noted, by the task that is returned.
        """
        park = gate.terms.on_expiry == "park"
        async with self._decision_lock.hold(Source.TIMER):
            expired = gate.status == "pending" if park else self._state.expire(request_id)
        if not expired:
            return []
        expiry = RecordExpiryInput(run_id=self._run_id, request_id=request_id, at=workflow.now(), park=park)
        if park:
            note = workflow.start_activity(contract.RECORD_EXPIRY, expiry, **activity_options.RECORD_EXPIRY)
            return [asyncio.create_task(self._store(note))]
        await workflow.execute_activity(contract.RECORD_EXPIRY, expiry, **activity_options.RECORD_EXPIRY)
        return []

    @staticmethod
    async def _store(note: workflow.ActivityHandle[None]) -> None:
        """Store a note about a request that still waits.

        On a task of its own: a store that is away is tried for a week, with pauses, and neither a decision nor the next rung
        nor the expiry must wait for that. Each rung also notes those below it, so their order does not matter.
        """
        with suppress(ActivityError):
            await note

    # Tools

    async def _run_tool(self, call: PlannedCall, decision_id: str | None) -> Ending | None:
        """Run the tool in one of the step's places; a person is asked about an unknown outcome, then it comes back here."""
        async with self._place():
            if self._state.interrupted:
                return None
            handle = workflow.start_activity(
                contract.RUN_TOOL,
                RunToolInput(run_id=self._run_id, call=call.call, decision_id=decision_id),
                result_type=RunToolResult,
                **activity_options.run_tool(call, self._limits),
            )
            try:
                result = await self._in_flight.wait_for_activity(handle)
            except ActivityError as error:
                return describe_failure(error)
        if result is None:
            return None
        match result.state:
            case "settled":
                self._state.finishing = self._state.finishing or result.finishes
                return None
            case "unknown":
                return await self._ask(call.as_resolution_question(result.outcome_request_id, result.digest))
            case "asked_again":
                return await self._ask(result.again or call)
            case "waits":
                wait = result.wait or Wait()
                if wait.news is None:
                    return await self._wait_for_timer(call, wait)
                return await self._wait_for_news(call, decision_id, wait)
            case "child":
                return await self._run_child(call, result.child)
            case _:
                assert_never(result.state)

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

    async def _ask(self, call: PlannedCall) -> Ending | None:
        """Take the call through a gate that running it has opened."""
        self._open_gates([call])
        return await self._settle(call)

    async def _wait_for_timer(self, call: PlannedCall, wait: Wait) -> Ending | None:
        """Hold the call on a durable timer, then store its result. An interrupt ends the wait, and closes the call."""
        timeout = timedelta(seconds=wait.seconds or 0) if wait.until is None else wait.until - workflow.now()
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._state.interrupted, timeout=max(timeout, timedelta(0)), timeout_summary="wait_until"
            )
        return await self._store_result(call)

    async def _wait_for_news(self, call: PlannedCall, decision_id: str | None, wait: Wait) -> Ending | None:
        """Wait for news from the program that runs the call, or until its time is over; ``run_tool`` knows what either means."""
        within = None if wait.until is None else max(wait.until - workflow.now(), timedelta(0))
        await self._in_flight.wait_for_news(call.call, wait.news, within)
        return await self._run_tool(call, decision_id)

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
