"""Claims: one person has taken a request on, and for a while no one else should decide it."""

from __future__ import annotations

from turngate.approvals_api.lookups import existing_request
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.eligibility import require_eligible, starters_or_newer
from turngate.approvals_api.services import Services
from turngate.domain.errors import ConflictError, NotFoundError
from turngate.domain.text.instants import in_utc
from turngate.store.requests import claims
from turngate.store.requests.claims import DEFAULT_SECONDS, Lease
from turngate.store.requests.requests import Request


def refuse_if_claimed(request: Request, principal: Principal) -> None:
    """Raise ConflictError (code ``claimed``) while someone else holds a claim."""
    lease = claims.live_lease(request)
    if lease is not None and not lease.is_of(principal.name):
        raise _claimed(lease)


async def claim(
    services: Services,
    principal: Principal,
    request_id: str,
    *,
    seconds: int = DEFAULT_SECONDS,
    take_over: bool = False,
) -> Lease:
    """Claim a request, or renew the principal's claim, and return the lease.

    Args:
        services: the process's services.
        principal: who claims; must hold ``requests:decide`` and be one who may decide it.
        request_id: the request.
        seconds: how long the lease lasts, 30 to 3,600; a renewal never shortens it.
        take_over: also while someone else's lease is live. An admin always takes over.

    Raises:
        NotFoundError: no such request.
        ConflictError: ``claimed`` (details name who, and until when), or ``request_not_pending``.
        ForbiddenError: ``missing_scope`` or ``not_eligible``.
    """
    principal.require("requests:decide")
    async with services.database.read() as conn:
        request = await existing_request(conn, request_id)
        others = await starters_or_newer(conn, request)
    require_eligible(request, principal, others)
    async with services.database.write() as conn:
        answer = await claims.claim(
            conn, request_id, by=principal.name, seconds=seconds, take_over=take_over or _is_admin(principal)
        )
    if answer.lease is None:
        raise ConflictError(
            "this request has ended, so there is nothing to claim: reload it to see its answer",
            code="request_not_pending",
        )
    if answer.how is None:
        raise _claimed(answer.lease)
    return answer.lease


async def release(services: Services, principal: Principal, request_id: str) -> None:
    """Release a claim; an admin may release anyone's. Safe to repeat.

    Raises:
        NotFoundError: no such request.
        ConflictError: ``claimed``: someone else holds it.
        ForbiddenError: ``missing_scope``.
    """
    principal.require("requests:decide")
    try:
        async with services.database.write() as conn:
            lease = await claims.release(conn, request_id, by=principal.name, anyones=_is_admin(principal))
    except LookupError:
        raise NotFoundError(f"there is no request {request_id!r}") from None
    if lease is not None:
        raise _claimed(lease)


def _is_admin(principal: Principal) -> bool:
    return principal.role == "admin" or principal.may("admin")


def _claimed(lease: Lease) -> ConflictError:
    return ConflictError(
        f"{lease.claimed_by} has claimed this request until {in_utc(lease.claimed_until)}: take it over, or wait",
        code="claimed",
        claimed_by=lease.claimed_by,
        claimed_until=lease.claimed_until,
    )
