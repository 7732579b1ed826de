"""Whole results, page by page and as a file: what a run's page and the model are shown in part."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from approvals_api.http.dependencies import RunReaderDep, ServicesDep
from approvals_api.pages.frames import frame_of
from approvals_api.pages.result_text import page_of, readable
from approvals_api.pages.templating import Frame, render
from approvals_api.runs.results import StoredResult, whole_result

router = APIRouter(include_in_schema=False)

# By query, not by path: a call's id is the provider's own, and browsers take `..` in a path for more than a name.
CallId = Annotated[str, Query(alias="call", max_length=1_000)]


@router.get("/runs/{run_id}/result")
async def result_page(
    request: Request,
    services: ServicesDep,
    principal: RunReaderDep,
    run_id: str,
    call_id: CallId,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> HTMLResponse:
    """Show one page of a whole result."""
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        stored = await whole_result(conn, run_id, call_id)
    return await asyncio.to_thread(_render, frame, stored, offset)


@router.get("/runs/{run_id}/result.txt")
async def result_file(services: ServicesDep, _principal: RunReaderDep, run_id: str, call_id: CallId) -> Response:
    """Send a whole result as a text file: never shown by the browser, whatever it holds."""
    async with services.database.read() as conn:
        stored = await whole_result(conn, run_id, call_id)
    text = await asyncio.to_thread(readable, stored.body)
    headers = {"Content-Disposition": 'attachment; filename="result.txt"', "X-Content-Type-Options": "nosniff"}
    return Response(text.encode(errors="replace"), media_type="text/plain", headers=headers)


def _render(frame: Frame, stored: StoredResult, offset: int) -> HTMLResponse:
    # A whole result may have megabytes: taking it apart is not for the loop that everybody else waits for.
    page = page_of(readable(stored.body), offset)
    return render("result.html", frame=frame, run=stored.run, call=stored.call, result=stored.result, page=page)
