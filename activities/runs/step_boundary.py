"""What happens to a run between two steps, and between its last step and the conversation's next run.

Before a step begins, the one before it is closed: its control calls are carried out, the agent's hooks see its results, and it is
noted whether the run goes round in circles. Then messages that were sent meanwhile are appended. When a run ends, the oldest
message that still waits opens the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from temporalio.exceptions import ApplicationError

from turngate.activities.engine.author_code import await_author
from turngate.activities.engine.engine import Engine
from turngate.activities.engine.error_log import Where, report
from turngate.activities.execution.settlement import CallResult, finished_with, run_failure
from turngate.activities.planning.control_calls import carry_out
from turngate.activities.runs.no_progress import ProgressGuard, forget
from turngate.domain import contract
from turngate.domain.agents.hooks import RunScope
from turngate.domain.agents.no_progress import Trail
from turngate.domain.contract import ChildRun, RunLimits
from turngate.domain.conversation.messages import Message, user_message
from turngate.domain.digest import derived_id
from turngate.domain.runs.labels import pseudonym
from turngate.store.database import Connection
from turngate.store.events import events, traces
from turngate.store.live import sent_messages
from turngate.store.runs import calls, messages, queued_messages, runs, steps
from turngate.store.runs.new_run import NewRun, open_run

FIRST_STEP = 1
HOOK_SECONDS = 30.0


@dataclass(frozen=True)
class StepStart:
    """Where a step begins: the run with its previous step closed, and what an earlier attempt stored of this step.

    ``seen``: of :class:`turngate.store.runs.steps.Position`, before anything else of it was read.
    """

    run: runs.Run
    stored: steps.Step | None
    response: Message | None
    seen: int | None


@dataclass(frozen=True)
class _OpenStep:
    """A step that is to be closed for the next one. ``before``: the trail up to it. ``seen``: of :class:`StepStart`."""

    run: runs.Run
    step: steps.Step
    before: Trail
    seen: int | None


class StepBoundary:
    """Takes the runs of an engine from one step to the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def begin(self, run_id: str, step: int) -> StepStart:
        """Close the step before this one, if there is one, and return where this one begins. Safe to repeat.

        Which step is next, the store says: one that an order names before its turn changes nothing (I13). LookupError,
        to be retried: the step before has open calls.

        Raises:
            ApplicationError: not retryable: ``configuration`` (the store has no such run, or no step before this one) or
                ``run_failed`` with ``no_progress`` as ``details[0]`` (the run goes round in circles).
        """
        async with self._engine.database.glance() as conn:
            position = await self._position(conn, run_id, step)
            stored = position.stored
            response = None if stored is None else await messages.get(conn, stored.assistant_message_id)
        run, previous = position.run, position.previous
        trail = Trail() if previous is None else previous.decoded_trail
        if previous is not None and previous.closed_at is None:
            run, trail, _ = await self._close(run, previous, position.before)
        if stored is None and position.has_messages:
            trail = Trail()
            async with self._engine.database.write() as conn:
                run = await take_messages(conn, run)
                await forget(conn, run.id, step - 1)
        if stored is None:
            ProgressGuard.of(self._engine.agents.get(run.agent)).require_progress(trail)
        return StepStart(run, stored, response, position.seen)

    async def pass_on(self, run_id: str, step: int) -> StepStart | Literal["closed", "open"]:
        """Begin this step where the activity that settled the last call of the one before may continue with it (ADR 0033).

        Closes the step before. ``closed``: it was closed already, by another attempt or activity, which continues in place of
        this one. ``open``: something else comes first, such as another call, an order, or a message.

        Raises as :meth:`begin`.
        """
        open_step = await self._step_to_close(run_id, step)
        if isinstance(open_step, str):
            return open_step
        run, trail, is_first = await self._close(open_step.run, open_step.step, open_step.before)
        if not is_first:
            return "closed"
        ProgressGuard.of(self._engine.agents.get(run.agent)).require_progress(trail)
        return StepStart(run, None, None, open_step.seen)

    async def pass_on_with(self, call: calls.Call, result: CallResult, step: int) -> StepStart | None:
        """As :meth:`pass_on`, after storing the result of the last open call of the step before, in one transaction (ADR 0037).

        None, and nothing is stored, where this step can't begin at once, or where more has to happen before it.
        """
        open_step = await self._step_to_close(call.run_id, step, last=call)
        if isinstance(open_step, str) or open_step.seen is None:
            return None
        agent = self._engine.agents.get(open_step.run.agent)
        if agent is None or agent.hooks:  # they see the result first, and may take their time
            return None
        guard = ProgressGuard.of(agent)
        async with self._engine.database.write() as conn:
            writes, finished = await finished_with(conn, call, result)
            closed = await steps.close_with_result(
                conn,
                open_step.run,
                call.step,
                writes,
                finished,
                seen=open_step.seen,
                trail_of=lambda settled: guard.trail(settled, open_step.before),
                is_last=lambda trail: not guard.minds(trail),
            )
        if closed is None:
            return None
        run = replace(open_step.run, head_message_id=closed.head_message_id)
        return StepStart(run, None, None, open_step.seen + 1)

    async def _step_to_close(
        self, run_id: str, step: int, *, last: calls.Call | None = None
    ) -> _OpenStep | Literal["closed", "open"]:
        """Return the step before this one, if its calls are settled and nothing else comes first; else as :meth:`pass_on`.

        ``last``: the one call of it whose result is not stored; None: there is none.
        """
        async with self._engine.database.glance() as conn:
            position = await self._position(conn, run_id, step)
            run, previous = position.run, position.previous
            if previous is None or previous.closed_at is not None:
                return "closed"
            if not run.may_start or run.status != "running" or position.has_messages:
                return "open"
            if await self._has_more_to_settle(conn, run, previous, last):
                return "open"
        return _OpenStep(run, previous, position.before, position.seen)

    @staticmethod
    async def _position(conn: Connection, run_id: str, step: int) -> steps.Position:
        position = await steps.position(conn, run_id, step)
        if position is None or (position.previous is None and step != FIRST_STEP):
            missing = f"run {run_id!r}" if position is None else f"step {step - 1} of run {run_id!r}"
            raise ApplicationError(
                f"the store has no {missing}; was it taken back, or is this another database?",
                "configuration",
                type=contract.ERROR_CONFIGURATION,
                non_retryable=True,
            )
        return position

    async def _has_more_to_settle(
        self, conn: Connection, run: runs.Run, step: steps.Step, last: calls.Call | None
    ) -> bool:
        """Tell whether a call of this step is open, or ends the run by its result. What has a result keeps it.

        ``last``: of :meth:`_step_to_close`.
        """
        plan = step.stored_plan
        if plan is None or plan.signals:
            return True
        if len(plan.calls) == 1:  # the others were closed when the step was planned; this one, the caller has settled
            return False
        if last is None and await calls.any_open(conn, run.id, step.step):
            return True
        agent = await self._engine.agent_of(conn, run)
        settled = await calls.of_step(conn, run.id, step.step)
        return any(run_failure(self._engine.tool(agent, each.tool_name), each.settled_result) for each in settled)

    async def _close(self, run: runs.Run, step: steps.Step, before: Trail) -> tuple[runs.Run, Trail, bool]:
        """Close a step whose calls are settled, and carry out its control calls. ``before``: the trail up to it.

        Returns the run as it continues, the trail with this step, and whether it was still open.
        """
        closed_by, guard = run, ProgressGuard.of(self._engine.agents.get(run.agent))
        signals = step.stored_plan is not None and step.stored_plan.signals
        async with self._engine.database.write() as conn:
            closed = await steps.close(
                conn,
                run,
                step.step,
                None,
                trail_of=lambda settled: guard.trail(settled, before),
                is_last=lambda trail: not (signals or guard.minds(trail)),
            )
            if closed is None:  # another attempt has closed it
                run = await runs.get(conn, run.id) or run
                trail = await steps.trail(conn, run.id, step.step)
            else:
                run = replace(run, head_message_id=closed.head_message_id)
                if signals and await carry_out(self._engine, conn, run, step.step):
                    run = await runs.get(conn, run.id) or run
                run, trail = await guard.nudge(conn, run, step.step, closed), closed.trail or Trail()
        await after_step(self._engine, closed_by, step.step)
        return run, trail, closed is not None


