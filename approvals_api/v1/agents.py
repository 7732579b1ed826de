"""The agents there are."""

from __future__ import annotations

from fastapi import APIRouter

from approvals_api import run_views
from approvals_api.dependencies import RunReaderDep, ServicesDep
from turngate.wire.agents import AgentView
from turngate.wire.view import Page

router = APIRouter(tags=["agents"])


@router.get("/agents")
async def list_agents(services: ServicesDep, _principal: RunReaderDep) -> Page[AgentView]:
    """List the agents.

    Those that workers have published, by name.
    """
    async with services.database.read() as conn:
        return Page(items=await run_views.agent_list(conn))
