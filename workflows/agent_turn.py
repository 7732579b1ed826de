"""AgentTurn: one run, from an input message to the agent's answer or stop. Reads like the story in DESIGN §3.

The state is one value (:class:`turngate.domain.runs.turn_state.TurnState`); a decision, an expiry and an interrupt meet in
it and nowhere else. Conversation content never passes through here: ids and digests only (I8).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import (
        AgentTurnInput,
        AgentTurnResult,
        CallModelInput,
        ChildRun,
        CloseStepInput,
        CloseStepResult,
        DecideInput,
        DecideResult,
        ExternalCallInput,
        InterruptInput,
        PauseInput,
        RecordDecisionInput,
        RecordedDecision,
        ResumeInput,
        StepPlan,
        SupersedeInput,
    )
    from turngate.domain.runs.turn_state import Gate, Refusal, TurnState
    from workflows import activity_options
    from workflows.endings import Ending, describe_failure
    from workflows.in_flight import InFlight
    from workflows.priority_lock import PriorityLock, Source
    from workflows.run_control import RunControl
    from workflows.step_runner import StepRunner

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
        self._in_flight = InFlight(self._state)
        # Two decisions for one request interleave where the first awaits its record: without the lock, both would have
        # passed `refusal`, and the second would overwrite the winner. An expiry waits for the lock, too.
        self._decision_lock = PriorityLock()
        self._step_runner = StepRunner(start.run_id, start.limits, self._state, self._in_flight, self._decision_lock)
        self._control = RunControl(start.run_id, self._state, self._in_flight, self._decision_lock)

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
            self._in_flight.interrupt(InterruptInput(by="temporal", reason="The workflow was cancelled."))
        return await work

    async def _work(self, start: AgentTurnInput) -> AgentTurnResult:
        """Loop over steps until the model makes no calls, a limit is reached, or the run is interrupted."""
        while True:
            ending = await self._step()
            await workflow.wait_condition(lambda: not self._in_flight.activities and workflow.all_handlers_finished())
            if ending is None and self._state.interrupted:
                ending = Ending.interrupted(self._state)
            if ending is not None:
                return await self._end(ending)
            if self._is_long():
                newest = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE  # of the worker's builds, if it has any
                carried = start.model_copy(update={"state": self._state})
                workflow.continue_as_new(carried, initial_versioning_behavior=newest)

    # One step

    async def _step(self) -> Ending | None:
        """Get one response and settle its calls; None: continue with the next step."""
        state, limits = self._state, self._limits
        if state.held:
            await workflow.wait_condition(lambda: not state.held)
        if state.interrupted:
            return Ending.interrupted(state)
        if state.step > limits.steps and not limits.budgets_ask:
            return Ending.failed("step_cap", f"The run reached its limit of {limits.steps} steps.")
        try:
            plan = await self._call_model()
        except ActivityError as error:
            return describe_failure(error)
        if plan is None:
            return Ending.interrupted(state)
        if plan.budget is not None:  # the model was not asked; the step is planned again with what is granted
            return await self._step_runner.settle_all(StepPlan(final=False, calls=(plan.budget,)))
        return Ending.completed(plan.next) if plan.final else await self._settle_step(plan)

    async def _settle_step(self, plan: StepPlan) -> Ending | None:
        """Settle the calls of a response, and close its step; None: continue with the next one."""
        state, limits = self._state, self._limits
        failure = await self._step_runner.settle_all(plan)
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
        self._in_flight.planning = True
        try:
            return await self._in_flight.wait_for_activity(handle)
        finally:
            self._in_flight.planning = False

    # The end

    async def _end(self, ending: Ending) -> AgentTurnResult:
        """Close what is open and end the run, unless the store has both already; then start the conversation's next."""
        state, next_run = self._state, ending.next
        if not ending.stored:
            closing = CloseStepInput(
                run_id=self._run_id,
                status=ending.status,
                reason=ending.reason,
                by=state.interrupted_by or "",
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
            )

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
        """Take a decision that was sent while no worker answered. It was accepted, so wait for a store that is away."""
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
        self._in_flight.interrupt(interrupt)

    @workflow.signal(name=contract.PAUSE)
    async def pause(self, pause: PauseInput) -> None:
        """Hold the run: what runs may finish, nothing new starts."""
        await self._control.pause(pause)

    @workflow.signal(name=contract.RESUME)
    async def resume(self, resume: ResumeInput) -> None:
        """Let a held run continue."""
        await self._control.resume(resume)

    @workflow.signal(name=contract.SUPERSEDE)
    async def supersede(self, supersede: SupersedeInput) -> None:
        """End what waits for a person, because a newer message came."""
        await self._control.supersede(supersede)

    @workflow.signal(name=contract.EXTERNAL_CALL)
    def external_call(self, news: ExternalCallInput) -> None:
        """Note that the program that runs a call from outside is there to start it, or has reported."""
        self._in_flight.note_news(news)

    @workflow.query(name=contract.GATES)
    def gates(self) -> dict[str, Gate]:
        """Return the gates of the step at hand, to compare them with the inbox."""
        return self._state.gates

    async def _wait_for_request(self, request_id: str) -> None:
        """Wait for a request that an activity has written and this workflow does not know yet.

        The inbox shows a request the moment it is committed; the activity's completion reaches us a little later, or
        much later if its worker died in between. An operator who is that fast must not get "no such request".
        """
        state = self._state
        await workflow.wait_condition(
            lambda: request_id in state.gates or state.interrupted or not self._in_flight.activities
        )

    async def _decide(self, decision: DecideInput) -> DecideResult:
        await self._wait_for_request(decision.request_id)
        if self._matches_nothing(decision):
            # How long it waited for its request depends on how tasks were merged (see `StepRunner._open_gates`). If it took
            # the lock after that, so would its place among the others.
            self._raise(self._state.refusal(decision))
        async with self._decision_lock.hold(Source.MESSAGE):
            answer = self._state.answer_to(decision)
            if answer is None:
                self._raise(self._state.refusal(decision))
                recorded = await _record(self._run_id, decision)
                answer = self._state.settle(decision.request_id, recorded)
                self._raise(_lost_to(recorded, decision))
            return DecideResult(decision_id=decision.decision_id, status=answer.status)

    def _matches_nothing(self, decision: DecideInput) -> bool:
        return decision.request_id not in self._state.gates and self._state.answer_to(decision) is None

    @staticmethod
    def _raise(refusal: Refusal | None) -> None:
        # Only ApplicationError fails an update; any other exception would wedge the workflow task.
        if refusal is not None:
            raise ApplicationError(refusal.message, refusal.winner, type=refusal.type, non_retryable=True)


