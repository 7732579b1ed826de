"""Requests: the inbox, and decisions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Request, Response

from approvals_api import decisions, run_views
from approvals_api.cursors import decode_cursor
from approvals_api.dependencies import OperatorDep, ReaderDep, ServicesDep
from approvals_api.exact_json import member_text
from approvals_api.read_models import DecisionResult, Page, RequestCount, RequestDetail, RequestItem
from approvals_api.v1.bodies import Cursor, DecisionBody, IdempotencyKey, Limit
from turngate.domain.requests import RequestStatus
from turngate.store import requests

router = APIRouter(tags=["requests"])


@router.get("/requests")
async def list_requests(
    services: ServicesDep,
    _principal: ReaderDep,
    status: RequestStatus | Literal["all"] = "pending",
    cursor: Cursor = None,
    limit: Limit = 50,
    run_id: str | None = None,
) -> Page[RequestItem]:
    """List requests, oldest first."""
    after = decode_cursor(cursor)
    wanted = None if status == "all" else status
    async with services.database.read() as conn:
        return await run_views.request_page(conn, status=wanted, limit=limit, after=after, run_id=run_id)


@router.get("/requests/count")
async def count_requests(
    services: ServicesDep, _principal: ReaderDep, status: RequestStatus = "pending"
) -> RequestCount:
    """Count requests of one status."""
    async with services.database.read() as conn:
        return RequestCount(status=status, count=await requests.count(conn, status=status))


@router.get("/requests/{request_id}")
async def get_request(request_id: str, services: ServicesDep, _principal: ReaderDep) -> RequestDetail:
    """Show a request with everything needed to decide it."""
    async with services.database.read() as conn:
        return await run_views.request_detail(conn, request_id)


@router.post("/requests/{request_id}/decisions", responses={202: {"model": DecisionResult}})
async def decide(
    request_id: str,
    body: DecisionBody,
    services: ServicesDep,
    principal: OperatorDep,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> DecisionResult:
    """Decide a request. 200: decided. 202: recorded, and no worker has taken it up yet."""
    sent = None if body.args is None else member_text((await request.body()).decode(), "args")
    answer = await decisions.submit(
        services,
        principal,
        request_id=request_id,
        verb=body.decision,
        digest=body.digest,
        args=sent,
        message=body.message,
        outcome=body.outcome,
        decision_id=idempotency_key,
    )
    if answer.recorded_only:
        response.status_code = HTTPStatus.ACCEPTED
    return DecisionResult(request_id=request_id, decision_id=answer.decision_id, status=answer.status)
