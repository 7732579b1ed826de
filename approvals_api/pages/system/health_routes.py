"""The page Health: what is wrong with this installation, and how to fix it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from turngate.approvals_api import health
from turngate.approvals_api.http.dependencies import ReaderUnlessAwayDep, ServicesDep
from turngate.approvals_api.pages.frames import frame_of
from turngate.approvals_api.pages.templating import Frame, render

router = APIRouter(include_in_schema=False)


@router.get("/health")
async def health_page(request: Request, services: ServicesDep, principal: ReaderUnlessAwayDep) -> HTMLResponse:
    """Show every check, what is wrong first. While the store is away, no one can be logged in: only what /readyz says."""
    if principal is None:
        return render("health.html", frame=Frame(), health=await health.reached(services), is_whole=False)
    view = await health.examine(services, draining=request.app.state.draining)
    async with services.database.glance() as conn:
        frame = await frame_of(conn, request, principal)
    return render("health.html", frame=frame, health=view, is_whole=True)
