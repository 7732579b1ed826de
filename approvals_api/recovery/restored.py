"""What a restored store has forgotten: which calls may have run since its backup, and which runs may have continued (ADR 0059).

No one knows what happened between the backup and the loss: neither the store, which is older, nor Temporal, if it was restored,
too. So nothing is assumed. Every live run is held, in the store, where the door looks. Each ``once`` call that had no result and
no start counts as started, so that its run asks a person what happened instead of running it; a request that waited for it is
superseded, because its answer may be among what was lost. A person looks at each held run, and resumes or interrupts it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from turngate.approvals_api.recovery.recover import live_root_ids, recover
from turngate.approvals_api.services import Services
from turngate.domain.digest import idempotency_key
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, recovery, runs
from turngate.store.runs.calls import Call
from turngate.store.runs.runs import Run

RESTORED: Final = "store.restored"
RECONCILED: Final = "store.reconciled"
WORKER: Final = "lost with the store"
"""In place of the worker that may have started a call."""
HELD_AT_ONCE: Final = 100

RestoredKind = Literal["doubtful_call", "held_run", "no_workflow", "workflow_of_no_run"]
"""``doubtful_call``: it may have run after the backup, and is asked about. ``held_run``: what it did then isn't known.
``no_workflow``: no new workflow could be started for it. ``workflow_of_no_run``: Temporal has it, and the store doesn't: it began
after the backup, or belongs to another store."""


@dataclass(frozen=True, kw_only=True)
class RestoredFinding:
    """One thing that the restored store can't know. ``tool_call_id``: of a call; ``request_id``: superseded with it."""

    kind: RestoredKind
    run_id: str
    tool_call_id: str | None = None
    request_id: str | None = None
    detail: str = ""


OnRestored = Callable[[RestoredFinding], None]


async def hold_live_runs(database: Database, *, by: str, backup_at: str, at_once: int = HELD_AT_ONCE) -> int:
    """Hold every live run, sub-agents included, and return how many. Runs that are held already stay so. Safe to repeat.

    ``at_once``: trees of runs in one transaction, so that none locks a whole store.
    """
    reason = f"The store was restored from a backup of {backup_at}. What this run did after that isn't known."
    held, after = 0, None
    while True:
        async with database.write() as conn:
            roots = await recovery.live_roots(conn, limit=at_once, after=after)
            members = [run_id for root in roots for run_id in await _live_tree(conn, root)]
            await runs.hold_several(conn, members)
            for run_id in members:
                if await runs.pause(conn, run_id, by=by, reason=reason, at=now()):
                    await events.append(conn, run_id, [("run.paused", {"by": by, "reason": reason})])
                    held += 1
        if len(roots) < at_once:
            return held
        after = (roots[-1].created_at, roots[-1].id)


async def _live_tree(conn: Connection, root: Run) -> list[str]:
    """Return the live runs of a tree, the lowest first: in this order everyone locks them."""
    below = [each.id for each in await recovery.runs_below(conn, root.id) if each.status == "running"]
    return [*reversed(below), root.id]


async def reconcile_restored(
    services: Services, *, by: str, fix: bool, on_finding: OnRestored | None = None
) -> list[RestoredFinding]:
    """Return what the restored store can't know; with ``fix``, write its doubts, and give each live run a new workflow.

    The workflows of live runs are terminated: they are older or newer than the store, which decides. Safe to repeat. Held runs
    stay held. Raises UnavailableError when Temporal or the store is away.
    """
    findings: list[RestoredFinding] = []
    async for finding in _findings(services, by=by, fix=fix):
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)
    if fix:
        await _log(services, findings, by=by)
    return findings


async def _findings(services: Services, *, by: str, fix: bool) -> AsyncIterator[RestoredFinding]:
    roots = await live_root_ids(services)
    if fix:
        await hold_live_runs(services.database, by=by, backup_at="an unknown time")
    for run in await _live_members(services, roots):
        for finding in await _doubt(services, run, fix=fix):
            yield finding
        if fix:
            await services.gateway.recovery.terminate(run.id, RESTORED)
        yield RestoredFinding(kind="held_run", run_id=run.id, detail=f"step {run.step} is the last that is known")
    for report in await recover(services, roots, by=by) if fix else []:
        if report.needs_help:
            yield RestoredFinding(kind="no_workflow", run_id=report.run_id, detail=report.detail)
    for run_id in await _unknown_workflows(services):
        yield RestoredFinding(kind="workflow_of_no_run", run_id=run_id, detail="the store doesn't have this run")


