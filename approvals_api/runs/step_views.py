"""The steps of a run for people: each response with its calls, and what was said to the model before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from approvals_api.runs.call_views import call_view
from approvals_api.runs.cut_views import with_cuts
from turngate.domain.agents.no_progress import is_nudge
from turngate.domain.conversation.messages import ReasoningPart
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, executions, queued_messages
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.runs import Run
from turngate.store.runs.steps import Step
from turngate.wire.calls import CallView
from turngate.wire.runs import StepView, ToldMessage


async def step_views(
    conn: Connection, run: Run, taken: Sequence[Step], path: Sequence[StoredMessage]
) -> list[StepView]:
    """Return the steps in order. ``path``: the messages up to the last response, oldest first."""
    by_id = {stored.id: stored for stored in path}
    made = await _made(conn, run)
    nudges = {each.step: each.message.text for each in path if each.run_id == run.id and is_nudge(each.message)}
    told = _told(path, run, {each.id: each.sent_by for each in await queued_messages.taken_by(conn, run.id)})
    views = [
        _step_view(
            step,
            by_id[step.assistant_message_id],
            made[step.step],
            told[step.assistant_message_id],
            nudges.get(step.step),
        )
        for step in taken
    ]
    return await with_cuts(conn, run.id, views)


async def _made(conn: Connection, run: Run) -> defaultdict[int, list[CallView]]:
    """Return the run's calls by step; none for a step without."""
    executed = {execution.tool_call_id: execution for execution in await executions.of_run(conn, run.id)}
    asked: dict[str, list[Request]] = defaultdict(list)
    for request in await requests.of_run(conn, run.id):
        asked[request.tool_call_id].append(request)
    made: defaultdict[int, list[CallView]] = defaultdict(list)
    for call in await calls.of_run(conn, run.id):
        made[call.step].append(call_view(call, asked[call.tool_call_id], executed.get(call.tool_call_id)))
    made[1] = made.pop(0, []) + made[1]  # what the engine asked for before there was a first step
    return made


def _told(path: Sequence[StoredMessage], run: Run, senders: Mapping[str, str]) -> dict[str, list[ToldMessage]]:
    """Return what was said to a live run by the response before which the model read it."""
    found: dict[str, list[ToldMessage]] = defaultdict(list)
    said: list[ToldMessage] = []
    for stored in path:
        if stored.message.role == "assistant":
            found[stored.id], said = said, []
        elif stored.id in senders and stored.id != run.input_message_id:
            said.append(ToldMessage(text=stored.message.text, sent_by=senders[stored.id]))
    return found


def _step_view(
    step: Step, stored: StoredMessage, made: list[CallView], told: list[ToldMessage], nudge: str | None
) -> StepView:
    thoughts = [part.text for part in stored.message.parts if isinstance(part, ReasoningPart)]
    return StepView(
        step=step.step,
        model=step.model,
        model_spec=step.model_spec,
        finish_reason=step.finish_reason,
        input_tokens=step.input_tokens,
        output_tokens=step.output_tokens,
        text=stored.message.text,
        reasoning="\n\n".join(thoughts),
        calls=made,
        created_at=step.created_at,
        closed_at=step.closed_at,
        corrective=step.corrective,
        nudge=nudge,
        told=told,
    )
