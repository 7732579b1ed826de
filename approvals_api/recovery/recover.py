"""Recovering runs whose workflow is gone: Temporal lost its database, or someone terminated the workflow by hand.

The store has everything that was done (``turngate.store.runs.recovery``), so a new workflow under the same run id continues from
the last closed step. This is safe while workers run: the server holds one open workflow per id, so a live run is left as it
is; and whether a call may start is decided by its row in the store, not by any workflow (I2, I3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from turngate.approvals_api.concurrency import for_each
from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.runs.lost import LostRun, NotLost, find_loss
from turngate.approvals_api.runs.start import run_labels, turn_input
from turngate.approvals_api.services import Services
from turngate.store import agents
from turngate.store.events import events
from turngate.store.runs import recovery, runs
from turngate.store.runs.runs import Run

logger = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Runs that are checked or started at the same time: all of them wake up on the same workers."""
PAGE: Final = 500
Recovery = Literal["recovered", "would_recover", "alive", "ended", "starting", "stopping", "not_published"]
"""``would_recover``: in a dry run. ``alive``: its workflow is open, and was left alone. ``ended``: the run has ended.
``starting``: it was recorded a moment ago. ``stopping``: a sub-agent's workflow below it is still open and would be in
the way. ``not_published``: no worker has ever published its agent to this store."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The outcome for one run. ``step``: the one it continues with; None: it doesn't."""

    run_id: str
    outcome: Recovery
    step: int | None = None
    detail: str = ""

    @property
    def needs_help(self) -> bool:
        """Whether a person must do something before the run can be recovered."""
        return self.outcome in {"stopping", "not_published"}


OnReport = Callable[[RunReport], None]


async def lost_runs(services: Services) -> list[LostRun]:
    """Return the live runs whose workflow is gone, oldest first; a sub-agent's run is named with the run above it.

    Changes nothing. Raises UnavailableError when Temporal or the store is away.
    """
    lost_by_id: dict[str, LostRun] = {}

    async def look(run_id: str) -> None:
        lost = await find_loss(services, run_id)
        if isinstance(lost, LostRun):
            lost_by_id[run_id] = lost

    ids = await live_root_ids(services)
    await for_each(ids, look, at_once=AT_ONCE)
    return [lost_by_id[run_id] for run_id in ids if run_id in lost_by_id]


async def recover(
    services: Services,
    run_ids: Sequence[str] | None,
    *,
    by: str,
    dry_run: bool = False,
    on_report: OnReport | None = None,
) -> list[RunReport]:
    """Start a new workflow for each of these runs whose own is gone; returns a report on each, oldest run first.

    Safe to repeat, and while workers and other recoveries run. A sub-agent's run is recovered with the run at the top of its
    tree, which is the one that is reported.

    Args:
        services: the process's services.
        run_ids: the runs; None means every live one.
        by: who recovers them, for the log.
        dry_run: only report what would be done.
        on_report: called with each report at once.

    Raises:
        NotFoundError: one of ``run_ids`` is no run of this store; nothing was done.
        UnavailableError: Temporal or the store is away; what was reported is done, and a repeat does the rest.
    """
    ids = await live_root_ids(services) if run_ids is None else await _roots(services, run_ids)
    reports: dict[str, RunReport] = {}

    async def one(run_id: str) -> None:
        report = await _recover_one(services, run_id, by=by, dry_run=dry_run)
        reports[run_id] = report
        if on_report is not None:
            on_report(report)

    await for_each(ids, one, at_once=AT_ONCE)
    return [reports[run_id] for run_id in ids]


async def live_root_ids(services: Services) -> list[str]:
    """Return the ids of the live runs that no run of an agent started, oldest first."""
    ids: list[str] = []
    after = None
    while True:
        async with services.database.read() as conn:
            page = await recovery.live_roots(conn, limit=PAGE, after=after)
        ids += [run.id for run in page]
        if len(page) < PAGE:
            return ids
        after = (page[-1].created_at, page[-1].id)


async def _roots(services: Services, run_ids: Sequence[str]) -> Iterable[str]:
    """Return the runs at the top of the trees of these, each once, oldest first. Raises NotFoundError."""
    tops: dict[str, Run] = {}
    async with services.database.read() as conn:
        for run_id in run_ids:
            top = await recovery.root_of(conn, await existing_run(conn, run_id))
            tops[top.id] = top
    return [run.id for run in sorted(tops.values(), key=lambda run: (run.created_at, run.id))]


async def _recover_one(services: Services, run_id: str, *, by: str, dry_run: bool) -> RunReport:
    lost = await find_loss(services, run_id)
    if isinstance(lost, NotLost):
        return RunReport(run_id=run_id, outcome=lost.reason, detail=lost.detail)
    for below in lost.below:
        if await services.gateway.recovery.state_of(below) == "open":
            # If it were started again, its parent would see a child that cannot be started, and close its run.
            why = f"the workflow of {below}, which it waits for, must stop first: a worker does that; then try again"
            return RunReport(run_id=run_id, outcome="stopping", detail=why)
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
        agent = await agents.get(conn, run.agent)
        state = await recovery.turn_state(conn, run)
    if run.status != "running":
        return RunReport(run_id=run_id, outcome="ended", detail=run.status)
    if agent is None:
        why = f"no worker has published the agent {run.agent!r} to this store: start one, then try again"
        return RunReport(run_id=run_id, outcome="not_published", detail=why)
    if dry_run:
        return RunReport(run_id=run_id, outcome="would_recover", step=state.step)
    start, labels = turn_input(services, run, agent, state), await run_labels(services, run)
    if not await services.gateway.recovery.start_again(start, agent.task_queue, labels):
        return RunReport(run_id=run_id, outcome="alive")
    await _log_recovery(services, run, lost, step=state.step, by=by)
    return RunReport(run_id=run_id, outcome="recovered", step=state.step)


async def _log_recovery(services: Services, run: Run, lost: LostRun, *, step: int, by: str) -> None:
    """Record the recovery in the run's log, and in those of its sub-agents' runs, which continue with it.

    If the run ended while its workflow was being started (by an activity of the lost one), the new workflow has nothing to
    do, and is interrupted.
    """
    async with services.database.write() as conn:
        await runs.hold_several(conn, (run.id, *lost.below))
        for run_id in (run.id, *lost.below):
            current = await runs.get(conn, run_id)
            if current is None:
                continue
            at = step if run_id == run.id else (await recovery.turn_state(conn, current)).step
            payload: dict[str, object] = {"by": by, "step": at, "workflow": lost.workflow}
            if run_id != run.id:
                payload["with_run_id"] = run.id
            await events.append(conn, run_id, [("run.recovered", payload)])
        ended = (await existing_run(conn, run.id)).status != "running"
    logger.info("recovered run %s: it continues with step %d", run.id, step, extra={"run_id": run.id})
    if ended:
        services.gateway.tell_changed(run.id)
