"""Health: what was checked of an installation, what is wrong, and how to fix it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turngate.wire.explanation import WaitKind
from turngate.wire.view import View

HealthState = Literal["wrong", "warning", "ok"]
"""The worst comes first."""

CheckName = Literal[
    "api",
    "store",
    "temporal",
    "search_attributes",
    "workers",
    "builds",
    "runs",
    "schedules",
    "requests",
    "notifications",
    "retention",
    "disk",
    "clock",
]


class HealthCheck(View):
    """One thing that was checked. ``says``: the result, in a sentence. ``fix``: what to do about it; empty: nothing.

    ``command``: for a terminal; ``href``: a page.
    """

    name: CheckName
    state: HealthState
    says: str
    fix: str = ""
    command: str | None = None
    href: str | None = None


class WorkerPoll(View):
    """The workers of one build on one task queue. ``build``: None: they have none. ``workers``: processes that poll.

    ``gets_new_runs``: new runs on this queue go to them. ``polled_at``: the last poll of any of them.
    """

    task_queue: str
    build: str | None
    gets_new_runs: bool
    workers: int
    polled_at: str


class WaitCount(View):
    """How many runs wait for the same. ``says``: what for, in words. ``run_id``: one of them, the newest."""

    kind: WaitKind
    says: str
    runs: int
    run_id: str


class HealthView(View):
    """The state of an installation.

    ``state``: of the worst check. ``checks``: the worst first. ``workers``: those that polled in the last five minutes.
    ``waits``: what stalled runs wait for, among the ``looked_at`` newest of the ``live`` runs and all whose
    workflow task fails.
    """

    state: HealthState
    checked_at: str
    checks: list[HealthCheck]
    workers: list[WorkerPoll] = Field(default_factory=list)
    waits: list[WaitCount] = Field(default_factory=list)
    live: int = 0
    looked_at: int = 0
