"""One call for people: what the model asked for, what was decided, what happened, and how its result is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

from turngate.domain.agents.budgets import BEHIND_THE_STEP
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools.control_calls import Signal, WaitUntil
from turngate.domain.tools.presentation import PRESENTATION, Presentation, default_presentation
from turngate.domain.tools.results import Failure, Ok
from turngate.store.clock import as_text, from_text
from turngate.store.requests.requests import Request
from turngate.store.runs.calls import Call
from turngate.store.runs.executions import Execution
from turngate.wire.calls import CallRequest, CallView, ResultInPart

SIGNAL: Final[TypeAdapter[Signal]] = TypeAdapter(Signal)


def call_view(call: Call, asked: Sequence[Request], execution: Execution | None) -> CallView:
    """Return a call with its requests (oldest first) and its execution, None while it has none."""
    result = call.settled_result
    signal = _signal_of(call)
    return CallView(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        input=call.input,
        edited_input=call.edited_input,
        digest=call.digest,
        effect=call.effect,
        disposition=call.disposition,
        verdict=Verdict.model_validate_json(call.verdict) if call.verdict else None,
        requests=[CallRequest.model_validate(request) for request in asked],
        execution=execution.state if execution else "not_started",
        attempts=execution.attempts if execution else 0,
        started_at=execution.started_at if execution else None,
        ended_at=execution.ended_at if execution else None,
        result=result,
        presentation=presentation_of(call, result),
        settled_at=call.settled_at,
        in_part=in_part(call, result),
        signal=signal,
        waits_until=_waits_until(signal, execution),
        child_run_id=call.child_run_id,
        recorded_call_id=call.recorded_call_id,
        by_engine=call.position >= BEHIND_THE_STEP,
    )


def presentation_of(call: Call, result: Ok | Failure | None) -> Presentation | None:
    """Return what people see of a settled call: what its tool made of it, else the default; None while it is open."""
    if result is None:
        return None
    if call.presentation is not None:
        try:
            return PRESENTATION.validate_json(call.presentation)
        except ValidationError:  # of a later release, which knew more blocks
            pass
    return default_presentation(result)


def in_part(call: Call, result: Ok | Failure | None) -> ResultInPart | None:
    """Return how much of a clipped result is shown; None for one that is whole."""
    if call.whole_result is None or result is None:
        return None
    shown = result.value if isinstance(result, Ok) else result.fields
    match shown:
        case {"head": str(head), "tail": str(tail), "total_chars": int(total)}:
            return ResultInPart(shown_chars=len(head) + len(tail), total_chars=total)
        case _:
            return None


def _signal_of(call: Call) -> Signal | None:
    if call.signal is None:
        return None
    try:
        return SIGNAL.validate_json(call.signal)
    except ValidationError:  # of a later release, which knew more signals
        return None


def _waits_until(signal: Signal | None, execution: Execution | None) -> str | None:
    """Return the instant at which a wait is over; None for every other call, and for one beyond the calendar."""
    if not isinstance(signal, WaitUntil) or execution is None:
        return None
    if signal.until is not None:
        return as_text(signal.until)
    try:
        return as_text(from_text(execution.started_at) + timedelta(seconds=signal.seconds or 0))
    except OverflowError:
        return None
