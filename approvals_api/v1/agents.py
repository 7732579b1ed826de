"""The published agents, and the models to choose from."""

from __future__ import annotations

from turngate.approvals_api.http.dependencies import NAMES_NO_RUN, RunReaderDep, ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.runs import switch_model
from turngate.approvals_api.runs import views as run_views
from turngate.wire.agents import AgentView, ModelChoice
from turngate.wire.view import Page

router = api_router("agents")


@router.get("/agents", dependencies=[NAMES_NO_RUN])
async def list_agents(services: ServicesDep, _principal: RunReaderDep) -> Page[AgentView]:
    """List the agents.

    All agents that workers have published, by name.
    """
    async with services.database.read() as conn:
        return Page(items=await run_views.agent_list(conn))


@router.get("/models", dependencies=[NAMES_NO_RUN])
async def list_models(services: ServicesDep, _principal: RunReaderDep) -> Page[ModelChoice]:
    """List the models to choose from.

    The profiles of models.toml, and the agents' own models. A run also accepts any `PROVIDER:NAME` of a known provider.
    """
    async with services.database.read() as conn:
        return Page(items=await switch_model.model_choices(conn))
