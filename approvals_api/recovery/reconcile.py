"""Comparing the store with Temporal: runs without workflows, workflows without runs, runs that missed what was decided.

The store decides, and nothing here changes what it says: at most it signals a run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from turngate.approvals_api.concurrency import for_each
from turngate.approvals_api.recovery.recover import AT_ONCE, lost_runs
from turngate.approvals_api.recovery.redelivery import is_missed, redeliver
from turngate.approvals_api.services import Services
from turngate.store.requests import requests
from turngate.store.runs import runs

SETTLING_SECONDS: Final = 1.0
"""A change in flight makes a difference for a moment: every difference is checked again after this, and must be the same."""

FindingKind = Literal["lost_run", "lost_workflow", "not_told"]
"""``lost_run``: live in the store, its workflow gone. ``lost_workflow``: open, its run ended or not in this store.
``not_told``: a request has ended, and its run has not acted on it."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference. ``detail``: both sides in words. ``fixed``: it was repaired."""

    kind: FindingKind
    run_id: str
    request_id: str | None = None
    detail: str = ""
    fixed: bool = False


OnFinding = Callable[[Finding], None]


async def reconcile(services: Services, *, fix: bool, on_finding: OnFinding | None = None) -> list[Finding]:
    """Return the differences between the store and Temporal; with ``fix``, tell runs again.

    Lost runs are only reported (``recover`` continues them), and so are workflows without a run. Safe to repeat, and while
    workers run. ``on_finding``: called with each finding at once.

    Raises UnavailableError when Temporal or the store is away.
    """
    findings: list[Finding] = []

    def report(finding: Finding) -> None:
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)

    async def compare(request_id: str) -> None:
        run_id = await is_missed(services, request_id)
        if run_id is not None:
            fixed = fix and await redeliver(services, request_id)
            detail = "it has ended, and its run has not acted on it"
            report(Finding(kind="not_told", run_id=run_id, request_id=request_id, detail=detail, fixed=fixed))

    for lost in await lost_runs(services):
        report(
            Finding(kind="lost_run", run_id=lost.run_id, detail=f"live in the store, its workflow is {lost.workflow}")
        )
    for orphan in await _lost_workflows(services):
        report(orphan)
    lost_ids = {each.run_id for each in findings}
    suspected = [each for each in await _ended(services) if await is_missed(services, each) not in {None, *lost_ids}]
    if suspected:
        await asyncio.sleep(SETTLING_SECONDS)
        await for_each(suspected, compare, at_once=AT_ONCE)
    return findings


async def _ended(services: Services) -> list[str]:
    async with services.database.read() as conn:
        return await requests.ended_in_live_runs(conn)


async def _lost_workflows(services: Services) -> list[Finding]:
    """Return the open workflows whose run has ended in the store, or is not in it."""

    async def without_run(ids: Iterable[str]) -> dict[str, str]:
        """Return run id → its state in the store."""
        states = {}
        for run_id in ids:
            async with services.database.read() as conn:
                run = await runs.get(conn, run_id)
            if run is None or run.status != "running":
                states[run_id] = "not in this store" if run is None else f"{run.status} in the store"
        return states

    # A run ends in the store first and its workflow a moment later; a run that was removed is stopped by its first step.
    suspected = await without_run([run_id async for run_id in services.gateway.recovery.open_turns()])
    if not suspected:
        return []
    await asyncio.sleep(SETTLING_SECONDS)
    return [
        Finding(kind="lost_workflow", run_id=run_id, detail=f"its workflow is open, and the run is {state}")
        for run_id, state in (await without_run(suspected)).items()
        if await services.gateway.recovery.state_of(run_id) == "open"
    ]
