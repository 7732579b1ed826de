"""The store and Temporal held against each other: runs without workflows, workflows without runs, requests without gates.

The workflows are the authority and the inbox a projection of them, so what differs in the inbox can be rebuilt from what
the workflows say. Nothing is ever decided here: at most a decision that one side knows is brought to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

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
    suspected = await without_run([run_id async for run_id in services.gateway.recovery.open_turns()])
    if not suspected:
        return []
    await asyncio.sleep(SETTLING_SECONDS)
    return [
        Finding(kind="lost_workflow", run_id=run_id, said=f"its workflow is open, and the run is {said}")
        for run_id, said in (await without_run(suspected)).items()
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
        finding = Finding(kind=each.kind, run_id=run_id, request_id=each.request_id, said=each.said)
        findings.append(replace(finding, mended=fix and await mend(services, run_id, each, by=by)))
    return findings


async def _silent(services: Services, run_id: str) -> list[Finding]:
    """Say that a workflow did not answer, unless it or its run has come to its end."""
    standing = await services.gateway.recovery.state_of(run_id)
    async with services.database.read() as conn:
        run = await runs.get(conn, run_id)
    if standing != "open" or run is None or run.status != "running":
        return []
    return [Finding(kind="not_asked", run_id=run_id, said="no worker answered for its workflow")]


async def _differences(services: Services, run_id: str) -> list[Difference] | None:
    """Return where inbox and workflow differ about a run's requests; None when the workflow does not answer."""
    gates = await services.gateway.recovery.gates_of(run_id)
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


# Rebuilding one request of the inbox from what its run's workflow says. Decides nothing.


if TYPE_CHECKING:
    pass


async def mend(services: Services, run_id: str, difference: Difference, *, by: str) -> bool:
    """Bring the inbox to what the workflow says of one request; False when that would take a person.

    Raises UnavailableError when Temporal or the store is away.
    """
    gate = difference.gate
    if difference.kind == "closed_in_inbox" and difference.stored in {"approved", "rejected", "responded"}:
        return await redeliver(services, difference.request_id)  # the store has a decision that its run never heard of
    async with services.database.write() as conn:
        request = await requests.get(conn, difference.request_id)
        if request is None or request.status != difference.stored:
            return False
        if difference.kind == "closed_in_inbox":
            mended = await _reopened(conn, request)
        elif gate is None:
            mended = await _withdrawn(conn, request)
        else:
            mended = await _closed(conn, request, gate)
        if mended:
            after = await requests.get(conn, request.id)
            status = request.status if after is None else after.status
            told = {"request_id": request.id, "from_status": request.status, "status": status, "by": by}
            await events.append(conn, run_id, [("request.rebuilt", told)])
    return mended


async def _reopened(conn: Connection, request: Request) -> bool:
    """Show a request again that its run waits for; not one whose call has its result, which nobody could change."""
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    if call is None or call.result is not None:
        return False
    return await recovery.reopen_request(conn, request.id)


async def _withdrawn(conn: Connection, request: Request) -> bool:
    """Take away a request that nobody waits for: its call has its result, or its step is closed.

    Else the run may be about to hear of it: the worker that opened it has been lost, say, and another is yet to come.
    """
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    step = None if call is None else await steps.get(conn, request.run_id, call.step)
    settled = call is not None and call.result is not None
    if not settled and (step is None or step.closed_at is None):
        return False
    return await requests.settle(conn, request.id, status="cancelled", at=now())


async def _closed(conn: Connection, request: Request, gate: Gate) -> bool:
    """Write how a request ended in its run; a decision only where all of its content is in the store."""
    result: Failure | None = None
    if gate.decision_id is None:
        result = {"expired": results.expired()}.get(gate.status)
    elif gate.verb == "reject":
        content = await requests.decision(conn, gate.decision_id)
        result = results.rejected(gate.decided_by or "", "" if content is None else content.message)
    elif gate.verb != "approve":
        call = await calls.get(conn, request.run_id, request.tool_call_id)
        kept = call is not None and (call.edited_input if gate.verb == "edit" else call.result) is not None
        if not kept:
            return False
    decided = {"decision_id": gate.decision_id, "verb": gate.verb, "by": gate.decided_by}
    if not await requests.settle(conn, request.id, status=gate.status, at=now(), **decided):  # type: ignore[arg-type]
        return False
    if result is not None:
        await calls.settle(conn, request.run_id, request.tool_call_id, result)
    return True
