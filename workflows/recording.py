"""Bringing a decision into the store, and what it means when that fails."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import DecideInput, RecordDecisionInput, RecordedDecision
    from workflows import activity_options


async def record(run_id: str, decision: DecideInput) -> RecordedDecision:
    """Write the decision into the store before anyone is told, so that whoever decided reads their own write.

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
        # What a local activity raised comes as it is, not as the cause of an ActivityError like an activity's. What it
        # meant to say is not retryable; all else, a timeout too, is a store that is away or too slow.
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, ApplicationError) and cause.non_retryable:
            raise cause from None  # never from itself: the converter follows causes to their end
        raise ApplicationError(
            "the decision could not be stored; nothing was decided", type=contract.ERROR_STORE_UNAVAILABLE
        ) from error
