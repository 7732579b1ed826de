"""Requests: the inbox, and decisions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep
from approvals_api.http.problems import problems
from approvals_api.paging import decode_cursor
from approvals_api.requests import decide, presence
from approvals_api.runs import views as run_views
from approvals_api.v1.bodies import DECISION_EXAMPLES, DecisionBody
from approvals_api.v1.inbox_parameters import InboxFilterDep
from approvals_api.v1.parameters import Cursor, IdempotencyKey, Limit, RequestId
from approvals_api.validation.exact_json import member_text
from turngate.store.requests import requests
from turngate.wire.decisions import DecisionResult
from turngate.wire.requests import RequestCount, RequestDetail, RequestItem
from turngate.wire.view import Page

router = APIRouter(tags=["requests"])


@router.get("/requests")
async def list_requests(
    services: ServicesDep,
    _principal: ReaderDep,
    wanted: InboxFilterDep,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RequestItem]:
    """List requests: pending ones oldest first, ended ones by their end, newest first.

    All conditions hold together. A cursor belongs to the filter whose page gave it.
    """
    after = decode_cursor(cursor)
    async with services.database.read() as conn:
        return await run_views.request_page(conn, wanted, limit=limit, after=after)


@router.get("/requests/count")
async def count_requests(services: ServicesDep, _principal: ReaderDep, wanted: InboxFilterDep) -> RequestCount:
    """Count the requests that the list shows under the same filter."""
    async with services.database.read() as conn:
        return RequestCount(status=wanted.status, count=await requests.count(conn, wanted))


@router.get("/requests/{request_id}")
async def get_request(request_id: RequestId, services: ServicesDep, principal: ReaderDep) -> RequestDetail:
    """Show a request with everything needed to decide it.

    That somebody looked, and when they did for the first time, goes into the audit log.
    """
    async with services.database.read() as conn:
        detail = await run_views.request_detail(conn, request_id)
        look = await presence.first_look(conn, principal, detail)
    await presence.note(services, look)
    return detail


@router.post(
    "/requests/{request_id}/decisions",
    responses={
        202: {"model": DecisionResult, "description": "Recorded; no worker has taken it up yet"},
        **problems(
            {
                409: "`already_decided` (names the winner), `digest_differs` or `idempotency_key_reused`",
                410: "`run_ended`, `request_expired` or `request_superseded`",
            }
        ),
    },
)
async def decide_request(
    request_id: RequestId,
    body: Annotated[DecisionBody, Body(openapi_examples=DECISION_EXAMPLES)],
    services: ServicesDep,
    principal: OperatorDep,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> DecisionResult:
    """Decide a request.

    First wins: a later decision is told who won. The same Idempotency-Key with the same content gets the first answer.
    """
    sent = None if body.args is None else member_text((await request.body()).decode(), "args")
    answer = await decide.submit(
        services,
        principal,
        request_id=request_id,
        verb=body.decision,
        digest=body.digest,
        args=sent,
        message=body.message,
        outcome=body.outcome,
        grant=body.grant,
        decision_id=idempotency_key,
    )
    if answer.recorded_only:
        response.status_code = HTTPStatus.ACCEPTED
    return DecisionResult(request_id=request_id, decision_id=answer.decision_id, status=answer.status)
