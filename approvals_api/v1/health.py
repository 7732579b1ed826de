"""Health: what is wrong with an installation, and how to fix it. For people and their tokens; probes use /readyz."""

from __future__ import annotations

from fastapi import Request

from turngate.approvals_api import health
from turngate.approvals_api.http.dependencies import ReaderDep, ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.wire.health import HealthView

router = api_router("health")


@router.get("/health")
async def get_health(request: Request, services: ServicesDep, _principal: ReaderDep) -> HealthView:
    """Check the store, Temporal, the workers and what waits, and say how to fix what is wrong.

    The answer is 200 whatever the state is: read `state`. It takes up to some seconds when something is away.
    """
    return await health.examine(services, draining=request.app.state.draining)