async def _live_members(services: Services, root_ids: Sequence[str]) -> list[Run]:
    """Return the live runs of these trees, each parent before its sub-agents."""
    members: list[Run] = []
    for root_id in root_ids:
        async with services.database.read() as conn:
            root = await runs.get(conn, root_id)
            members += [] if root is None else [root, *await recovery.runs_below(conn, root_id)]
    return [run for run in members if run.status == "running"]


async def _log(services: Services, findings: Sequence[RestoredFinding], *, by: str) -> None:
    counts = {kind: sum(each.kind == kind for each in findings) for kind in ("doubtful_call", "held_run")}
    async with services.database.write() as conn:
        await events.append(conn, events.SYSTEM, [(RECONCILED, {"by": by, **counts})])


async def _doubt(services: Services, run: Run, *, fix: bool) -> list[RestoredFinding]:
    """Find the run's calls that may have run since the backup, and with ``fix`` let each count as started."""
    if not fix:
        async with services.database.read() as conn:
            return [_finding(call, await _waiting(conn, call)) for call in await _doubtful(conn, run.id)]
    findings = []
    async with services.database.write() as conn:
        await runs.hold(conn, run.id)
        for call in await _doubtful(conn, run.id):
            request = await _waiting(conn, call)
            findings.append(_finding(call, request))
            await _count_as_started(conn, call, request)
    return findings


def _finding(call: Call, request: requests.Request | None) -> RestoredFinding:
    waiting = None if request is None or request.status != "pending" else request.id
    return RestoredFinding(
        kind="doubtful_call",
        run_id=call.run_id,
        tool_call_id=call.tool_call_id,
        request_id=waiting,
        detail=f"{call.tool_name} may have run after the backup: its run asks what happened",
    )


async def _doubtful(conn: Connection, run_id: str) -> Sequence[Call]:
    started = {each.tool_call_id for each in await executions.of_run(conn, run_id)}
    return [
        call
        for call in await calls.of_run(conn, run_id)
        if call.result is None
        and call.effect == "once"
        and call.tool_call_id not in started
        and call.disposition in {"run", "ask"}
        and call.signal is None
        and call.child_run_id is None
    ]


async def _waiting(conn: Connection, call: Call) -> requests.Request | None:
    """Return the newest request for approval of a call, whether it waits or was approved."""
    about = await requests.of_call(conn, call.run_id, call.tool_call_id, kind="approval")
    return about[-1] if about else None


async def _count_as_started(conn: Connection, call: Call, request: requests.Request | None) -> None:
    """Write that a call was let through, and that its worker is lost: the door then asks a person (I3)."""
    approved = request if request is not None and request.status == "approved" else None
    new: list[events.NewEvent] = []
    if request is not None and request.status == "pending":
        at = now()
        await requests.settle(conn, request.id, requests.Ending(status="superseded", at=at))
        superseded = {"request_id": request.id, "tool_call_id": call.tool_call_id, "at": as_text(at)}
        new.append(("request.superseded", superseded))
    decision_id = None if approved is None else approved.decision_id
    decision = None if decision_id is None else await requests.decision(conn, decision_id)
    digest = call.digest if approved is None else approved.digest
    if decision is not None and decision.verb == "edit":
        digest = decision.digest
    key = idempotency_key(call.run_id, call.tool_call_id)
    await executions.begin(
        conn,
        executions.NewExecution(
            run_id=call.run_id,
            tool_call_id=call.tool_call_id,
            digest=digest,
            decision_id=decision_id,
            idempotency_key=key,
            worker=WORKER,
            repeat_key=call.running_key,
        ),
    )
    payload = {
        "tool_call_id": call.tool_call_id,
        "tool": call.tool_name,
        "attempt": 1,
        "digest": digest,
        "decision_id": decision_id,
        "idempotency_key": key,
    }
    by = None if approved is None else approved.decided_by
    new.append(("execution.started", {**payload, "by": by, "restored": True}))
    await events.append(conn, call.run_id, new)


async def _unknown_workflows(services: Services) -> list[str]:
    unknown = []
    async for run_id in services.gateway.recovery.open_turns():
        async with services.database.read() as conn:
            if await runs.get(conn, run_id) is None:
                unknown.append(run_id)
    return unknown
