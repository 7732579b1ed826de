"""Is the process alive, and can it do its work? Unversioned, unauthenticated, and without details for strangers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from approvals_api.http.dependencies import ServicesDep
from approvals_api.http.problems import problem_response, problems
from turngate.domain.errors import UnavailableError

router = APIRouter(tags=["health"])


class Liveness(BaseModel):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Readiness(BaseModel):
    """What Turngate stands on answers, too."""

    status: Literal["ready"] = "ready"
    store: bool
    temporal: bool


@router.get("/livez")
async def livez() -> Liveness:
    """Tell that the process answers."""
    return Liveness()


@router.get(
    "/readyz",
    response_model=Readiness,
    responses=problems({503: "`unavailable`: `store` or `temporal` is false, and cannot be reached"}),
)
async def readyz(services: ServicesDep) -> Response:
    """Tell whether store and Temporal answer."""
    try:
        await services.feed.last_seq()
        store = True
    except UnavailableError:
        store = False
    temporal = await services.gateway.ready()
    answers = {"store": store, "temporal": temporal}
    if store and temporal:
        return JSONResponse(Readiness(store=store, temporal=temporal).model_dump())
    away = " and ".join(name for name, there in answers.items() if not there)
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", f"{away} cannot be reached", answers)
