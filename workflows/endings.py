"""How a run ends, and which failure class an activity's error means. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from turngate.domain.contract import ChildRun
from turngate.domain.requests import RunStatus


@dataclass(frozen=True)
class Ending:
    """The one ending of a run. ``error_class`` is empty unless it failed. ``stored``: the store knows of it already.

    ``next``: the conversation's next run, if the store has recorded one with it.
    """

    status: RunStatus
    reason: str = ""
    error_class: str = ""
    stored: bool = False
    next: ChildRun | None = None

    @staticmethod
    def completed(next_run: ChildRun | None = None) -> Ending:
        """The model answered without calls, which ``call_model`` stored as the run's end."""
        return Ending("completed", stored=True, next=next_run)

    @staticmethod
    def finished() -> Ending:
        """A ``finish`` call ends the run with its step; the store does not know yet."""
        return Ending("completed")

    @staticmethod
    def failed(error_class: str, reason: str) -> Ending:
        """The run cannot continue."""
        return Ending("failed", reason, error_class)

    @staticmethod
    def interrupted() -> Ending:
        """Someone stopped the run. Who and why is in the store; if it is not, Temporal itself cancelled the workflow."""
        return Ending("interrupted", "The workflow was cancelled.")


def describe_failure(error: ActivityError) -> Ending:
    """Return the ending that an activity's final error means; ``details[0]`` of an ApplicationError is its class."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        error_class = str(cause.details[0]) if cause.details else (cause.type or "bug")
        return Ending.failed(error_class, cause.message)
    if isinstance(cause, TemporalTimeoutError):
        if isinstance(cause.cause, ApplicationError):  # the last attempt's own message is better than "timed out"
            inner = cause.cause
            return Ending.failed(str(inner.details[0]) if inner.details else (inner.type or "bug"), inner.message)
        return Ending.failed("timeout", f"The activity {error.activity_type} got no answer in time: {cause.message}")
    return Ending.failed("bug", f"The activity {error.activity_type} failed: {cause or error}")
