"""Explanations: why a run failed, what a live one waits for, and which live ones stand still."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from approvals_api.http.dependencies import RunReaderDep, ServicesDep
from approvals_api.paging import decode_cursor
from approvals_api.runs import explain, stalled
from approvals_api.v1.parameters import Cursor, Limit, RunId
from turngate.wire.explanation import Explanation, StuckRun
from turngate.wire.view import Page

router = APIRouter(tags=["runs"])

StillFor = Annotated[
    int,
    Query(
        ge=0, le=31_536_000, description="How long a person, a tool or a model may take before the run counts as stuck."
    ),
]


@router.get("/runs/{run_id}/explanation")
async def explain_run(run_id: RunId, services: ServicesDep, _principal: RunReaderDep) -> Explanation:
    """Explain a run: why it failed or what it waits for.

    With the calls, decisions and attempts around it, and what to do next.
    """
    return await explain.explain(services, run_id)


@router.get("/stuck-runs")
async def list_stuck_runs(
    services: ServicesDep,
    _principal: RunReaderDep,
    cursor: Cursor = None,
    limit: Limit = 50,
    still_for_seconds: StillFor = 60,
) -> Page[StuckRun]:
    """List the live runs that stand still, newest first, each with its reason.

    A page looks at `limit` live runs, and shows those of them that stand still: it may be empty and not the last.
    """
    before = decode_cursor(cursor)
    still_for = timedelta(seconds=still_for_seconds)
    return await stalled.stuck_page(services, limit=limit, before=before, still_for=still_for)
