"""Activity ``call_model``: close the step before, ask the model once, store its answer, plan its calls.

The response is stored, unique by (run, step), before anything else is done with it that takes long or isn't the engine's own
code: a retry finds it and does not pay twice. The plan is stored with it or after it, together with the inbox requests it opens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import structlog
from sqlalchemy.exc import IntegrityError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from turngate.activities.engine.costs import cost_micros
from turngate.activities.engine.engine import Engine
from turngate.activities.engine.error_log import Where, keeping_crashes
from turngate.activities.engine.external_agents import external_response
from turngate.activities.engine.heartbeats import heartbeating
from turngate.activities.engine.lost_workers import judging
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.fork_summary import ForkSummary
from turngate.activities.model.model_call import Attempt, ModelAnswer, ModelCall, failed_request, failure_of
from turngate.activities.planning.budgets import extension_call
from turngate.activities.planning.dry_run import DryPlanner
from turngate.activities.planning.judge import StepJudge
from turngate.activities.planning.planner import PlannedStep, Planner, StepResponse
from turngate.activities.runs.step_boundary import StepBoundary, StepStart, after_step, open_next
from turngate.domain import contract
from turngate.domain.agents.app import Agent
from turngate.domain.contract import CallModelInput, NextStep, StepPlan
from turngate.domain.runs.outcomes import end_payload
from turngate.domain.tools.external import is_external
from turngate.runtime import log_ids
from turngate.store.clock import now
from turngate.store.events import events
from turngate.store.events.row_digests import text_digest
from turngate.store.evidence import planned_digests
from turngate.store.live import sent_messages
from turngate.store.runs import calls, messages, runs, steps, subtree_usage
from turngate.store.together import Writes

log = structlog.get_logger(__name__)


class CallModel:
    """Takes one step of a run: asks its model, and plans the calls of the response."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.boundary = StepBoundary(engine)
        self._planner = Planner(engine)
        self._judge = StepJudge(engine, self._planner)
        self._dry_planner = DryPlanner(engine)
        self._model = ModelCall(engine)
        self._fork_summary = ForkSummary(engine)

    @activity.defn(name=contract.CALL_MODEL)
    async def call_model(self, start: CallModelInput) -> StepPlan:
        """Return the plan of step ``start.step``. Safe to repeat: a stored response or plan is returned as it is.

        Raises:
            ApplicationError: ``model_error`` (``details[0]``: its class; retryable as the provider's answer says, with
                its Retry-After as the next delay) or ``configuration`` (not retryable).
        """
        info = activity.info()
        if start.failed is not None and info.attempt == 1:
            raise failed_request(start.failed)
        lock = self._engine.order_locks.hold(start.run_id, start.step)
        async with heartbeating(), lock, self._keeping_crashes(start.run_id, start.step):
            begin = await self.boundary.begin(start.run_id, start.step)
            if begin.stored is not None and begin.stored.stored_plan is not None:
                return begin.stored.stored_plan
            if not begin.run.may_start:
                return StepPlan(final=False, stopped=True)
            return await self._take(begin, start.step, Attempt(info.attempt, since=info.scheduled_time))

    async def next_step(self, run_id: str, step: int, begin: StepStart | None = None) -> NextStep | None:
        """Take this step in the activity that has settled the last call of the one before (ADR 0033); None: not here.

        Only the one that closes that step asks the model. So no two of them pay for an answer, and a repeat of the activity,
        which finds the step closed, leaves the rest to ``call_model``, as any failure does that may pass. ``begin``: where this
        step begins, if that one was closed with its last result.

        Raises:
            ApplicationError: not retryable, as those of ``call_model``.
        """
        try:
            async with self._engine.order_locks.hold(run_id, step), self._keeping_crashes(run_id, step):
                begins = begin or await self.boundary.pass_on(run_id, step)
                if isinstance(begins, StepStart):
                    return NextStep(plan=await self._take(begins, step, Attempt(1, since=now())))
        except ApplicationError as error:
            if error.non_retryable:
                raise
            return NextStep(failed=failure_of(error))
        except Exception:
            log.exception("the next step was not taken with the last call of the one before", run_id=run_id, step=step)
            return NextStep()
        return NextStep() if begins == "closed" else None

    async def _take(self, begin: StepStart, number: int, attempt: Attempt) -> StepPlan:
        """Take the step that begins here, from wherever an earlier attempt left it."""
        # And no longer to the call before.
        log_ids.belongs_to({"run_id": begin.run.id, "step": number})
        step = RunStep(begin.run, await self._agent(begin.run), number)
        if begin.stored is not None and begin.response is not None:
            finish_reason, corrective = begin.stored.finish_reason, begin.stored.corrective
            return await self._plan(StepResponse(step, begin.response, finish_reason, corrective), begin.seen)
        for_budget = await extension_call(self._engine, step)
        if for_budget is not None:
            return StepPlan(final=False, budget=for_budget)
        step = step.of(await self._fork_summary.begin(step))
        answered = await self._answer(step, attempt)
        answer, corrective = answered.response, answered.corrective
        if answer.is_final:
            plan = await self._finish(step, answered, begin.seen)
            await after_step(self._engine, step.run, step.number)
            return plan
        response = StepResponse(step, answer.message, answer.finish_reason, corrective, answered.history)
        may_join = attempt.number == 1 and begin.seen is not None
        planned = await self._planned_at_once(response) if may_join else None
        return await self._store(response, answered, planned, begin.seen) or await self._plan(response, begin.seen)

    def _keeping_crashes(self, run_id: str, step: int) -> AbstractAsyncContextManager[None]:
        return keeping_crashes(self._engine, Where(run_id=run_id, step=step))

    async def _agent(self, run: runs.Run) -> Agent:
        """Return the agent with the run's overrides."""
        if run.world is None and not is_external(run.agent):  # no transaction for what hardly any run has
            return self._engine.agent(run.agent)
        async with self._engine.database.read() as conn:
            return await self._engine.agent_of(conn, run)

    async def _answer(self, step: RunStep, attempt: Attempt) -> ModelAnswer:
        """Return the model's answer; for an external call, the call itself."""
        if not is_external(step.run.agent):
            return await self._model.ask(step, attempt)
        async with self._engine.database.read() as conn:
            return ModelAnswer(await external_response(conn, step.run, step.number))

    async def _planned_at_once(self, response: StepResponse) -> PlannedStep | None:
        """Return the plan of a response that isn't stored yet; None: that would take long, or failed, so it is stored first."""
        try:
            if not self._planner.is_quick(response):
                return None
            async with self._engine.database.glance() as conn:
                return await self._planner.plan(conn, response)
        except Exception:
            log.exception("a response is stored before it is planned", run_id=response.step.run.id)
            return None

    async def _store(
        self, response: StepResponse, answered: ModelAnswer, planned: PlannedStep | None, seen: int | None
    ) -> StepPlan | None:
        """Store a response; return its plan if that was stored with it. ``planned``: None: it has none yet.

        ``seen``: as of :class:`StepStart`.
        """
        run, number = response.step.run, response.step.number
        new = self._new_step(response.step, answered)
        async with _first_attempt_counts(), self._engine.database.write() as conn:
            if planned is not None and seen is not None:
                await self._model.live.forget(conn, run.id, number)
                if await steps.record_unless_changed(
                    conn,
                    run,
                    replace(new, plan=planned.plan),
                    [_responded(response, planned.calls), *planned.events],
                    seen=seen,
                    planned=planned.calls,
                    opened=planned.requests,
                ):
                    return planned.plan
            await steps.record_response(conn, run, new, last=True)
        return None

    def _new_step(self, step: RunStep, answered: ModelAnswer) -> steps.NewStep:
        """Return the step that an answer is stored as, not planned yet."""
        answer = answered.response
        return steps.NewStep(
            number=step.number,
            response=answer,
            corrective=answered.corrective,
            cost_micros=cost_micros(self._engine, answer.spec or step.run.model, answer.usage),
            asked_at=answered.asked_at,
        )

    async def _finish(self, step: RunStep, answered: ModelAnswer, seen: int | None) -> StepPlan:
        """Store the final answer and end the run, in one transaction. ``seen``: as of :class:`StepStart`."""
        run, plan, answer = step.run, StepPlan(final=True), answered.response
        new = replace(self._new_step(step, answered), plan=plan, corrective=None)
        responded = _responded(StepResponse(step, answer.message, answer.finish_reason), final=True)
        new_events = [responded, ("run.ended", end_payload(status="completed"))]
        async with _first_attempt_counts(), self._engine.database.write() as conn:
            await self._model.live.forget(conn, run.id, step.number)
            if seen is not None and await steps.record_unless_changed(conn, run, new, new_events, seen=seen):
                return plan
            await steps.record_response(conn, run, new)
            await events.append(conn, run.id, new_events)
            next_run = await open_next(self._engine, conn, run)
            if next_run is not None:
                plan = plan.model_copy(update={"next": next_run})
                await steps.replace_plan(conn, run.id, step.number, plan)
        return plan

    async def _plan(self, response: StepResponse, seen: int | None) -> StepPlan:
        """Plan the calls of a stored response, and store the plan with all that follows from it.

        ``seen``: as of :class:`StepStart`.
        """
        run, number = response.step.run, response.step.number
        async with judging(self._engine, run.id, f"the plan of step {number}"):
            await self._judge.judge_step(response)
            # Crashes are stored before the requests that name them.
            async with (
                self._keeping_crashes(run.id, number),
                self._engine.database.glance() as conn,
            ):  # the door asks again about everything that is read here
                planner = self._dry_planner if run.is_dry else self._planner
                planned = await planner.plan(conn, response)
        used = subtree_usage.SubtreeUsage(tool_calls=len(planned.calls))
        async with self._engine.database.write() as conn:
            await self._model.live.forget(conn, run.id, number)
            if run.parent_run_id is None and seen is not None:
                writes, new_events = self._to_store(response, planned)
                if await events.append_unless_changed(
                    conn, run.id, new_events, seen=seen, change=events.NO_CHANGE, writes=writes
                ):
                    return planned.plan
            if not await runs.advance(conn, run.id, step=number):
                # An attempt that was thought lost: its requests would wait in the inbox forever.
                raise ApplicationError(f"run {run.id} has ended; step {number} is not planned any more", "conflict")
            stored = await steps.get(conn, run.id, number)
            if stored is not None and stored.stored_plan is not None:
                return stored.stored_plan
            waiting = await sent_messages.waiting(conn, run)
            superseding = next((each for each in waiting if each.while_running == "supersede"), None)
            if superseding is not None:
                planned.supersede(by=superseding.sent_by)
            await subtree_usage.add(conn, run, used)
            writes, new_events = self._to_store(response, planned)
            await events.append(conn, run.id, new_events, writes=writes)
        return planned.plan

    @staticmethod
    def _to_store(response: StepResponse, planned: PlannedStep) -> tuple[Writes, list[events.NewEvent]]:
        """Return what stores a plan, and its events."""
        step = response.step
        writes = steps.plan_writes(step.run.id, step.number, planned.plan, planned.calls, planned.requests)
        return writes, [_responded(response, planned.calls), *planned.events]


