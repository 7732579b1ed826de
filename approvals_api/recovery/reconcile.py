"""Comparing the store with Temporal: runs without workflows, workflows without runs, requests without gates.

The workflows are the authority and the inbox is a projection of them, so a request that differs can be rebuilt from its
workflow. Nothing is ever decided here: at most a decision that one side knows is sent to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from approvals_api.concurrency import for_each
from approvals_api.recovery.recover import AT_ONCE, live_root_ids, lost_runs
from approvals_api.recovery.redelivery import redeliver
from approvals_api.services import Services
from turngate.domain.requests import RequestStatus
from turngate.domain.runs.turn_state import Gate
from turngate.domain.tools import results
from turngate.domain.tools.results import Failure
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, recovery, runs, steps

SETTLING_SECONDS: Final = 1.0
"""A change in flight makes a difference for a moment: every difference is checked again after this, and must be the same."""

FindingKind = Literal["lost_run", "lost_workflow", "not_asked", "unknown_to_run", "closed_in_run", "closed_in_inbox"]
"""``lost_run``: live in the store, its workflow gone. ``lost_workflow``: open, its run ended or not in this store.
``not_asked``: no worker answered for its workflow. Of a request: ``unknown_to_run``: pending, but its run has no such
gate; ``closed_in_run``: pending, but its run's gate is closed; ``closed_in_inbox``: its run's gate is open, but the inbox
does not show it."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference. ``detail``: both sides in words. ``fixed``: it was repaired."""

    kind: FindingKind
    run_id: str
    request_id: str | None = None
    detail: str = ""
    fixed: bool = False


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A request as the inbox has it and as its run has it; None: that side doesn't have it."""

    kind: FindingKind
    request_id: str
    stored: RequestStatus | None
    gate: Gate | None

    @property
    def detail(self) -> str:
        """Both sides in words."""
        gate = "unknown" if self.gate is None else self.gate.status
        return f"the inbox says {self.stored or 'nothing'}, the run {gate}"


OnFinding = Callable[[Finding], None]


async def reconcile(services: Services, *, fix: bool, by: str, on_finding: OnFinding | None = None) -> list[Finding]:
    """Return the differences between the store and Temporal; with ``fix``, rebuild the inbox from the workflows.

    Lost runs are only reported (``recover`` continues them), and so are workflows without a run. Safe to repeat, and while
    workers run. ``by``: who repairs, for the log. ``on_finding``: called with each finding at once.

    Raises UnavailableError when Temporal or the store is away.
    """
    findings: list[Finding] = []

    def report(finding: Finding) -> None:
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)

    async def compare(run_id: str) -> None:
        for finding in await _compare(services, run_id, fix=fix, by=by):
            report(finding)

    for lost in await lost_runs(services):
        report(
            Finding(kind="lost_run", run_id=lost.run_id, detail=f"live in the store, its workflow is {lost.workflow}")
        )
    for orphan in await _lost_workflows(services):
        report(orphan)
    lost_ids = {each.run_id for each in findings}
    ids = [run_id for run_id in await _live_ids(services) if run_id not in lost_ids]
    await for_each(ids, compare, at_once=AT_ONCE)
    return findings


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
        finding = Finding(kind=each.kind, run_id=run_id, request_id=each.request_id, detail=each.detail)
        findings.append(replace(finding, fixed=fix and await _repair(services, run_id, each, by=by)))
    return findings


async def _silent(services: Services, run_id: str) -> list[Finding]:
    """Report that a workflow did not answer, unless it or its run has ended."""
    workflow = await services.gateway.recovery.state_of(run_id)
    async with services.database.read() as conn:
        run = await runs.get(conn, run_id)
    if workflow != "open" or run is None or run.status != "running":
        return []
    return [Finding(kind="not_asked", run_id=run_id, detail="no worker answered for its workflow")]


