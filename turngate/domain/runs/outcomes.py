"""How a run ended, in one typed word that is the same on every surface, derived from what is stored of it. Pure.

A run's row has its status and, if it failed, an ``error_class``. Neither is ever renamed, so the runs of every release have
an outcome. A class that is not in the table (the type of an unforeseen exception) is an ``error``.
"""

from __future__ import annotations

from typing import Final, Literal, assert_never, get_args

from turngate.domain.errors import ModelErrorClass
from turngate.domain.requests import RunStatus
from turngate.domain.runs.budgets import ERROR_CLASSES

RunOutcome = Literal[
    "completed",
    "budget",
    "step_cap",
    "no_progress",
    "interrupted",
    "provider_error",
    "malformed",
    "error",
]
"""``budget``: tool calls, tokens, cost or time. Shown with who interrupted the run, or with the class of its failure."""

STEP_CAP: Final = ERROR_CLASSES["steps"]
NO_PROGRESS: Final = "no_progress"

OUTCOMES: Final[dict[str, RunOutcome]] = {
    **dict.fromkeys(get_args(ModelErrorClass), "provider_error"),
    **dict.fromkeys(ERROR_CLASSES.values(), "budget"),
    STEP_CAP: "step_cap",
    NO_PROGRESS: "no_progress",
    "malformed": "malformed",
    "configuration": "error",  # of the app and its worker, raised by a model's adapter or by the engine
}
"""Stored ``error_class`` of a failed run → its outcome; every other class: ``error``."""


def outcome_of(status: RunStatus, error_class: str) -> RunOutcome | None:
    """Return how a run ended; None while it is live."""
    match status:
        case "running":
            return None
        case "completed" | "interrupted":
            return status
        case "failed":
            return OUTCOMES.get(error_class, "error")
        case _:
            assert_never(status)


def describe_outcome(outcome: RunOutcome | str | None, *, error_class: str = "", by: str | None = None) -> str:
    """Return the outcome with its detail: ``budget: token_cap``, ``interrupted by ada``; empty for a live run.

    ``by`` is a person's name as it is stored: escape the text before you show it.
    """
    if outcome is None:
        return ""
    if outcome == "interrupted":
        return f"{outcome} by {by}" if by else outcome
    return outcome if error_class in {"", outcome} else f"{outcome}: {error_class}"


def end_payload(
    *, status: RunStatus, reason: str = "", error_class: str = "", by: str | None = None
) -> dict[str, object]:
    """Return the payload of the event ``run.ended``. ``by``: None: its writer does not know; empty: no one did it."""
    payload: dict[str, object] = {"status": status, "reason": reason, "error_class": error_class}
    payload["outcome"] = outcome_of(status, error_class)
    return payload if by is None else {**payload, "by": by}
