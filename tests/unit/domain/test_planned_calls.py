"""Planned calls: what the workflow settles, and how a call waits again when its outcome is not known."""

from __future__ import annotations

from turngate.domain.contract import PlannedCall, RunLimits
from turngate.domain.policy.terms import AskTerms


def test_a_question_about_an_outcome_keeps_the_call_and_none_of_its_terms() -> None:
    """It waits without a clock for one answer by any operator, but keeps who may not decide the call."""
    call = PlannedCall(
        call="c1",
        timeout_seconds=5,
        request_id="rq_1",
        digest="approved",
        queue="gpu",
        expires_after_seconds=60,
        not_by="alice",
        terms=AskTerms(quorum=2),
    )
    question = call.as_resolution_question("rq_2", "ran")
    assert question == PlannedCall(
        call="c1", timeout_seconds=5, request_id="rq_2", kind="outcome", digest="ran", queue="gpu", not_by="alice"
    )


def test_a_deployments_heartbeat_changes_no_other_limit() -> None:
    """The agent's limits stay as they are."""
    limits = RunLimits(steps=7, concurrency=2, budgets_ask=True)
    assert limits.with_heartbeat(3) == RunLimits(steps=7, concurrency=2, budgets_ask=True, heartbeat_timeout_seconds=3)
