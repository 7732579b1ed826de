"""Why a run ended as it did, or what a live one waits for, and what a person can do about it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turngate.domain.runs.failure_classes import FailureClass
from turngate.wire.runs import RunSummary, StepView
from turngate.wire.view import View

StandstillKind = Literal[
    "person",
    "tool",
    "timer",
    "sub_agent",
    "model",
    "model_retrying",
    "no_worker",
    "workflow_gone",
    "temporal_away",
    "paused",
]
"""What a live run waits for. ``paused``, ``no_worker``, ``workflow_gone`` and ``temporal_away`` do not pass by themselves."""


class Standstill(View):
    """One thing that a live run waits for. ``says``: it in a sentence. ``since``: None where no one knows.

    ``until``: the end of a timer, or of a request's clock. ``request_id``: who waits for a person; ``tool_call_id``: the
    call that is open; ``child_run_id``: the sub-agent's run that answers it.
    """

    kind: StandstillKind
    says: str
    since: str | None = None
    until: str | None = None
    request_id: str | None = None
    tool_call_id: str | None = None
    child_run_id: str | None = None


class StuckRun(View):
    """A live run that stands still, and the reason."""

    run: RunSummary
    waits_for: Standstill


class ModelAttempt(View):
    """One attempt to get a response that failed and was tried again. ``retry_in_seconds``: None: as Temporal's policy says."""

    step: int
    attempt: int
    error_class: str
    message: str
    retry_in_seconds: float | None
    at: str


class ModelFallback(View):
    """One model that stood in for another. ``step``: whose request it was, from 1. ``error_class``, ``message``: of the other."""

    step: int
    instead_of: str
    model: str
    error_class: str
    message: str
    at: str


class NextAction(View):
    """What a person can do. ``command``: for a terminal, ``…`` where they have to say something; ``href``: a page."""

    text: str
    command: str | None = None
    href: str | None = None


class Explanation(View):
    """A run explained.

    ``cause``: one sentence; the run's own words are in ``run.reason``. ``failure``: None unless the run failed. ``step``:
    where it broke off or works, from 1; None: before its first one. ``steps``: that step, if there is a response, behind
    the one before it. ``model_attempts``: the newest of those that failed and were tried again, oldest first.
    ``model_fallbacks``: models that stood in for others, oldest first.
    ``waits_for``: of a live run; the first one is its reason to stand still. ``temporal_url``: the workflow's page, where
    its address is known. ``actions``: the likeliest first.
    """

    run: RunSummary
    cause: str
    failure: FailureClass | None
    step: int | None
    steps: list[StepView]
    model_attempts: list[ModelAttempt]
    waits_for: list[Standstill]
    temporal_url: str | None
    actions: list[NextAction]
    model_fallbacks: list[ModelFallback] = Field(default_factory=list)
