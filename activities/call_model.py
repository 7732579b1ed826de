"""Activity ``call_model``: close the step before, ask the model once, store its answer, plan its calls.

The response is stored, unique by (run, step), before anything else is done with it: a retry finds it and does not pay
twice. The plan is stored with it, in the same transaction as the inbox requests it opens.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.exc import IntegrityError
from temporalio import activity
from temporalio.exceptions import ApplicationError
from turngate.models.port import ModelRequest

from activities.engine import Engine
from activities.heartbeats import heartbeating
from activities.planning import Planner
from turngate.domain import contract
from turngate.domain.agents import Agent
from turngate.domain.contract import CallModelInput, StepPlan
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.domain.history import CLOSED_BY_REPAIR, mint_call_ids, reconcile
from turngate.domain.messages import Message, ModelResponse, TextPart
from turngate.store import calls, events, messages, requests, runs, steps
from turngate.store.database import Connection


class CallModel:
    """The activity with what it stands on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._planner = Planner(engine)

    @activity.defn(name=contract.CALL_MODEL)
    async def call_model(self, start: CallModelInput) -> StepPlan:
        """Return the plan of step ``start.step``. Safe to repeat: a stored response or plan is returned as it is.

        Raises:
            ApplicationError: ``model_error`` (``details[0]``: its class; retryable as the provider's answer says, with
                its Retry-After as the next delay) or ``configuration`` (not retryable).
        """
        async with heartbeating():
            run = await self._load_run(start)
            agent = self._engine.agent(run.agent)
            async with self._engine.database.read() as conn:
                stored = await steps.get(conn, run.id, start.step)
                response = None if stored is None else await messages.get(conn, stored.assistant_message_id)
            if stored is not None and stored.stored_plan is not None:
                return stored.stored_plan
            if response is None or stored is None:
                answer = await self._ask(run, agent, start.step)
                plan = await self._store(run, start.step, answer)
                if plan is not None:
                    return plan
                return await self._plan(run, agent, start.step, answer.message, answer.finish_reason)
            return await self._plan(run, agent, start.step, response, stored.finish_reason)

    async def _load_run(self, start: CallModelInput) -> runs.Run:
        """Return the run, its previous step closed."""
        async with self._engine.database.read() as conn:
            run = await runs.get(conn, start.run_id)
            previous = await steps.get(conn, start.run_id, start.step - 1)
        if run is None:
            raise ApplicationError(
                f"the store has no run {start.run_id!r}; was it taken back, or is this another database?",
                "configuration",
                type=contract.ERROR_CONFIGURATION,
                non_retryable=True,
            )
        if previous is None or previous.closed_at is not None:
            return run
        async with self._engine.database.write() as conn:
            await steps.close(conn, run, start.step - 1, CLOSED_BY_REPAIR)
            return await runs.get(conn, start.run_id) or run

    async def _ask(self, run: runs.Run, agent: Agent, step: int) -> ModelResponse:
        async with self._engine.database.read() as conn:
            history = [stored.message for stored in await messages.path_to(conn, run.head_message_id)]
        # I1: what cannot be sent is repaired, never sent. The stored messages are immutable; the repair is a pure
        # function of them, so every retry sends the same.
        sendable = reconcile(history)
        system = Message(role="system", parts=(TextPart(text=agent.instructions),))
        request = ModelRequest(messages=[system, *sendable], tools=[tool.manifest for tool in agent.toolkit])
        try:
            model = self._engine.models.resolve(run.model)
            answer = await model.generate(request)
        except ConfigurationError as error:
            raise ApplicationError(
                error.message, "configuration", type=contract.ERROR_CONFIGURATION, non_retryable=True
            ) from error
        except ModelError as error:
            raise await self._reported(run, step, error) from error
        taken = {call.tool_call_id for message in history for call in message.calls}
        return answer.model_copy(update={"message": mint_call_ids(answer.message, step=step, taken=taken)})

    async def _reported(self, run: runs.Run, step: int, error: ModelError) -> ApplicationError:
        """Tell the watchers that the model failed, and Temporal whether and when to try again."""
        wait = error.retry_after_seconds
        if error.retryable:
            attempt = {"step": step, "attempt": activity.info().attempt, "error_class": error.error_class}
            async with self._engine.database.write() as conn:
                told = {**attempt, "message": error.message, "retry_in_seconds": wait}
                await events.append(conn, run.id, [("model.retrying", told)])
        return ApplicationError(
            error.message,
            error.error_class,
            type=contract.ERROR_MODEL,
            non_retryable=not error.retryable,
            next_retry_delay=None if wait is None else timedelta(seconds=wait),
        )

    async def _store(self, run: runs.Run, step: int, answer: ModelResponse) -> StepPlan | None:
        """Store the response; a final one ends the run in the same transaction, and its plan is returned."""
        final = not answer.message.calls and bool(answer.message.text.strip())
        try:
            async with self._engine.database.write() as conn:
                await steps.record_response(conn, run, step, answer)
                told: dict[str, object] = {
                    "step": step,
                    "finish_reason": answer.finish_reason,
                    "calls": len(answer.message.calls),
                }
                if not final:
                    await events.append(conn, run.id, [("step.responded", told)])
                    return None
                return await self._finish(conn, run, step, told)
        except IntegrityError as error:
            # Another attempt of this activity stored its response first (ours was thought lost). Its answer counts.
            raise ApplicationError("another attempt stored this step's response", "conflict") from error

    async def _finish(self, conn: Connection, run: runs.Run, step: int, told: dict[str, object]) -> StepPlan:
        plan = StepPlan(final=True)
        await steps.record_plan(conn, run.id, step, plan)
        await steps.close(conn, run, step, CLOSED_BY_REPAIR)
        await runs.end(conn, run.id, status="completed")
        ended = {"status": "completed", "reason": "", "error_class": ""}
        await events.append(conn, run.id, [("step.responded", told), ("run.ended", ended)])
        return plan

    async def _plan(self, run: runs.Run, agent: Agent, step: int, message: Message, finish_reason: str) -> StepPlan:
        async with self._engine.database.read() as conn:
            planned = await self._planner.plan(conn, run, agent, step, message, finish_reason)
        async with self._engine.database.write() as conn:
            current = await steps.get(conn, run.id, step)
            if current is not None and current.stored_plan is not None:
                return current.stored_plan
            await calls.insert_planned(conn, planned.calls)
            await requests.insert_all(conn, planned.requests)
            await steps.record_plan(conn, run.id, step, planned.plan)
            await events.append(conn, run.id, planned.events)
        return planned.plan
