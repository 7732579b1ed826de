"""AgentTurn: one run, from an input message to the agent's answer or stop. Reads like the story in DESIGN §3.

The state is one value (:class:`turngate.domain.turn_state.TurnState`); a decision, an expiry and an interrupt meet in
it and nowhere else. Conversation content never passes through here: ids and digests only (I8).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar, assert_never

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    TemporalError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import (
        AgentTurnInput,
        AgentTurnResult,
        CallModelInput,
        ChildRun,
        CloseStepInput,
        DecideInput,
        DecideResult,
        InterruptInput,
        PlannedCall,
        RecordDecisionInput,
        RecordedDecision,
        RecordExpiryInput,
        RunToolInput,
        RunToolResult,
        SettleCallInput,
        StepPlan,
        Wait,
    )
    from turngate.domain.requests import runs_the_call
    from turngate.domain.turn_state import Gate, Refusal, TurnState
    from workflows import activity_options
    from workflows.endings import Ending, describe_failure

Result = TypeVar("Result")

STORE_PAUSE = timedelta(seconds=5)


@workflow.defn(name=contract.AGENT_TURN)
class AgentTurn:
    """One agent turn. Workflow id = run id."""

    @workflow.init
    def __init__(self, start: AgentTurnInput) -> None:
        """Make the state before any handler runs: a decision may arrive ahead of the first line of :meth:`run`."""
        self._run_id = start.run_id
        self._limits = start.limits
        self._state = start.state or TurnState()
        self._started_at_step = self._state.step
        self._running: set[workflow.ActivityHandle[Any]] = set()
        self._children: set[workflow.ChildWorkflowHandle[Any, Any]] = set()
        self._telling: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(start.limits.concurrency)
        # Two decisions for one request interleave where the first awaits its record: without this lock both would
        # have passed `refusal` and the second would overwrite the winner.
        self._deciding = asyncio.Lock()

    @workflow.run
    async def run(self, start: AgentTurnInput) -> AgentTurnResult:
        """Do the work; a cancellation of the workflow itself is an interrupt like any.

        It comes past our API, or because the parent's workflow is gone. The work has a task of its own, which it cannot
        tear: wherever it arrives, also while the run is being closed, every call is closed and the store hears of it.
        """
        work = asyncio.create_task(self._work(start))
        try:
            await workflow.wait([work])
        except asyncio.CancelledError:
            if workflow.cancellation_reason() is None:  # the SDK takes this instance out of its cache
                raise
            self._stop(InterruptInput(by="temporal", reason="The workflow was cancelled."))
        return await work

    async def _work(self, start: AgentTurnInput) -> AgentTurnResult:
        """Loop over steps until the model makes no calls, a limit is reached, or the run is interrupted."""
        while True:
            ending = await self._step()
            await workflow.wait_condition(lambda: not self._running and workflow.all_handlers_finished())
            if ending is None and self._state.interrupted:
                ending = Ending.interrupted(self._state)
            if ending is not None:
                return await self._end(ending)
            if self._is_long():
                workflow.continue_as_new(start.model_copy(update={"state": self._state}))

    # One step

    async def _step(self) -> Ending | None:
        """Get one response and settle its calls; None: go on with the next step."""
        state, limits = self._state, self._limits
        if state.interrupted:
            return Ending.interrupted(state)
        if state.step > limits.steps:
            return Ending.failed("step_cap", f"The run reached its limit of {limits.steps} steps.")
        try:
            plan = await self._call_model()
        except ActivityError as error:
            return describe_failure(error)
        if plan is None:
            return Ending.interrupted(state)
        if plan.final:
            return Ending.completed()
        failure = await self._settle_all(plan)
        if failure is not None or state.interrupted:
            return failure
        if state.finishing:
            return Ending.finished()
        state.close_step(malformed=plan.malformed)
        if state.malformed_in_a_row >= limits.malformed_in_a_row:
            return Ending.failed(
                "malformed",
                f"The model sent {state.malformed_in_a_row} responses in a row that nothing could be run from, which is the "
                f"agent's limit (malformed_in_a_row). Of the last one: {plan.problem}.",
            )
        return None

    async def _call_model(self) -> StepPlan | None:
        handle = workflow.start_activity(
            contract.CALL_MODEL,
            CallModelInput(run_id=self._run_id, step=self._state.step),
            result_type=StepPlan,
            **activity_options.call_model(self._limits),
        )
        return await self._tracked(handle)

    async def _settle_all(self, plan: StepPlan) -> Ending | None:
        """Settle every call of the step on its own task; a slow gate holds up nobody else."""
        for call in plan.calls:
            self._open_gate(call)
        endings = await asyncio.gather(*(self._settle(call) for call in plan.calls))
        return next((ending for ending in endings if ending is not None), None)

    async def _settle(self, call: PlannedCall) -> Ending | None:
        """Bring one call to its result: through its gate if it has one, then through its tool if it may run."""
        failure = None
        if call.request_id is None:
            failure = await self._run_tool(call, decision_id=None)
        else:
            gate = await self._answered(call.request_id, call.expires_after_seconds)
            if gate.verb is not None and runs_the_call(gate.kind, gate.verb, gate.outcome):
                failure = await self._run_tool(call, decision_id=gate.decision_id)
        if failure is not None:  # the run cannot go on, so its other calls must not be waited for
            self._stop(InterruptInput(by="engine", reason=failure.reason))
        return failure

    def _open_gate(self, call: PlannedCall) -> None:
        if call.request_id is None:
            return
        gate = Gate(call=call.call, kind=call.kind, digest=call.digest, not_by=call.not_by)
        if self._state.interrupted:
            gate.status = "cancelled"
        self._state.gates[call.request_id] = gate

    async def _answered(self, request_id: str, expires_after_seconds: int | None) -> Gate:
        """Wait until the request is decided, expired or cancelled. No place is held while a person thinks."""
        gate = self._state.gates[request_id]
        timeout = None if expires_after_seconds is None else timedelta(seconds=expires_after_seconds)
        try:
            await workflow.wait_condition(lambda: gate.status != "pending", timeout=timeout, timeout_summary="expiry")
        except TimeoutError:
            # A decision may be on its way into the store: whoever holds the lock first is first.
            async with self._deciding:
                expired = self._state.expire(request_id)
            if expired:
                expiry = RecordExpiryInput(run_id=self._run_id, request_id=request_id, at=workflow.now())
                await workflow.execute_activity(contract.RECORD_EXPIRY, expiry, **activity_options.RECORD_EXPIRY)
        return gate

    async def _run_tool(self, call: PlannedCall, decision_id: str | None) -> Ending | None:
        """Run the tool in one of the step's places; an unknown outcome goes to a person and comes back here."""
        async with self._places:
            if self._state.interrupted:
                return None
            handle = workflow.start_activity(
                contract.RUN_TOOL,
                RunToolInput(run_id=self._run_id, call=call.call, decision_id=decision_id),
                result_type=RunToolResult,
                **activity_options.run_tool(call, self._limits),
            )
            try:
                result = await self._tracked(handle)
            except ActivityError as error:
                return describe_failure(error)
        if result is None:
            return None
        match result.state:
            case "settled":
                self._state.finishing = self._state.finishing or result.finishes
            case "unknown":
                asked = {"request_id": result.outcome_request_id, "kind": "outcome", "digest": result.digest}
                return await self._asked(call.model_copy(update={**asked, "expires_after_seconds": None}))
            case "asked_again":
                return await self._asked(result.again or call)
            case "waits":
                return await self._wait(call, result.wait or Wait())
            case "child":
                return await self._child(call, result.child)
            case _:
                assert_never(result.state)
        return None

    async def _asked(self, call: PlannedCall) -> Ending | None:
        """Go through a gate that running the call has opened."""
        self._open_gate(call)
        return await self._settle(call)

    async def _wait(self, call: PlannedCall, wait: Wait) -> Ending | None:
        """Hold the call on a durable timer, then store its result. An interrupt ends the wait, and closes the call."""
        timeout = timedelta(seconds=wait.seconds or 0) if wait.until is None else wait.until - workflow.now()
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._state.interrupted, timeout=max(timeout, timedelta(0)), timeout_summary="wait_until"
            )
        return await self._settled_elsewhere(call)

    async def _child(self, call: PlannedCall, child: ChildRun | None) -> Ending | None:
        """Let a sub-agent's run answer the call. It closes by itself, also when its parent is gone."""
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
            AgentTurnInput(run_id=child.run_id, agent=child.agent, limits=limits),
            id=child.run_id,
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
        )
        self._children.add(handle)
        try:
            if self._state.interrupted:  # it came while the child was being started
                await self._interrupt_child(handle)
            await handle
        finally:
            self._children.discard(handle)

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

    async def _tracked(self, handle: workflow.ActivityHandle[Result]) -> Result | None:
        """Await an activity that an interrupt may cancel; None when it did."""
        self._running.add(handle)
        try:
            return await handle
        except ActivityError as error:
            if not is_cancelled_exception(error):
                raise
            return None
        except asyncio.CancelledError:
            # Cancelled in the moment in which its result came: the SDK raises this in place of ActivityError. It must
            # not tear the step, whose other calls (a sub-agent's run, say) have still to come to their ends.
            if not self._state.interrupted:
                raise
            return None
        finally:
            self._running.discard(handle)

    # The end

    async def _end(self, ending: Ending) -> AgentTurnResult:
        """Close what is open and end the run, unless the store has both already."""
        state = self._state
        if not ending.stored:
            closing = CloseStepInput(
                run_id=self._run_id,
                status=ending.status,
                reason=ending.reason,
                by=state.interrupted_by or "",
                at=workflow.now(),
                error_class=ending.error_class,
            )
            await workflow.execute_activity(contract.CLOSE_STEP, closing, **activity_options.CLOSE_STEP)
        await workflow.wait_condition(workflow.all_handlers_finished)
        if ending.status == "failed":
            raise ApplicationError(ending.reason, type=contract.ERROR_RUN_FAILED, non_retryable=True)
        return AgentTurnResult(status=ending.status, steps=state.step)

    def _is_long(self) -> bool:
        """Tell whether to continue as new; called only at a closed step with every handler finished (I8)."""
        limit = self._limits.continue_as_new_after_steps
        due = limit is not None and self._state.step - self._started_at_step >= limit
        return due or workflow.info().is_continue_as_new_suggested()

    # Handlers

    @workflow.update(name=contract.DECIDE)
    async def decide(self, decision: DecideInput) -> DecideResult:
        """Take a decision, or say why not; the same decision id gets the first answer again (I4)."""
        return await self._decide(decision)

    @decide.validator
    def _validate_decide(self, decision: DecideInput) -> None:
        if self._state.answer_to(decision) is None and decision.request_id in self._state.gates:
            self._raise(self._state.refusal(decision))

    @workflow.signal(name="decide")
    async def decide_by_signal(self, decision: DecideInput) -> None:
        """Take a decision that was sent while no worker answered. It was accepted, so a store that is away is waited for."""
        while True:
            try:
                await self._decide(decision)
            except ApplicationError as refused:
                if refused.type == contract.ERROR_STORE_UNAVAILABLE:
                    await workflow.sleep(STORE_PAUSE)
                    continue
                workflow.logger.warning("decision %s refused: %s", decision.decision_id, refused.type)
            return

    @workflow.signal(name=contract.INTERRUPT)
    def interrupt(self, interrupt: InterruptInput) -> None:
        """Stop the run: cancel what runs, end what waits."""
        self._stop(interrupt)

    def _stop(self, interrupt: InterruptInput) -> None:
        if self._state.interrupt(interrupt):
            for handle in list(self._running):
                handle.cancel()
            for child in list(self._children):
                self._telling.add(asyncio.create_task(self._interrupt_child(child)))

    async def _interrupt_child(self, child: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """Pass the interrupt on, in the words of whoever gave it. A child that has just ended cannot be told."""
        told = InterruptInput(by=self._state.interrupted_by or "engine", reason=self._state.interrupt_reason)
        with suppress(TemporalError):
            await child.signal(contract.INTERRUPT, told)

    async def _request_known(self, request_id: str) -> None:
        """Wait for a request that an activity has written and this workflow has not heard of yet.

        The inbox shows a request the moment it is committed; the activity's completion reaches us a little later, or
        much later if its worker died in between. An operator who is that fast must not be told "no such request".
        """
        state = self._state
        await workflow.wait_condition(lambda: request_id in state.gates or state.interrupted or not self._running)

    async def _decide(self, decision: DecideInput) -> DecideResult:
        await self._request_known(decision.request_id)
        async with self._deciding:
            known = self._state.answer_to(decision)
            if known is None:
                self._raise(self._state.refusal(decision))
                recorded = await self._record(decision)
                known = self._state.settle(decision.request_id, recorded)
                self._raise(_lost_to(recorded, decision))
            return DecideResult(decision_id=decision.decision_id, status=known.status)

    async def _record(self, decision: DecideInput) -> RecordedDecision:
        """Write the decision into the store before anyone is told, so that whoever decided reads their own write."""
        try:
            recorded: RecordedDecision = await workflow.execute_local_activity(
                contract.RECORD_DECISION,
                RecordDecisionInput(run_id=self._run_id, decision=decision, at=workflow.now()),
                result_type=RecordedDecision,
                **activity_options.RECORD_DECISION,
            )
            return recorded  # noqa: TRY300 - the annotation above is the point
        except ActivityError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.type == contract.ERROR_INVALID_EDIT:
                raise cause from error
            raise ApplicationError(
                "the decision could not be stored; nothing was decided", type=contract.ERROR_STORE_UNAVAILABLE
            ) from error

    @staticmethod
    def _raise(refusal: Refusal | None) -> None:
        # Only ApplicationError fails an update; any other exception would wedge the workflow task.
        if refusal is not None:
            raise ApplicationError(refusal.message, refusal.winner, type=refusal.type, non_retryable=True)


def _lost_to(recorded: RecordedDecision, decision: DecideInput) -> Refusal | None:
    """Name the winner when the store held another decision: one recorded just before a crash ate its answer."""
    if recorded.decision_id == decision.decision_id:
        return None
    return Refusal(
        type="request_not_pending",
        message=f"the request is already {recorded.status}",
        winner=recorded.decision_id,
    )
