"""Stopping a run. Used by the JSON API and the pages."""

from __future__ import annotations

from approvals_api.answer_check import require_storable
from approvals_api.principals import Principal
from approvals_api.run_views import existing_run
from approvals_api.services import Services
from turngate.domain.contract import InterruptInput
from turngate.domain.errors import ConflictError, InvalidInputError
from turngate.store.runs import Run

MAX_REASON_CHARS = 2_000


async def interrupt(services: Services, principal: Principal, run_id: str, *, reason: str = "") -> Run:
    """Tell a run to stop, and return it as it is now; a repeat changes nothing more.

    Raises:
        NotFoundError: no such run.
        ConflictError: ``run_ended``.
        InvalidInputError: the reason is longer than 2,000 characters.
        ForbiddenError: the principal may not stop runs.
        UnavailableError: Temporal is away; nothing was changed.
    """
    principal.require("runs:write")
    if len(reason) > MAX_REASON_CHARS:
        message = f"at most {MAX_REASON_CHARS:,} characters, not {len(reason):,}"
        raise InvalidInputError(f"/reason: {message}", errors=[{"pointer": "/reason", "message": message}])
    require_storable(reason, "/reason")
    async with services.database.read() as conn:
        run = await existing_run(conn, run_id)
    if run.status != "running":
        raise ConflictError(f"the run has ended already: it is {run.status}", code="run_ended", status=run.status)
    await services.gateway.interrupt(run_id, InterruptInput(by=principal.name, reason=reason))
    return run
