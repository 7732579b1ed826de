"""Revealing the secrets of a call to a person who may decide about it. That they looked is in the log; what they saw is not."""

from __future__ import annotations

from approvals_api.lookups import existing_request
from approvals_api.principal import Principal
from approvals_api.requests.eligibility import require_eligible, starters
from approvals_api.services import Services
from turngate.domain.errors import ForbiddenError
from turngate.store.events import events
from turngate.wire.requests import RevealedSecret


async def reveal(services: Services, principal: Principal, request_id: str) -> list[RevealedSecret]:
    """Return the secrets in a request's arguments, in the order of their marks; none: it has none.

    Args:
        services: the process's services.
        principal: a person who may decide the request, or an admin; a token that belongs to no person may not.
        request_id: the request, pending or ended.

    Raises:
        NotFoundError: no such request.
        ForbiddenError: ``missing_scope``, ``not_eligible`` or ``not_a_person``.
        UnavailableError: the store is away; without the log nothing is revealed.
    """
    principal.require("requests:decide")
    if principal.machine:
        raise ForbiddenError(
            "only a person can have secrets revealed: log in, or use your own token", code="not_a_person"
        )
    async with services.database.read() as conn:
        request = await existing_request(conn, request_id)
        others = await starters(conn, request)
    if principal.role != "admin":
        require_eligible(request, principal, others)
    secrets = request.tool.masked_input(request.input).secrets
    if secrets:
        payload = {"request_id": request.id, "by": principal.name, "secrets": len(secrets)}
        async with services.database.write() as conn:
            await events.append(conn, request.run_id, [("request.revealed", payload)])
    return [RevealedSecret(pointer=each.pointer, value=each.raw) for each in secrets]
