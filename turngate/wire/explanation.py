"""Why a run ended, or what a live run waits for, and what a person can do about it."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from turngate.domain.runs.failure_classes import FailureClass
from turngate.wire.people import Says
from turngate.wire.runs import RunSummary, StepView
from turngate.wire.view import View

WaitKind = Literal[
    "person",
    "tool",
    "timer",
    "sub_agent",
    "model",
    "model_retrying",
    "workflow_fails",
    "no_worker",
    "workflow_gone",
    "temporal_away",
    "paused",
]
"""What a live run waits for. ``paused``, ``workflow_fails``, ``no_worker``, ``workflow_gone`` and ``temporal_away`` don't end by
themselves."""


class WaitReason(View):
    """One reason why a live run waits. ``says``: the reason in a sentence. ``since``: None if unknown.

    ``until``: the end of a timer, or when a request expires. ``request_id``: the request that waits for a person;
    ``tool_call_id``: the open call; ``child_run_id``: the sub-agent's run that answers it. ``build``: only a worker of this
    build can continue the run, and none is there. ``pinned``: it began with that build; else the build gets new runs.
    """

    __qualname__ = "Standstill"  # the component's name in the OpenAPI document
    model_config = ConfigDict(title="Standstill")

    kind: WaitKind
    says: Says
    since: str | None = None
    until: str | None = None
    request_id: str | None = None
    tool_call_id: str | None = None
    child_run_id: str | None = None
    build: str | None = None
    pinned: bool = False


class StuckRun(View):
    """A stalled run and the reason."""

    run: RunSummary
    waits_for: WaitReason


class ModelAttempt(View):
    """A failed attempt to get a response, followed by another. ``retry_in_seconds``: None: as Temporal's retry policy says.

    ``error_id``: under which its whole text is stored.
    """

    step: int
    attempt: int
    error_class: str
    message: str
    retry_in_seconds: float | None
    at: str
    error_id: str | None = None


class ModelFallback(View):
    """One change to a fallback model. ``step``: of the request, from 1. ``error_class``, ``message``: why the other failed."""

    step: int
    instead_of: str
    model: str
    error_class: str
    message: str
    at: str


class UnfinishedAnswer(View):
    """What a model had said when it broke off, of which nothing ran. ``text``: at most its first 4,000 characters.

    ``error_id``: under which the failure is stored.
    """

    step: int
    attempt: int
    text: str
    at: str
    error_id: str | None = None


class ErrorView(View):
    """An error of a run. ``says``: what failed, in a few words; ``about``: which tool, model or hook. ``attempt``: from 1.

    ``step``, ``tool_call_id``: where it happened; None: not known. ``message``: the error's own text; ``traceback``: "" if it
    is no crash. ``worker``, ``build``: the process it happened in. These four are None for who may not decide requests.
    """

    id: str
    run_id: str
    step: int | None
    tool_call_id: str | None
    attempt: int
    says: Says
    about: str
    message: str | None
    traceback: str | None
    worker: str | None
    build: str | None
    created_at: str


class NextAction(View):
    """What a person can do. ``command``: for a terminal, with ``…`` where they fill in a text; ``href``: a page."""

    text: str
    command: str | None = None
    href: str | None = None


class FamilyMember(View):
    """A run in the tree of what was forked from what. ``level``: how many runs are above it there. ``here``: the explained run.

    ``how_it_ended``: its outcome, or its status. ``came``: who started, forked, retried or dry-ran it, after which step. It has
    a person's name: escape it before you show it. ``left_out``: forks of it that are not in the tree.
    """

    run_id: str
    agents: str
    how_it_ended: Says
    came: Says
    level: int
    here: bool
    left_out: int = 0


class Explanation(View):
    """Why a run ended, or what it waits for.

    ``cause``: one sentence; the run's own words are in ``run.reason``. ``failure``: None unless the run failed. ``step``:
    where the run ended or is now, from 1; None: before its first step. ``steps``: the step before that one, then that step if
    it has a response. ``model_attempts``: the newest failed attempts that were followed by another, oldest first.
    ``model_fallbacks``: changes to a fallback model, oldest first.
    ``unfinished``: the newest answers that broke off in that step, oldest first.
    ``errors``: the newest errors of the run, oldest first. ``family``: the runs that it came from and those that came from it,
    each before its forks; empty: there is none.
    ``waits_for``: why a live run waits; the first reason is why it is stalled. ``temporal_url``: the workflow's page, if its
    address is known. ``actions``: the likeliest first.
    """

    run: RunSummary
    cause: Says
    failure: FailureClass | None
    step: int | None
    steps: list[StepView]
    model_attempts: list[ModelAttempt]
    waits_for: list[WaitReason]
    temporal_url: str | None
    actions: list[NextAction]
    model_fallbacks: list[ModelFallback] = Field(default_factory=list)
    unfinished: list[UnfinishedAnswer] = Field(default_factory=list)
    errors: list[ErrorView] = Field(default_factory=list)
    family: list[FamilyMember] = Field(default_factory=list)
