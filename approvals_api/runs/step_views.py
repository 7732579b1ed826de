"""The steps of a run for people: each response with its calls, and the messages that the run got before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

from turngate.approvals_api.runs.masks import Masks
from turngate.domain.agents.no_progress import is_nudge
from turngate.domain.conversation.messages import ReasoningPart
from turngate.domain.policy.policy import Verdict
from turngate.domain.runs.budgets import AFTER_THE_STEP
from turngate.domain.tools.control_calls import ControlCall, WaitUntil
from turngate.domain.tools.defaults import for_readers
from turngate.domain.tools.presentation import PRESENTATION, Presentation, default_presentation
from turngate.domain.tools.results import Failure, Ok
from turngate.store.clock import as_text, from_text
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, executions, queued_messages, summaries
from turngate.store.runs.calls import Call
from turngate.store.runs.executions import Execution
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.runs import Run
from turngate.store.runs.steps import Step
from turngate.wire.calls import CallRequest, CallView, ResultInPart
from turngate.wire.runs import CutView, SentMessage, StepView

# Cuts: what replaced a conversation's beginning, at the steps of a run where that changed.


async def with_cuts(conn: Connection, run_id: str, steps: Sequence[StepView]) -> list[StepView]:
    """Return the steps of a run, each with the cut that was made before its request."""
    cuts = {cut.step: CutView.model_validate(cut) for cut in await summaries.of_runs(conn, [run_id])}
    return [step.model_copy(update={"cut": cuts.get(step.step)}) for step in steps]


# One call: what the model asked for, what was decided, what happened, and how its result is shown.


CONTROL_CALL: Final[TypeAdapter[ControlCall]] = TypeAdapter(ControlCall)


def call_view(call: Call, requests_of_call: Sequence[Request], execution: Execution | None) -> CallView:
    """Return a call with its requests (oldest first) and its execution, None while it has none."""
    result = call.settled_result
    control_call = _control_call_of(call)
    return CallView(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        input=call.input,
        edited_input=call.edited_input,
        defaults=list(for_readers(call.left_out)),
        digest=call.digest,
        effect=call.effect,
        disposition=call.disposition,
        verdict=Verdict.model_validate_json(call.verdict) if call.verdict else None,
        requests=[CallRequest.model_validate(request) for request in requests_of_call],
        execution=execution.state if execution else "not_started",
        attempts=execution.attempts if execution else 0,
        started_at=execution.started_at if execution else None,
        ended_at=execution.ended_at if execution else None,
        result=result,
        presentation=presentation_of(call, result),
        settled_at=call.settled_at,
        in_part=in_part(call, result),
        signal=control_call,
        waits_until=_waits_until(control_call, execution),
        child_run_id=call.child_run_id,
        recorded_call_id=call.recorded_call_id,
        by_engine=call.position >= AFTER_THE_STEP,
    )


def presentation_of(call: Call, result: Ok | Failure | None) -> Presentation | None:
    """Return how a settled call is shown: as its tool says, else the default; None while it is open."""
    if result is None:
        return None
    if call.presentation is not None:
        try:
            return PRESENTATION.validate_json(call.presentation)
        except ValidationError:  # of a later release, which has more blocks
            pass
    return default_presentation(result)


def in_part(call: Call, result: Ok | Failure | None) -> ResultInPart | None:
    """Return how much of a clipped result is shown; None for one that is whole."""
    if call.whole_result is None or result is None:
        return None
    document = result.value if isinstance(result, Ok) else result.fields
    match document:
        case {"head": str(head), "tail": str(tail), "total_chars": int(total)}:
            return ResultInPart(shown_chars=len(head) + len(tail), total_chars=total)
        case _:
            return None


def _control_call_of(call: Call) -> ControlCall | None:
    if call.signal is None:
        return None
    try:
        return CONTROL_CALL.validate_json(call.signal)
    except ValidationError:  # of a later release, which has more control calls
        return None


def _waits_until(control_call: ControlCall | None, execution: Execution | None) -> str | None:
    """Return the instant at which a wait is over; None for every other call, and for one beyond the calendar."""
    if not isinstance(control_call, WaitUntil) or execution is None:
        return None
    if control_call.until is not None:
        return as_text(control_call.until)
    try:
        return as_text(from_text(execution.started_at) + timedelta(seconds=control_call.seconds or 0))
    except OverflowError:
        return None


async def step_views(
    conn: Connection, run: Run, taken: Sequence[Step], path: Sequence[StoredMessage], masks: Masks
) -> list[StepView]:
    """Return the steps in order. ``path``: the messages up to the last response, oldest first, as people see them."""
    by_id = {stored.id: stored for stored in path}
    calls_by_step = await _calls_by_step(conn, run, masks)
    nudges = {each.step: each.message.text for each in path if each.run_id == run.id and is_nudge(each.message)}
    messages_before = _messages_before(
        path, run, {each.id: each.sent_by for each in await queued_messages.taken_by(conn, run.id)}
    )
    views = [
        _step_view(
            step,
            by_id[step.assistant_message_id],
            calls_by_step[step.step],
            messages_before[step.assistant_message_id],
            nudges.get(step.step),
        )
        for step in taken
    ]
    views = [masks.view(each, "corrective", "nudge") for each in views]
    return [_masked_cut(each, masks) for each in await with_cuts(conn, run.id, views)]


def _masked_cut(step: StepView, masks: Masks) -> StepView:
    return step if step.cut is None else step.model_copy(update={"cut": masks.view(step.cut, "text")})


async def _calls_by_step(conn: Connection, run: Run, masks: Masks) -> defaultdict[int, list[CallView]]:
    """Return the run's calls by step; empty for a step without calls."""
    executed = {execution.tool_call_id: execution for execution in await executions.of_run(conn, run.id)}
    requests_by_call: dict[str, list[Request]] = defaultdict(list)
    for request in await requests.of_run(conn, run.id):
        requests_by_call[request.tool_call_id].append(request)
    by_step: defaultdict[int, list[CallView]] = defaultdict(list)
    for call in await calls.of_run(conn, run.id):
        by_step[call.step].append(
            call_view(masks.call(call), requests_by_call[call.tool_call_id], executed.get(call.tool_call_id))
        )
    by_step[1] = by_step.pop(0, []) + by_step[1]  # calls of the engine before the first step
    return by_step


def _messages_before(
    path: Sequence[StoredMessage], run: Run, senders: Mapping[str, str]
) -> dict[str, list[SentMessage]]:
    """Return the messages that a live run got, by the id of the response before which the model read them."""
    by_response: dict[str, list[SentMessage]] = defaultdict(list)
    waiting: list[SentMessage] = []
    for stored in path:
        if stored.message.role == "assistant":
            by_response[stored.id], waiting = waiting, []
        elif stored.id in senders and stored.id != run.input_message_id:
            waiting.append(SentMessage(text=stored.message.text, sent_by=senders[stored.id]))
    return by_response


def _step_view(
    step: Step,
    stored: StoredMessage,
    calls_of_step: list[CallView],
    messages_before: list[SentMessage],
    nudge: str | None,
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
        calls=calls_of_step,
        created_at=step.created_at,
        closed_at=step.closed_at,
        corrective=step.corrective,
        nudge=nudge,
        told=messages_before,
    )
