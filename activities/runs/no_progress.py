"""Runs that go round in circles: noticed when a step is closed, pointed out to the model once, and ended if that did not help.

Whether a step repeats others is stored with it, in the transaction that closes it. So a retry, a recovered run and a run that
was continued as new all read the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from temporalio.exceptions import ApplicationError

from turngate.activities.planning.control_calls import CONTROL_CALL
from turngate.domain import contract
from turngate.domain.agents.app import Agent
from turngate.domain.agents.no_progress import NoProgress, SettledCall, Trail, ended_reason, nudge
from turngate.domain.conversation.messages import user_message
from turngate.domain.digest import derived_id
from turngate.domain.runs.budgets import AFTER_THE_STEP
from turngate.domain.runs.outcomes import NO_PROGRESS
from turngate.domain.tools.control_calls import WaitUntil
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import calls, messages, runs, steps


@dataclass(frozen=True)
class ProgressGuard:
    """Nudges a run that repeats its steps, and ends it if it continues. ``limit`` None: the run may repeat what it likes."""

    limit: NoProgress | None

    @classmethod
    def of(cls, agent: Agent | None) -> ProgressGuard:
        """Return the guard for an agent's steps; one without a limit if this worker has no such agent."""
        return cls(None if agent is None else agent.limits.no_progress)

    def trail(self, closed: Sequence[calls.Call], before: Trail) -> Trail | None:
        """Return the trail with a step that is closed; None: the run is not checked for progress.

        ``closed``: its calls with their results. ``before``: the trail up to it.
        """
        if self.limit is None:
            return None
        by_model = _by_model(closed)
        if any(_waited(each) for each in by_model):
            return Trail()
        return self.limit.trail_after(before, [_settled(each) for each in by_model])

    def minds(self, trail: Trail | None) -> bool:
        """Tell whether a run with this trail is nudged, or is to end."""
        if self.limit is None or trail is None:
            return False
        return nudge(trail, self.limit, ()) is not None or ended_reason(trail, self.limit) is not None

    async def nudge(self, conn: Connection, run: runs.Run, step: int, closed: steps.Closed) -> runs.Run:
        """Nudge the model when it is time to, in the transaction that closed the step; returns the run with its head."""
        if closed.trail is None or self.limit is None:
            return run
        text = nudge(closed.trail, self.limit, [each.tool_name for each in _by_model(closed.calls)])
        if text is None:
            return run
        by_steps = closed.trail.in_a_row == self.limit.steps
        repeats = {"in_a_row": self.limit.steps} if by_steps else {"repeats": self.limit.repeats_of_a_call}
        return await _append_nudge(conn, run, step, text, repeats)

    def require_progress(self, trail: Trail) -> None:
        """Refuse the next step of a run that was nudged and still repeats itself.

        Raises:
            ApplicationError: ``run_failed``, not retryable; ``details[0]``: ``no_progress``.
        """
        reason = None if self.limit is None else ended_reason(trail, self.limit)
        if reason is not None:
            raise ApplicationError(reason, NO_PROGRESS, type=contract.ERROR_RUN_FAILED, non_retryable=True)


async def forget(conn: Connection, run_id: str, step: int) -> None:
    """Start a new trail after this step: the model gets a new message."""
    await steps.record_trail(conn, run_id, step, Trail())


async def _append_nudge(conn: Connection, run: runs.Run, step: int, text: str, repeats: dict[str, int]) -> runs.Run:
    """Append the nudge after the results of the step. ``repeats``: what the event says was repeated."""
    message = messages.NewMessage(
        id=derived_id("msg", run.id, str(step), "nudge"),
        parent_id=run.head_message_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        step=step,
        message=user_message(text),
    )
    await messages.append(conn, message)
    await runs.move_head(conn, run, message.id)
    digests = events.digests(message={message.id: messages.digest(message, run.nonce)})
    await events.append(conn, run.id, [("run.nudged", {"step": step, **repeats, **digests})])
    return replace(run, head_message_id=message.id)


def _by_model(closed: Sequence[calls.Call]) -> list[calls.Call]:
    """Return the calls that the model itself made."""
    return [each for each in closed if each.position < AFTER_THE_STEP]


def _settled(call: calls.Call) -> SettledCall:
    return SettledCall(
        tool_name=call.tool_name,
        raw_input=call.input,
        ran_with=call.edited_input or "",
        result=f"{_result(call)}{call.whole_result or ''}",
    )


def _waited(call: calls.Call) -> bool:
    return call.signal is not None and isinstance(CONTROL_CALL.validate_json(call.signal), WaitUntil)


def _result(call: calls.Call) -> str:
    """Return the result without the id of the sub-agent's run, which differs each time."""
    result = call.result or ""
    return result if call.child_run_id is None else result.replace(call.child_run_id, "")