def _responded(response: StepResponse, planned: Sequence[calls.Call] = (), *, final: bool = False) -> events.NewEvent:
    """Return the event of a response, with digests of its message and of the calls that were planned for it.

    ``final``: no message closes the step.
    """
    run, number, message = response.step.run, response.step.number, response.message
    written = [steps.response_message(run, number, message)]
    if not final and (response.corrective is not None or not message.calls):
        written.append(steps.correction_message(run, number, response.corrective))
    digests = events.digests(
        message={each.id: messages.digest(each, run.nonce) for each in written},
        **planned_digests(planned),
        control={each.tool_call_id: text_digest(each.signal, run.nonce) for each in planned if each.signal is not None},
        result={each.tool_call_id: calls.result_digest(each) for each in planned if each.result is not None},
    )
    payload = {"step": number, "finish_reason": response.finish_reason, "calls": len(message.calls)}
    return "step.responded", {**payload, **digests}


@asynccontextmanager
async def _first_attempt_counts() -> AsyncIterator[None]:
    """Fail retryably where another attempt has stored this step's response; the retry finds what it stored.

    An attempt that was thought lost may store its response late, or first: (run, step) is unique, and one answer counts.
    """
    try:
        yield
    except IntegrityError as error:
        raise ApplicationError("another attempt stored this step's response", "conflict") from error
