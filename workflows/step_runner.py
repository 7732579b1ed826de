"""StepRunner the calls of a step: each through its gate, its tool, its wait or its sub-agent, on a task of its own."""

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
    """Brings the calls of a run to their results, step by step. Only ever used by its run's workflow."""

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
        """Settle every call of the step on its own task; a slow gate holds up nobody else."""
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
                gate = await self._answered(call, call.request_id)
            except ActivityError as error:  # its expiry could not be stored
                failure = describe_failure(error)
            else:
                if gate.verb is not None and runs_the_call(gate.kind, gate.verb, gate.outcome):
                    failure = await self._run_tool(call, decision_id=gate.decision_id)
        if failure is not None:  # the run cannot go on, so its other calls must not be waited for
            self._in_flight.stop(InterruptInput(by="engine", reason=failure.reason))
        return failure

    def _open_gates(self, planned: Sequence[PlannedCall]) -> None:
        """Open the gates of these calls, and leave a command of it in history.

        A workflow task without commands may be merged with the next one on replay, and of what is merged Temporal delivers
        decisions before the activity's result that opened their gate (temporalio/sdk-rust#1146). A decision that found its
        gate would then look for it in vain, others would go before it, and the run would be stuck as not deterministic.
        Where a gate's timer is no such command, a memo is; it also tells who looks at Temporal's page what was asked last.
        """
        opened = [(call, call.request_id) for call in planned if call.request_id not in self._state.gates]
        asked = [request_id for call, request_id in opened if request_id is not None]
        for call, request_id in opened:
            if request_id is not None:  # else the call has no gate
                self._state.gates[request_id] = self._gate_of(call)
        timed = any(call.expires_after_seconds is not None or (call.terms or PLAIN_TERMS).ladder for call, _ in opened)
        if asked and not timed:
            workflow.upsert_memo({"last_asked": asked})

    def _gate_of(self, call: PlannedCall) -> Gate:
        terms = call.terms or PLAIN_TERMS
        gate = Gate(call=call.call, kind=call.kind, digest=call.digest, not_by=call.not_by, terms=terms)
        if self._state.interrupted:
            gate.status = "cancelled"
        return gate

    async def _answered(self, call: PlannedCall, request_id: str) -> Gate:
        """Wait until the request is decided, expired or cancelled. No place is held while a person thinks.

        On the way it climbs its ladder. Waking up for a rung, or to be parked, answers nothing: it waits on.
        """
        gate = self._state.gates[request_id]
        opened_at = gate.opened_at or workflow.now()
        telling: list[asyncio.Task[None]] = []
        for rung in gate.terms.rungs_before(call.expires_after_seconds)[gate.climbed :]:
            after = timedelta(seconds=gate.terms.ladder[rung].after_seconds)
            if await self._decided_within(gate, opened_at + after, "ladder"):
                break
            telling += await self._climb(request_id, rung)
        if gate.status == "pending" and call.expires_after_seconds is not None:
            expires_at = opened_at + timedelta(seconds=call.expires_after_seconds)
            if not await self._decided_within(gate, expires_at, "expiry"):
                telling += await self._expire(gate, request_id)
        await workflow.wait_condition(lambda: gate.status != "pending")
        for task in telling:  # what nobody has to be told of any more
            task.cancel()
        return gate

    async def _decided_within(self, gate: Gate, until: datetime, summary: str) -> bool:
        """Wait for the end of a request until an instant; False when it is still pending then."""
        timeout = max(until - workflow.now(), timedelta(0))
        try:
            await workflow.wait_condition(lambda: gate.status != "pending", timeout=timeout, timeout_summary=summary)
        except TimeoutError:
            return False
        return True

    async def _climb(self, request_id: str, rung: int) -> list[asyncio.Task[None]]:
        """Climb one rung of the ladder, unless a decision that was on its way was first; returns what tells of it."""
        async with self._decision_lock.turn(Source.TIMER):
            climbed = self._state.climb(request_id, rung)
        if not climbed:
            return []
        order = ClimbLadderInput(run_id=self._run_id, request_id=request_id, rung=rung, at=workflow.now())
        telling = workflow.start_activity(contract.CLIMB_LADDER, order, **activity_options.CLIMB_LADDER)
        return [asyncio.create_task(self._told(telling))]

    async def _expire(self, gate: Gate, request_id: str) -> list[asyncio.Task[None]]:
        """Let time run out for a request, unless a decision that was on its way was first: it expires, or is parked.

        Its expiry is stored before its call counts as settled; of what is parked is only told, by what is returned.
        """
        park = gate.terms.on_expiry == "park"
        async with self._decision_lock.turn(Source.TIMER):
            expired = gate.status == "pending" if park else self._state.expire(request_id)
        if not expired:
            return []
        expiry = RecordExpiryInput(run_id=self._run_id, request_id=request_id, at=workflow.now(), park=park)
        if park:
            telling = workflow.start_activity(contract.RECORD_EXPIRY, expiry, **activity_options.RECORD_EXPIRY)
            return [asyncio.create_task(self._told(telling))]
        await workflow.execute_activity(contract.RECORD_EXPIRY, expiry, **activity_options.RECORD_EXPIRY)
        return []

    @staticmethod
    async def _told(telling: workflow.ActivityHandle[None]) -> None:
        """Let the store hear of a request that waits on.

        On a task of its own: a store that is away is tried for a week, with pauses, and a decision, the next rung or the
        expiry must not wait for one of them. Each rung tells of those below it, too, so it does not matter which is first.
        """
        with suppress(ActivityError):
            await telling

    async def _run_tool(self, call: PlannedCall, decision_id: str | None) -> Ending | None:
        """Run the tool in one of the step's places; an unknown outcome goes to a person and comes back here."""
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
                result = await self._in_flight.until_done(handle)
            except ActivityError as error:
                return describe_failure(error)
        if result is None:
            return None
        match result.state:
            case "settled":
                self._state.finishing = self._state.finishing or result.finishes
            case "unknown":
                asked = {
                    "request_id": result.outcome_request_id,
                    "kind": "outcome",
                    "digest": result.digest,
                    "terms": None,
                }
                return await self._asked(call.model_copy(update={**asked, "expires_after_seconds": None}))
            case "asked_again":
                return await self._asked(result.again or call)
            case "waits":
                wait = result.wait or Wait()
                return await (self._wait(call, wait) if wait.news is None else self._outside(call, decision_id, wait))
            case "child":
                return await self._child(call, result.child)
            case _:
                assert_never(result.state)
        return None

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

    async def _asked(self, call: PlannedCall) -> Ending | None:
        """Go through a gate that running the call has opened."""
        self._open_gates([call])
        return await self._settle(call)

    async def _wait(self, call: PlannedCall, wait: Wait) -> Ending | None:
        """Hold the call on a durable timer, then store its result. An interrupt ends the wait, and closes the call."""
        timeout = timedelta(seconds=wait.seconds or 0) if wait.until is None else wait.until - workflow.now()
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._state.interrupted, timeout=max(timeout, timedelta(0)), timeout_summary="wait_until"
            )
        return await self._settled_elsewhere(call)

    async def _outside(self, call: PlannedCall, decision_id: str | None, wait: Wait) -> Ending | None:
        """Wait for news of the program that runs the call, or until its time is over; the door knows what that means."""
        within = None if wait.until is None else max(wait.until - workflow.now(), timedelta(0))
        await self._in_flight.heard(call.call, wait.news, within)
        return await self._run_tool(call, decision_id)

    async def _child(self, call: PlannedCall, child: ChildRun | None) -> Ending | None:
        """Let a sub-agent's run answer the call. It closes by itself, also when its parent is gone."""
        if self._state.held:
            await workflow.wait_condition(lambda: not self._state.held)
        if child is not None and not self._state.interrupted:
            # How it ended is in the store, and the call's result says it; of one that could not start, too.
            with suppress(ChildWorkflowError, WorkflowAlreadyStartedError):
                await self._answered_by(child)
        return await self._settled_elsewhere(call)

    async def _answered_by(self, child: ChildRun) -> None:
        """Start a sub-agent's run and wait for its end, which an interrupt asks for and does not cut short."""
        heartbeat = {"heartbeat_timeout_seconds": self._limits.heartbeat_timeout_seconds}
        limits = child.limits.model_copy(update=heartbeat)
        handle = await workflow.start_child_workflow(
            contract.AGENT_TURN,
            AgentTurnInput(run_id=child.run_id, agent=child.agent, limits=limits, state=child.state),
            id=child.run_id,
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
        )
        await self._in_flight.until_ended(handle)

    async def _settled_elsewhere(self, call: PlannedCall) -> Ending | None:
        """Store the result of a call that no activity was running for; of an interrupted run ``close_step`` does it."""
        if self._state.interrupted:
            return None
        settling = SettleCallInput(run_id=self._run_id, call=call.call)
        try:
            await workflow.execute_activity(contract.SETTLE_CALL, settling, **activity_options.SETTLE_CALL)
        except ActivityError as error:
            return describe_failure(error)
        return None