async def after_step(engine: Engine, run: runs.Run, step: int) -> None:
    """Call the agent's hooks for a closed step; what they raise is logged. ``run.agent``: the agent that took the step.

    Not in a dry run: nothing has happened there that they could report.
    """
    agent = engine.agents.get(run.agent)
    if agent is None or not agent.hooks or run.is_dry:
        return
    async with engine.database.read() as conn:
        closed = await steps.get(conn, run.id, step)
        results_id = None if closed is None else closed.results_message_id
        closing = [] if results_id is None else [await messages.get(conn, results_id)]
    results = [message for message in closing if message.role == "tool"]  # not the answer to a malformed response
    scope = RunScope(run_id=run.id, agent=agent.name, step=step)
    for hook in agent.hooks:
        try:
            await await_author(hook.after_step(scope, results), seconds=HOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - reported, with its traceback
            where = Where(run_id=run.id, step=step)
            await report(engine, "after_step hook failed", error, where, hook=type(hook).__name__)


async def take_messages(conn: Connection, run: runs.Run) -> runs.Run:
    """Append the messages that wait for the run's next step, and return the run with its new head. Safe to repeat."""
    for message in await sent_messages.waiting(conn, run):
        if message.while_running == "queue":
            continue
        taken = messages.NewMessage(
            id=message.id,
            parent_id=run.head_message_id,
            conversation_id=run.conversation_id,
            run_id=run.id,
            step=None,
            message=user_message(message.text),
        )
        await messages.append(conn, taken)
        await runs.move_head(conn, run, message.id)
        await queued_messages.take(conn, message.id, run_id=run.id)
        payload = {"message_id": message.id, "sent_by": message.sent_by}
        digests = events.digests(message={taken.id: messages.digest(taken, run.nonce)})
        await events.append(conn, run.id, [("message.taken", {**payload, **digests})])
        run = replace(run, head_message_id=message.id)
    return run


async def open_next(engine: Engine, conn: Connection, run: runs.Run) -> ChildRun | None:
    """Record the run that answers the oldest message still waiting when a run has just ended; None: no message waits.

    Part of the transaction that ends the run, so that a conversation never loses a message it accepted. The other messages
    wait for the new run. A sub-agent's run has no next run: its end answers its parent.
    """
    if run.parent_run_id is not None:
        return None
    waiting = await sent_messages.waiting(conn, run)
    if not waiting:
        return None
    message, next_id = waiting[0], derived_id("run", run.id, waiting[0].id)
    agent = engine.agents.get(run.agent)
    new = NewRun(
        id=next_id,
        conversation_id=run.conversation_id,
        agent=run.agent,
        agent_version=run.agent_version if agent is None else agent.version,
        model=run.chosen_model,
        workspace=run.workspace,
        task=message.text,
        input_message_id=message.id,
        started_by=message.sent_by,
        request_fingerprint=message.fingerprint,
        attended=run.attended,
        unattended_asks=run.unattended_asks,
        world=run.world,
    )
    await queued_messages.take(conn, message.id, run_id=next_id)
    await queued_messages.hand_on(conn, run.id, to=next_id)
    head = await messages.head_of(conn, run.conversation_id)
    await open_run(conn, new, new.input_after(head, user_message(message.text)), details={"follows": run.id})
    return await _next_run(engine, conn, run, new)


async def recorded_next(engine: Engine, conn: Connection, run_id: str) -> ChildRun | None:
    """Return the next run that an earlier attempt of :func:`open_next` recorded for this one; None: there is none."""
    run = await runs.get(conn, run_id)
    live = None if run is None else await runs.live_of_conversation(conn, run.conversation_id)
    if run is None or live is None or live.step > 0 or live.id != derived_id("run", run_id, live.input_message_id):
        return None
    return await _next_run(engine, conn, run, live)


async def _next_run(engine: Engine, conn: Connection, before: runs.Run, following: runs.Run | NewRun) -> ChildRun:
    agent, starter = engine.agents.get(following.agent), None
    if following.started_by != before.started_by:
        salt = await traces.salt(conn)
        starter = None if salt is None else pseudonym(salt, following.started_by)
    return ChildRun(
        run_id=following.id,
        agent=following.agent,
        limits=RunLimits() if agent is None else agent.limits.for_run(),
        starter=starter,
    )
