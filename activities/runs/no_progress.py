"""Runs that go round in circles: noticed when a step is closed, told to the model once, and ended where that did not help.

Whether a step repeats is stored with it, in the transaction that closes it: a retry, a recovered run and a run that was
continued as new all find the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from temporalio.exceptions import ApplicationError

from activities.planning.signals import SIGNAL
from turngate.domain import contract
from turngate.domain.agents.app import Agent
from turngate.domain.agents.budgets import BEHIND_THE_STEP
from turngate.domain.agents.no_progress import NoProgress, SettledCall, Trail, ended_reason, nudge, step_digest
from turngate.domain.conversation.messages import user_message
from turngate.domain.digest import derived_id
from turngate.domain.runs.outcomes import NO_PROGRESS
from turngate.domain.tools.control_calls import WaitUntil
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import calls, messages, runs, steps


def limit_of(agent: Agent | None) -> NoProgress | None:
    """Return what bounds the agent's circles; None: nothing, or this worker has no such agent."""
    return None if agent is None else agent.limits.no_progress


async def note(
    conn: Connection,
    run: runs.Run,
    step: int,
    closed: Sequence[calls.Call],
    *,
    before: Trail,
    limit: NoProgress | None,
) -> tuple[runs.Run, Trail]:
    """Let a step that this transaction closed keep whether it repeats, and nudge the model when it is time to.

    ``closed``: its calls with their results. ``before``: the trail up to it. ``limit``: of the agent that took it. Returns
    the run as it goes on, and the trail. Runs once for each step.
    """
    if limit is None:
        return run, Trail()
    made = [each for each in closed if each.position < BEHIND_THE_STEP]
    trail = before.then(_digest(made, limit))
    await steps.note_trail(conn, run.id, step, trail)
    if trail.in_a_row == limit.steps:
        run = await _nudged(conn, run, step, nudge(trail.in_a_row, [each.tool_name for each in made]), trail.in_a_row)
    return run, trail


async def forget(conn: Connection, run_id: str, step: int) -> None:
    """Let what comes after this step count as new: somebody told the model something."""
    await steps.note_trail(conn, run_id, step, Trail())


def require_progress(agent: Agent | None, trail: Trail) -> None:
    """Refuse the next step of a run that was nudged and goes on in circles.

    Raises:
        ApplicationError: ``run_failed``, not retryable; ``details[0]``: ``no_progress``.
    """
    limit = limit_of(agent)
    if limit is not None and trail.in_a_row >= limit.end:
        raise ApplicationError(
            ended_reason(trail.in_a_row), NO_PROGRESS, type=contract.ERROR_RUN_FAILED, non_retryable=True
        )


async def _nudged(conn: Connection, run: runs.Run, step: int, text: str, in_a_row: int) -> runs.Run:
    """Append the nudge behind the results of the step."""
    message_id = derived_id("msg", run.id, str(step), "nudge")
    await messages.append(
        conn,
        message_id=message_id,
        parent_id=run.head_message_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        step=step,
        message=user_message(text),
    )
    await runs.move_head(conn, run, message_id)
    await events.append(conn, run.id, [("run.nudged", {"step": step, "in_a_row": in_a_row})])
    return replace(run, head_message_id=message_id)


def _digest(made: list[calls.Call], limit: NoProgress) -> str | None:
    """Return what makes this step the same as another; None for one that never counts: it waited, or may be repeated."""
    if any(_waited(each) or limit.lets_repeat(each.tool_name) for each in made):
        return None
    return step_digest(
        [
            SettledCall(
                tool_name=each.tool_name,
                raw_input=each.input,
                ran_with=each.edited_input or "",
                result=f"{_result(each)}{each.whole_result or ''}",
            )
            for each in made
        ]
    )


def _waited(call: calls.Call) -> bool:
    return call.signal is not None and isinstance(SIGNAL.validate_json(call.signal), WaitUntil)


def _result(call: calls.Call) -> str:
    """Return the result without the id of the run that gave it, which is another one each time."""
    result = call.result or ""
    return result if call.child_run_id is None else result.replace(call.child_run_id, "")
