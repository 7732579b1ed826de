"""Two runs side by side."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from approvals_api.http.dependencies import RunReaderDep, ServicesDep
from approvals_api.pages.frames import frame_of
from approvals_api.pages.templating import render
from approvals_api.runs.compare import compare

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/compare/{other_id}")
async def compare_page(
    request: Request, services: ServicesDep, principal: RunReaderDep, run_id: str, other_id: str
) -> HTMLResponse:
    """Show what two runs share, and where and in what they differ."""
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    found = await compare(services.database, run_id, other_id)
    # A hostile megabyte takes a second to make visible: not on the loop that everybody else waits for.
    return await asyncio.to_thread(render, "compare.html", frame=frame, found=found)
