"""Outcomes: what is stored of a run's end, as the one typed word that every surface shows."""

from __future__ import annotations

from typing import get_args

import pytest

from turngate.domain.errors import ModelErrorClass
from turngate.domain.runs.budgets import ERROR_CLASSES
from turngate.domain.runs.failure_classes import MEANINGS
from turngate.domain.runs.outcomes import RunOutcome, end_told, outcome_of, outcome_told

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
    "not_started": "error",
    "workflow_gone": "error",
    "conflict": "error",
    "bug": "error",
}
"""Every class that any release has stored, and how a run that failed with it ended."""


def test_every_stored_class_has_its_outcome() -> None:
    """The table above knows every class that has a meaning, and each is told as it says; what nobody knows is an error."""
    assert set(MEANINGS) | set(ERROR_CLASSES.values()) <= set(STORED)
    assert {name: outcome_of("failed", name) for name in STORED} == STORED
    assert outcome_of("failed", "ValueError") == outcome_of("failed", "") == "error"


def test_every_outcome_can_come_about() -> None:
    """No word that clients are told of is without a stored value that means it."""
    others = {outcome_of("completed", ""), outcome_of("interrupted", "")}
    assert set(STORED.values()) | others == set(get_args(RunOutcome))
    assert outcome_of("running", "") is None


@pytest.mark.parametrize(
    ("outcome", "detail", "told"),
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
def test_an_outcome_is_told_with_what_belongs_to_it(outcome: RunOutcome | None, detail: dict, told: str) -> None:
    """Its class where it says more, who interrupted it; nothing twice."""
    assert outcome_told(outcome, **detail) == told


def test_the_event_of_an_end_says_the_outcome() -> None:
    """Watchers need not derive it; who ended it stands there where the writer knows."""
    told = end_told(status="failed", reason="why", error_class="cost_cap", by="")
    assert told == {"status": "failed", "reason": "why", "error_class": "cost_cap", "outcome": "budget", "by": ""}
    assert "by" not in end_told(status="completed")
