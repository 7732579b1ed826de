"""Whole results: what a call returned, however little of it the model was shown."""

from __future__ import annotations

from fastapi import APIRouter, Response

from approvals_api.http.dependencies import RunReaderDep, ServicesDep
from approvals_api.runs.results import whole_result
from approvals_api.v1.parameters import RunId, ToolCallId
from turngate.wire.calls import WholeResult

router = APIRouter(tags=["runs"])


# A call's id is the provider's own: it may hold a slash, which ends a plain path parameter.
@router.get("/runs/{run_id}/calls/{tool_call_id:path}/result", response_model=WholeResult)
async def get_result(
    run_id: RunId, tool_call_id: ToolCallId, services: ServicesDep, _principal: RunReaderDep
) -> Response:
    """Show the whole result of a call.

    However little of it the model was shown. 404 with ``no_result_yet`` while the call is open.
    """
    async with services.database.read() as conn:
        stored = await whole_result(conn, run_id, tool_call_id)
    return Response(stored.document.encode(errors="replace"), media_type="application/json")
