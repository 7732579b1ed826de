"""AgentTurn: one run, from an input message to the agent's answer or stop. Reads like the story in DESIGN §3.

The state is one value (:class:`turngate.domain.runs.turn_state.TurnState`). The store decides requests; this workflow learns by
id that something was decided, and asks the store what (ADR 0030). Conversation content never passes through here (I8).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import (
        AgentTurnInput,
        AgentTurnResult,
        CallModelInput,
        ChildRun,
        CloseStepInput,
        CloseStepResult,
        NextStep,
        StepPlan,
    )
    from turngate.domain.runs.turn_state import TurnState
    from turngate.workflows import activity_options
    from turngate.workflows.endings import Ending, describe_failure
    from turngate.workflows.in_flight import InFlight
    from turngate.workflows.labels import labels_of_child
    from turngate.workflows.run_control import RunControl
    from turngate.workflows.step_runner import StepRunner


@workflow.defn(name=contract.AGENT_TURN)
class AgentTurn:
    """One agent turn. Workflow id = run id."""

    @workflow.init
    def __init__(self, start: AgentTurnInput) -> None:
        """Make the state before any handler runs: a signal may arrive ahead of the first line of :meth:`run`."""
        self._run_id = start.run_id
        self._limits = start.limits
        self._state = start.state or TurnState()
        self._started_at_step = self._state.step
        self._in_flight = InFlight(start.run_id, self._state)
        self._control = RunControl(start.run_id, self._state, self._in_flight)
        self._next = NextStep()
        self._step_runner = StepRunner(start.run_id, start.limits, self._state, self._in_flight, self._control)

    @workflow.run
    async def run(self, start: AgentTurnInput) -> AgentTurnResult:
        """Do the work; a cancellation of the workflow itself is an interrupt like any.

        It comes from outside our API, or because the parent's workflow is gone. The work has a task of its own, so that the
        cancellation can't tear it: whenever it arrives, also while the run is being closed, every call is closed in the store.
        """
        work = asyncio.create_task(self._work(start))
        try:
            await workflow.wait([work])
        except asyncio.CancelledError:
            if workflow.cancellation_reason() is None:  # the SDK takes this instance out of its cache
                raise
            self._in_flight.interrupt("temporal")
        return await work

    async def _work(self, start: AgentTurnInput) -> AgentTurnResult:
        """Loop over steps until the model makes no calls, a limit is reached, or the run is interrupted."""
        while True:
            ending = await self._step()
            await workflow.wait_condition(lambda: not self._in_flight.activities and workflow.all_handlers_finished())
            if ending is None and self._state.interrupted:
                ending = Ending.interrupted()
            if ending is not None:
                return await self._end(ending)
            if self._next.plan is None and self._is_long(self._state.step):
                newest = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE  # of the worker's builds, if it has any
                carried = start.model_copy(update={"state": self._state})
                workflow.continue_as_new(carried, initial_versioning_behavior=newest)

    # One step

    async def _step(self) -> Ending | None:
        """Get one response and settle its calls; None: continue with the next step."""
        plan = self._next.plan or await self._plan()
        if isinstance(plan, Ending):
            return plan
        self._next = NextStep()
        if plan.stopped:
            await self._control.read()
            return None
        if plan.budget is not None:  # the model was not asked; the step is planned again with what is granted
            return await self._step_runner.settle_all(StepPlan(final=False, calls=(plan.budget,)))
        return Ending.completed(plan.next) if plan.final else await self._settle_step(plan)

    async def _plan(self) -> StepPlan | Ending:
        """Ask the model as soon as the run is not held; returns what its response asks for, or how the run ends before."""
        state, limits = self._state, self._limits
        if state.held:
            await workflow.wait_condition(lambda: not state.held)
        if state.interrupted:
            return Ending.interrupted()
        if self._is_beyond_limit(state.step):
            return Ending.failed("step_cap", f"The run reached its limit of {limits.steps} steps.")
        try:
            plan = await self._call_model()
        except ActivityError as error:
            return describe_failure(error)
        return Ending.interrupted() if plan is None else plan

    async def _settle_step(self, plan: StepPlan) -> Ending | None:
        """Settle the calls of a response, and close its step; None: continue with the next one."""
        state, limits = self._state, self._limits
        failure = await self._step_runner.settle_all(plan, then_step=self._step_to_take(plan))
        self._next = self._step_runner.take_next()
        answer = self._next.plan
        if answer is not None and answer.final:  # the run is completed in the store, whatever came since
            state.close_step(malformed=False)
            return Ending.completed(answer.next)
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

    def _step_to_take(self, plan: StepPlan) -> int | None:
        """Return the step that may be taken together with the last call of this plan; None: the workflow has a say first.

        After a control call, at the limit of steps, and where the run continues as new: a request that was opened before
        that would be decided by a signal to an execution that is over.
        """
        following = self._state.step + 1
        if plan.signals or self._is_beyond_limit(following) or self._is_long(following):
            return None
        return following

    def _is_beyond_limit(self, step: int) -> bool:
        return step > self._limits.steps and not self._limits.budgets_ask

    async def _call_model(self) -> StepPlan | None:
        handle = workflow.start_activity(
            contract.CALL_MODEL,
            CallModelInput(run_id=self._run_id, step=self._state.step, failed=self._next.failed),
            result_type=StepPlan,
            **activity_options.call_model(self._limits, decided=self._step_runner.was_decided),
        )
        return await self._in_flight.wait_for_activity(handle)

    # The end

    async def _end(self, ending: Ending) -> AgentTurnResult:
        """Close what is open and end the run, unless the store has both already; then start the conversation's next."""
        state, next_run = self._state, ending.next
        if not ending.stored:
            closing = CloseStepInput(
                run_id=self._run_id,
                status=ending.status,
                reason=ending.reason,
                by=self._in_flight.cause if ending.status == "interrupted" else "",
                at=workflow.now(),
                error_class=ending.error_class,
            )
            closed: CloseStepResult = await workflow.execute_activity(
                contract.CLOSE_STEP, closing, result_type=CloseStepResult, **activity_options.CLOSE_STEP
            )
            next_run = closed.next
        if next_run is not None:
            await self._start(next_run)
        await workflow.wait_condition(workflow.all_handlers_finished)
        if ending.status == "failed":
            raise ApplicationError(ending.reason, type=contract.ERROR_RUN_FAILED, non_retryable=True)
        return AgentTurnResult(status=ending.status, steps=state.step)

    async def _start(self, next_run: ChildRun) -> None:
        """Start the run that answers a message which was sent meanwhile. It does not depend on this one.

        The store recorded it together with this one's end, so if this fails, a sweep of the API starts it.
        """
        limits = next_run.limits.with_heartbeat(self._limits.heartbeat_timeout_seconds)
        with suppress(ChildWorkflowError, WorkflowAlreadyStartedError):
            await workflow.start_child_workflow(
                contract.AGENT_TURN,
                AgentTurnInput(run_id=next_run.run_id, agent=next_run.agent, limits=limits),
                id=next_run.run_id,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                **labels_of_child(next_run, "message"),
            )

    def _is_long(self, step: int) -> bool:
        """Tell whether to continue as new before this step, at a closed step with every handler finished (I8)."""
        limit = self._limits.continue_as_new_after_steps
        due = limit is not None and step - self._started_at_step >= limit
        return due or workflow.info().is_continue_as_new_suggested()

    # Handlers

    @workflow.signal(name=contract.DECIDED)
    def decided(self, request_id: str) -> None:
        """Note that the store has news of a request. Only the store says which: a forged signal changes nothing (I13)."""
        self._in_flight.note_news(request_id)

    @workflow.signal(name=contract.CHANGED)
    async def changed(self) -> None:
        """Read from the store whether the run is to stop, to hold or to continue. A forged signal changes nothing (I13)."""
        await self._control.read()

    @workflow.signal(name=contract.EXTERNAL_CALL)
    def external_call(self, call: str) -> None:
        """Note that there is news of a call that another program runs."""
        self._in_flight.note_news(call)
