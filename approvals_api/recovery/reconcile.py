"""The store and Temporal held against each other: runs without workflows, workflows without runs, requests without gates.

The workflows are the authority and the inbox a projection of them, so what differs in the inbox can be rebuilt from what
the workflows say. Nothing is ever decided here: at most a decision that one side knows is brought to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from approvals_api.gateway.recovery import gates_of, open_turns, standing_of
from approvals_api.recovery.bounded import for_each
from approvals_api.recovery.mending import mend
from approvals_api.recovery.recover import AT_ONCE, live_root_ids, lost_runs
from approvals_api.services import Services
from turngate.domain.runs.requests import RequestStatus
from turngate.domain.runs.turn_state import Gate
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import recovery, runs

SETTLING_SECONDS: Final = 1.0
"""What is only on its way differs for a moment: whatever differs is looked at again after this, and has to be the same."""

FindingKind = Literal["lost_run", "lost_workflow", "not_asked", "unknown_to_run", "closed_in_run", "closed_in_inbox"]
"""``lost_run``: live in the store, its workflow gone. ``lost_workflow``: open, its run ended or not in this store.
``not_asked``: no worker answered for its workflow. Of a request: ``unknown_to_run``: pending, and its run has no such
gate; ``closed_in_run``: pending, and its run's gate is closed; ``closed_in_inbox``: its run's gate is open, and the inbox
does not show it."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is off. ``said``: what the one side and the other say. ``mended``: it was put right."""

    kind: FindingKind
    run_id: str
    request_id: str | None = None
    said: str = ""
    mended: bool = False


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A request as the inbox has it, and as its run does; None: not at all."""

    kind: FindingKind
    request_id: str
    stored: RequestStatus | None
    gate: Gate | None

    @property
    def said(self) -> str:
        """Both sides in words."""
        gate = "unknown" if self.gate is None else self.gate.status
        return f"the inbox says {self.stored or 'nothing'}, the run {gate}"


Told = Callable[[Finding], None]


async def reconcile(services: Services, *, fix: bool, by: str, told: Told | None = None) -> list[Finding]:
    """Return what is off between the store and Temporal; with ``fix``, rebuild the inbox from the workflows.

    Lost runs are only reported (``recovering.recover`` continues them), and so are workflows without a run. Safe to repeat
    and beside living workers. ``by``: who mends, for the log. ``told``: called with each finding at once.

    Raises UnavailableError when Temporal or the store is away.
    """
    found: list[Finding] = []

    def tell(finding: Finding) -> None:
        found.append(finding)
        if told is not None:
            told(finding)

    async def compare(run_id: str) -> None:
        for finding in await _compare(services, run_id, fix=fix, by=by):
            tell(finding)

    for lost in await lost_runs(services):
        tell(Finding(kind="lost_run", run_id=lost.run_id, said=f"live in the store, its workflow is {lost.workflow}"))
    for orphan in await _lost_workflows(services):
        tell(orphan)
    lost_ids = {each.run_id for each in found}
    ids = [run_id for run_id in await _live_ids(services) if run_id not in lost_ids]
    await for_each(ids, compare, at_once=AT_ONCE)
    return found


async def _live_ids(services: Services) -> list[str]:
    """Return the ids of all live runs, each followed by those of its sub-agents."""
    ids: list[str] = []
    for run_id in await live_root_ids(services):
        async with services.database.read() as conn:
            below = await recovery.runs_below(conn, run_id)
        ids += [run_id, *(run.id for run in below if run.status == "running")]
    return ids


async def _lost_workflows(services: Services) -> list[Finding]:
    """Return the open workflows whose run has ended in the store, or is not in it."""

    async def without_run(ids: Iterable[str]) -> dict[str, str]:
        """Return run id → what the store says of it."""
        found = {}
        for run_id in ids:
            async with services.database.read() as conn:
                run = await runs.get(conn, run_id)
            if run is None or run.status != "running":
                found[run_id] = "not in this store" if run is None else f"{run.status} in the store"
        return found

    # A run ends in the store first, and its workflow a moment later; one that was taken back is stopped by its first step.
    suspected = await without_run([run_id async for run_id in open_turns(services.gateway.client)])
    if not suspected:
        return []
    await asyncio.sleep(SETTLING_SECONDS)
    return [
        Finding(kind="lost_workflow", run_id=run_id, said=f"its workflow is open, and the run is {said}")
        for run_id, said in (await without_run(suspected)).items()
        if await standing_of(services.gateway.client, run_id) == "open"
    ]


async def _compare(services: Services, run_id: str, *, fix: bool, by: str) -> list[Finding]:
    """Compare one run's requests with its gates."""
    differ = await _differences(services, run_id)
    if differ:
        await asyncio.sleep(SETTLING_SECONDS)
        again = await _differences(services, run_id)
        differ = None if again is None else [each for each in again if each in differ]
    if differ is None:
        return await _silent(services, run_id)
    findings = []
    for each in differ:
        finding = Finding(kind=each.kind, run_id=run_id, request_id=each.request_id, said=each.said)
        findings.append(replace(finding, mended=fix and await mend(services, run_id, each, by=by)))
    return findings


async def _silent(services: Services, run_id: str) -> list[Finding]:
    """Say that a workflow did not answer, unless it or its run has come to its end."""
    standing = await standing_of(services.gateway.client, run_id)
    async with services.database.read() as conn:
        run = await runs.get(conn, run_id)
    if standing != "open" or run is None or run.status != "running":
        return []
    return [Finding(kind="not_asked", run_id=run_id, said="no worker answered for its workflow")]


async def _differences(services: Services, run_id: str) -> list[Difference] | None:
    """Return where inbox and workflow differ about a run's requests; None when the workflow does not answer."""
    gates = await gates_of(services.gateway.client, run_id)
    if gates is None:
        return None
    async with services.database.read() as conn:
        stored = {request.id: request for request in await requests.of_run(conn, run_id)}
    pending = [request for request in stored.values() if request.status == "pending"]
    found = [_of_pending(request, gates.get(request.id)) for request in pending]
    for request_id, gate in gates.items():
        request = stored.get(request_id)
        if gate.status == "pending" and (request is None or request.status != "pending"):
            status = None if request is None else request.status
            found.append(Difference(kind="closed_in_inbox", request_id=request_id, stored=status, gate=gate))
    return [each for each in found if each is not None]


def _of_pending(request: Request, gate: Gate | None) -> Difference | None:
    if gate is None:
        return Difference(kind="unknown_to_run", request_id=request.id, stored="pending", gate=None)
    if gate.status != "pending":
        return Difference(kind="closed_in_run", request_id=request.id, stored="pending", gate=gate)
    return None
