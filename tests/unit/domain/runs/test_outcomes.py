"""Outcomes: the stored end of a run as the one typed word that every surface shows."""

from __future__ import annotations

from typing import get_args

import pytest

from turngate.domain.errors import ModelErrorClass
from turngate.domain.runs.budgets import ERROR_CLASSES
from turngate.domain.runs.failure_classes import MEANINGS
from turngate.domain.runs.outcomes import RunOutcome, describe_outcome, end_payload, outcome_of

STORED: dict[str, RunOutcome] = {
    **dict.fromkeys(get_args(ModelErrorClass), "provider_error"),
    "step_cap": "step_cap",
    "tool_call_cap": "budget",
    "token_cap": "budget",
    "cost_cap": "budget",
    "time_cap": "budget",
    "malformed": "malformed",
    "no_progress": "no_progress",
    "tool_raised": "error",
    "policy_error": "error",
    "configuration": "error",
    "ConfigurationError": "error",
    "UnavailableError": "error",
    "store_unavailable": "error",
    "timeout": "error",
    "worker_lost": "error",
    "not_started": "error",
    "workflow_gone": "error",
    "conflict": "error",
    "bug": "error",
}
"""Every class that any release has stored, and how a run that failed with it ended."""


def test_every_stored_class_has_its_outcome() -> None:
    """The table above has every class with a meaning, with the right outcome; an unknown class is ``error``."""
    assert set(MEANINGS) | set(ERROR_CLASSES.values()) <= set(STORED)
    assert {name: outcome_of("failed", name) for name in STORED} == STORED
    assert outcome_of("failed", "ValueError") == outcome_of("failed", "") == "error"


def test_every_outcome_can_occur() -> None:
    """For every outcome that clients may receive, a stored value has that meaning."""
    others = {outcome_of("completed", ""), outcome_of("interrupted", "")}
    assert set(STORED.values()) | others == set(get_args(RunOutcome))
    assert outcome_of("running", "") is None


@pytest.mark.parametrize(
    ("outcome", "detail", "text"),
    [
        ("completed", {}, "completed"),
        ("budget", {"error_class": "token_cap"}, "budget: token_cap"),
        ("step_cap", {"error_class": "step_cap"}, "step_cap"),
        ("no_progress", {"error_class": "no_progress"}, "no_progress"),
        ("interrupted", {"by": "ada"}, "interrupted by ada"),
        ("interrupted", {"by": None}, "interrupted"),
        ("provider_error", {"error_class": "rate_limited"}, "provider_error: rate_limited"),
        ("error", {"error_class": "ValueError", "by": "engine"}, "error: ValueError"),
        (None, {}, ""),
    ],
)
def test_an_outcome_is_described_with_its_details(outcome: RunOutcome | None, detail: dict, text: str) -> None:
    """With its class where that adds something, and who interrupted it, without repetition."""
    assert describe_outcome(outcome, **detail) == text


def test_the_event_of_an_end_has_the_outcome() -> None:
    """Watchers need not derive it; the event names who ended the run if the writer knows."""
    payload = end_payload(status="failed", reason="why", error_class="cost_cap", by="")
    assert payload == {"status": "failed", "reason": "why", "error_class": "cost_cap", "outcome": "budget", "by": ""}
    assert "by" not in end_payload(status="completed")