async def _differences(services: Services, run_id: str) -> list[Difference] | None:
    """Return where inbox and workflow differ about a run's requests; None when the workflow does not answer."""
    gates = await services.gateway.recovery.gates_of(run_id)
    if gates is None:
        return None
    async with services.database.read() as conn:
        stored = {request.id: request for request in await requests.of_run(conn, run_id)}
    pending = [request for request in stored.values() if request.status == "pending"]
    differences = [_of_pending(request, gates.get(request.id)) for request in pending]
    for request_id, gate in gates.items():
        request = stored.get(request_id)
        if gate.status == "pending" and (request is None or request.status != "pending"):
            status = None if request is None else request.status
            differences.append(Difference(kind="closed_in_inbox", request_id=request_id, stored=status, gate=gate))
    return [each for each in differences if each is not None]


def _of_pending(request: Request, gate: Gate | None) -> Difference | None:
    if gate is None:
        return Difference(kind="unknown_to_run", request_id=request.id, stored="pending", gate=None)
    if gate.status != "pending":
        return Difference(kind="closed_in_run", request_id=request.id, stored="pending", gate=gate)
    return None


# Rebuilding one request of the inbox from its run's workflow. Decides nothing.


async def _repair(services: Services, run_id: str, difference: Difference, *, by: str) -> bool:
    """Set one request of the inbox to the workflow's state; False: only a person could.

    Raises UnavailableError when Temporal or the store is away.
    """
    gate = difference.gate
    if difference.kind == "closed_in_inbox" and difference.stored in {"approved", "rejected", "responded"}:
        return await redeliver(services, difference.request_id)  # the store has a decision that its run missed
    async with services.database.write() as conn:
        request = await requests.get(conn, difference.request_id)
        if request is None or request.status != difference.stored:
            return False
        if difference.kind == "closed_in_inbox":
            fixed = await _reopened(conn, request)
        elif gate is None:
            fixed = await _withdrawn(conn, request)
        else:
            fixed = await _closed(conn, request, gate)
        if fixed:
            after = await requests.get(conn, request.id)
            status = request.status if after is None else after.status
            payload = {"request_id": request.id, "from_status": request.status, "status": status, "by": by}
            await events.append(conn, run_id, [("request.rebuilt", payload)])
    return fixed


async def _reopened(conn: Connection, request: Request) -> bool:
    """Show a request again that its run waits for, unless its call has a result, which no decision could change."""
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    if call is None or call.result is not None:
        return False
    return await recovery.reopen_request(conn, request.id)


async def _withdrawn(conn: Connection, request: Request) -> bool:
    """Cancel a request that nothing waits for: its call has a result, or its step is closed.

    Otherwise the run may still learn of it: for example if the worker that opened it was lost and another one takes over.
    """
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    step = None if call is None else await steps.get(conn, request.run_id, call.step)
    settled = call is not None and call.result is not None
    if not settled and (step is None or step.closed_at is None):
        return False
    return await requests.settle(conn, request.id, requests.Ending(status="cancelled", at=now()))


async def _closed(conn: Connection, request: Request, gate: Gate) -> bool:
    """Write how a request ended in its run; a decision only if all of its content is in the store."""
    result: Failure | None = None
    if gate.decision_id is None:
        result = {"expired": results.expired()}.get(gate.status)
    elif gate.verb == "reject":
        content = await requests.decision(conn, gate.decision_id)
        result = results.rejected(gate.decided_by or "", "" if content is None else content.message)
    elif gate.verb != "approve":
        call = await calls.get(conn, request.run_id, request.tool_call_id)
        has_content = call is not None and (call.edited_input if gate.verb == "edit" else call.result) is not None
        if not has_content:
            return False
    ending = requests.Ending(
        status=gate.status, at=now(), decision_id=gate.decision_id, verb=gate.verb, by=gate.decided_by
    )
    if not await requests.settle(conn, request.id, ending):
        return False
    if result is not None:
        await calls.settle(conn, request.run_id, request.tool_call_id, result)
    return True
