"""Whole results: what a call returned, however little of it the model was shown."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from approvals_api.dependencies import RunReaderDep, ServicesDep
from approvals_api.whole_results import whole_result
from turngate.domain.results import ToolResult

router = APIRouter(tags=["runs"])


class WholeResult(BaseModel):
    """A call's result, as in the run's own view, and always whole."""

    model_config = ConfigDict(frozen=True)

    result: ToolResult


# A call's id is the provider's own: it may hold a slash, which ends a plain path parameter.
@router.get("/runs/{run_id}/calls/{tool_call_id:path}/result", response_model=WholeResult)
async def get_result(run_id: str, tool_call_id: str, services: ServicesDep, _principal: RunReaderDep) -> Response:
    """Return the whole result of a call. 404 while the call is open."""
    async with services.database.read() as conn:
        stored = await whole_result(conn, run_id, tool_call_id)
    return Response(stored.document.encode(errors="replace"), media_type="application/json")
