"""Claims: take a request on, and give it back."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter

from approvals_api.http.dependencies import OperatorDep, ServicesDep
from approvals_api.http.problems import problems
from approvals_api.requests import claim
from approvals_api.v1.bodies import ClaimBody
from approvals_api.v1.parameters import RequestId
from turngate.wire.claims import ClaimView

router = APIRouter(tags=["requests"])


@router.post(
    "/requests/{request_id}/claim",
    responses=problems({409: "`claimed` (names who, and until when) or `request_not_pending`"}),
)
async def claim_request(
    request_id: RequestId, services: ServicesDep, principal: OperatorDep, body: ClaimBody | None = None
) -> ClaimView:
    """Claim a request for a while, or renew one's own claim.

    While it stands nobody else decides the request, unless they take it over. It expires and ends as it would anyway.
    """
    wanted = body or ClaimBody()
    lease = await claim.claim(services, principal, request_id, seconds=wanted.seconds, take_over=wanted.take_over)
    return ClaimView(request_id=request_id, claimed_by=lease.claimed_by, claimed_until=lease.claimed_until)


@router.delete(
    "/requests/{request_id}/claim",
    status_code=HTTPStatus.NO_CONTENT,
    responses=problems({409: "`claimed`: it is somebody else's"}),
)
async def release_request(request_id: RequestId, services: ServicesDep, principal: OperatorDep) -> None:
    """Give a claim back; without one nothing happens."""
    await claim.release(services, principal, request_id)
