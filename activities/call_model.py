"""Activity ``call_model``: close the step before, ask the model once, store its answer, plan its calls.

The response is stored, unique by (run, step), before anything else is done with it: a retry finds it and does not pay
twice. The plan is stored with it, in the same transaction as the inbox requests it opens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.exc import IntegrityError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.engine.costs import cost_micros
from activities.engine.engine import Engine
from activities.engine.external_agents import response
from activities.engine.heartbeats import heartbeating
from activities.model.fork_summary import CarryingOver
from activities.model.model_call import ModelAsker
from activities.planning.budgets import extension
from activities.planning.dry_run import DryPlanner
from activities.planning.judge import Judging
from activities.planning.planner import Planner
from activities.runs.step_boundary import StepBoundary, after_step, open_next
from turngate.domain import contract
from turngate.domain.agents.app import Agent
from turngate.domain.contract import CallModelInput, StepPlan
from turngate.domain.conversation.messages import Message, ModelResponse
from turngate.domain.runs.outcomes import end_told
from turngate.domain.tools.external import is_external
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, runs, steps, subtree_usage


class CallModel:
    """The activity with what it stands on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._boundary = StepBoundary(engine)
        self._planner = Planner(engine)
        self._judging = Judging(engine, self._planner)
        self._dry_planner = DryPlanner(engine)
        self._asker = ModelAsker(engine)
        self._carrying_over = CarryingOver(engine)

    @activity.defn(name=contract.CALL_MODEL)
    async def call_model(self, start: CallModelInput) -> StepPlan:
        """Return the plan of step ``start.step``. Safe to repeat: a stored response or plan is returned as it is.

        Raises:
            ApplicationError: ``model_error`` (``details[0]``: its class; retryable as the provider's answer says, with
                its Retry-After as the next delay) or ``configuration`` (not retryable).
        """
        async with heartbeating():
            begin = await self._boundary.begin(start.run_id, start.step)
            run, stored, response = begin.run, begin.stored, begin.response
            if stored is not None and stored.stored_plan is not None:
                return stored.stored_plan
            agent = await self._agent(run)
            if stored is not None and response is not None:
                return await self._plan(run, agent, start.step, response, stored.finish_reason, stored.corrective)
            asks_for_more = await extension(self._engine, run, agent, start.step)
            if asks_for_more is not None:
                return StepPlan(final=False, budget=asks_for_more)
            run = await self._carrying_over.begun(run, agent, start.step)
            answer, told = await self._answer(run, agent, start.step)
            if answer.is_final:
                plan = await self._finish(run, start.step, answer)
                await after_step(self._engine, run, start.step)
                return plan
            await self._store(run, start.step, answer, told)
            return await self._plan(run, agent, start.step, answer.message, answer.finish_reason, told)

    async def _answer(self, run: runs.Run, agent: Agent, step: int) -> tuple[ModelResponse, str | None]:
        """Return the model's answer; of a call from outside the call itself, which no model made."""
        if not is_external(run.agent):
            return await self._asker.ask(run, agent, step)
        async with self._engine.database.read() as conn:
            return await response(conn, run, step), None

    async def _agent(self, run: runs.Run) -> Agent:
        """Return the agent as the run has it."""
        if run.world is None and not is_external(run.agent):  # no transaction for what hardly any run has
            return self._engine.agent(run.agent)
        async with self._engine.database.read() as conn:
            return await self._engine.agent_of(conn, run)

    async def _store(self, run: runs.Run, step: int, answer: ModelResponse, corrective: str | None) -> None:
        async with _first_attempt_counts(), self._engine.database.write() as conn:
            cost = cost_micros(self._engine, answer.spec or run.model, answer.usage)
            await steps.record_response(conn, run, step, answer, corrective=corrective, cost_micros=cost)

    async def _finish(self, run: runs.Run, step: int, answer: ModelResponse) -> StepPlan:
        """Store the final answer and end the run, in one transaction."""
        plan = StepPlan(final=True)
        ended = end_told(status="completed")
        async with _first_attempt_counts(), self._engine.database.write() as conn:
            cost = cost_micros(self._engine, answer.spec or run.model, answer.usage)
            await steps.record_response(conn, run, step, answer, final=plan, cost_micros=cost)
            await self._asker.live.forget(conn, run.id, step)
            responded = _responded(step, answer.message, answer.finish_reason)
            await events.append(conn, run.id, [responded, ("run.ended", ended)])
            follows = await open_next(self._engine, conn, run)
            if follows is not None:
                plan = plan.model_copy(update={"next": follows})
                await steps.replace_plan(conn, run.id, step, plan)
        return plan

    async def _plan(
        self, run: runs.Run, agent: Agent, step: int, message: Message, finish_reason: str, told: str | None
    ) -> StepPlan:
        await self._judging.judge_step(run, agent, step, message, finish_reason)
        async with self._engine.database.glance() as conn:  # the door asks again about all that is looked at here
            planner = self._dry_planner if run.is_dry else self._planner
            planned = await planner.plan(conn, run, agent, step, message, finish_reason, told)
        async with self._engine.database.write() as conn:
            if not await runs.advance(conn, run.id, step=step):
                # An attempt that was thought lost: its requests would wait in the inbox for ever.
                raise ApplicationError(f"run {run.id} has ended; step {step} is not planned any more", "conflict")
            if await steps.record_plan(conn, run.id, step, planned.plan):
                await subtree_usage.add(conn, run, subtree_usage.UsedBelow(tool_calls=len(planned.calls)))
                await self._asker.live.forget(conn, run.id, step)
                await calls.insert_planned(conn, planned.calls)
                await requests.insert_all(conn, planned.requests)
                await events.append(conn, run.id, [_responded(step, message, finish_reason), *planned.events])
                return planned.plan
            stored = await steps.get(conn, run.id, step)
        if stored is None or stored.stored_plan is None:
            raise LookupError(f"run {run.id!r} has no step {step} to plan")
        return stored.stored_plan


def _responded(step: int, message: Message, finish_reason: str) -> events.NewEvent:
    return "step.responded", {"step": step, "finish_reason": finish_reason, "calls": len(message.calls)}


@asynccontextmanager
async def _first_attempt_counts() -> AsyncIterator[None]:
    """An attempt that was thought lost may store its response late, or first: (run, step) is unique, one answer counts.

    The other attempt fails retryably, and its retry finds what was stored.
    """
    try:
        yield
    except IntegrityError as error:
        raise ApplicationError("another attempt stored this step's response", "conflict") from error
