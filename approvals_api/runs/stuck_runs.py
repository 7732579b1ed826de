"""The live runs that stand still, each with its reason. Reads the store, and looks at the workflows; changes nothing."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Final, assert_never

from approvals_api.paging import one_page
from approvals_api.runs import views as run_views
from approvals_api.runs.call_views import call_view
from approvals_api.runs.stalled import standing_still
from approvals_api.services import Services
from turngate.domain.runs.inbox import InboxFilter
from turngate.store.clock import from_text, now
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import ListedRequest
from turngate.store.runs import calls, executions, runs
from turngate.store.runs.runs import Run
from turngate.wire.calls import CallView
from turngate.wire.explanation import Standstill, StuckRun
from turngate.wire.view import Page

LOOKED_AT_ONCE: Final = 8
"""How many workflows are asked about at a time."""
PENDING_SHOWN: Final = 128


async def stuck_page(
    services: Services, *, limit: int, before: tuple[str, str] | None, still_for: timedelta
) -> Page[StuckRun]:
    """Look at one page of live runs, newest first, and return those that stand still; often fewer than ``limit``.

    ``still_for``: how long a person, a tool or a model may take before it counts.
    """
    async with services.database.read() as conn:
        found = await runs.page(conn, limit=limit + 1, before=before, status="running")
        shown, more = one_page(found, limit)
        known = [(run, *await _of(conn, run)) for run in shown]
    places = asyncio.Semaphore(LOOKED_AT_ONCE)

    async def reason(run: Run, made: list[CallView], pending: dict[str, ListedRequest]) -> Standstill | None:
        async with places:
            look = await services.gateway.look(run.id)
        at = now()
        waits_for = standing_still(run_views.run_summary(run), made, pending, look, now=at)
        return next((each for each in waits_for[:1] if stands_still(each, at, still_for)), None)

    reasons = await asyncio.gather(*(reason(*each) for each in known))
    items = [
        StuckRun(run=run_views.run_summary(run), waits_for=why)
        for run, why in zip(shown, reasons, strict=True)
        if why is not None
    ]
    if any(each.waits_for.kind == "workflow_gone" for each in items):
        items = await _still_live(services, items)
    return Page(items=items, next_cursor=more)


def stands_still(waits_for: Standstill, at: datetime, still_for: timedelta) -> bool:
    """Tell whether a run that waits for this counts as one that stands still. Pure.

    A timer comes by itself, and a sub-agent's run stands in the list by its own reason.
    """
    match waits_for.kind:
        case "paused" | "no_worker" | "workflow_gone" | "temporal_away" | "model_retrying":
            return True
        case "person" | "tool" | "model":
            return waits_for.since is not None and at - from_text(waits_for.since) >= still_for
        case "timer" | "sub_agent":
            return False
        case _:
            assert_never(waits_for.kind)


async def _of(conn: Connection, run: Run) -> tuple[list[CallView], dict[str, ListedRequest]]:
    """Return the open calls of the run's newest step, and the pending request of each that has one."""
    made = [call for call in await calls.of_step(conn, run.id, run.step) if call.result is None]
    if not made:
        return [], {}
    pending = await requests.page(conn, InboxFilter(run_id=run.id), limit=PENDING_SHOWN)
    views = [call_view(call, (), await executions.get(conn, run.id, call.tool_call_id)) for call in made]
    return views, {each.tool_call_id: each for each in pending}


async def _still_live(services: Services, items: list[StuckRun]) -> list[StuckRun]:
    """Leave out the runs that have ended between the two looks: their workflows are rightly gone."""
    async with services.database.read() as conn:
        now_there = [await runs.get(conn, each.run.id) for each in items]
    return [each for each, run in zip(items, now_there, strict=True) if run is not None and run.status == "running"]