async def _record(run_id: str, decision: DecideInput) -> RecordedDecision:
    """Write the decision into the store before it is answered, so that its author reads their own write.

    Raises ApplicationError: what the activity itself refuses the decision with, or ``store_unavailable``, after which the
    same decision may be recorded again.
    """
    try:
        recorded: RecordedDecision = await workflow.execute_local_activity(
            contract.RECORD_DECISION,
            RecordDecisionInput(run_id=run_id, decision=decision, at=workflow.now()),
            result_type=RecordedDecision,
            **activity_options.RECORD_DECISION,
        )
        return recorded  # noqa: TRY300 - the annotation above is the point
    except FailureError as error:
        # What a local activity raises arrives as it is, not as the cause of an ActivityError like an activity's. Its own
        # refusals are not retryable. Everything else, a timeout too, is a store that is away or too slow.
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, ApplicationError) and cause.non_retryable:
            raise cause from None  # never from itself: the converter follows causes to their end
        raise ApplicationError(
            "the decision could not be stored; nothing was decided", type=contract.ERROR_STORE_UNAVAILABLE
        ) from error


def _lost_to(recorded: RecordedDecision, decision: DecideInput) -> Refusal | None:
    """Name the winner if the store held another decision: one that was recorded just before a crash lost its answer."""
    if recorded.decision_id == decision.decision_id:
        return None
    return Refusal(
        type="request_not_pending",
        message=f"the request is already {recorded.status}",
        winner=recorded.decision_id,
    )
