"""Comparisons: two runs side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from approvals_api.http.dependencies import RunReaderDep, ServicesDep
from approvals_api.http.problems import problems
from approvals_api.runs.compare import compare
from approvals_api.v1.parameters import STORABLE, RunId
from turngate.wire.comparison import Comparison

router = APIRouter(tags=["runs"])

OtherId = Annotated[str, Path(description="The other run's id.", max_length=255, pattern=STORABLE)]


@router.get("/runs/{run_id}/comparison/{other_id}", responses=problems({422: "`same_run`: name two different runs"}))
async def compare_runs(run_id: RunId, other_id: OtherId, services: ServicesDep, _principal: RunReaderDep) -> Comparison:
    """Show two runs side by side.

    A run and its fork or retry, or two runs of one task: what past they share, and where and in what they differ.
    """
    return await compare(services.database, run_id, other_id)
