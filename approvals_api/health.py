"""Is the process alive, and can it do its work? Unversioned, unauthenticated, and without details for strangers."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from approvals_api.dependencies import ServicesDep
from approvals_api.problems import problem_response
from turngate.domain.errors import UnavailableError

router = APIRouter(tags=["health"])


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Tell that the process answers."""
    return {"status": "alive"}


@router.get("/readyz")
async def readyz(services: ServicesDep) -> Response:
    """Tell whether store and Temporal answer; 503 names which does not."""
    try:
        await services.feed.last_seq()
        store = True
    except UnavailableError:
        store = False
    temporal = await services.gateway.ready()
    answers = {"store": store, "temporal": temporal}
    if store and temporal:
        return JSONResponse({"status": "ready", **answers})
    away = " and ".join(name for name, there in answers.items() if not there)
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", f"{away} cannot be reached", answers)
