"""Interrupting, pausing and resuming a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from approvals_api.lookups import existing_run
from approvals_api.principal import Principal
from approvals_api.runs.lost import is_lost
from approvals_api.runs.ownership import own_run
from approvals_api.services import Services
from approvals_api.validation.text import require_storable
from turngate.domain.contract import InterruptInput, PauseInput, ResumeInput
from turngate.domain.errors import ConflictError, InvalidInputError, UnavailableError
from turngate.store.runs.runs import Run

MAX_REASON_CHARS = 2_000


async def interrupt(services: Services, principal: Principal, run_id: str, *, reason: str = "") -> Run:
    """Tell a run to stop, and return it as it is now; a repeat changes nothing more.

    Raises:
        NotFoundError: no such run.
        ConflictError: ``run_ended``.
        InvalidInputError: the reason is longer than 2,000 characters.
        ForbiddenError: the principal may not stop runs.
        UnavailableError: Temporal is away, or has lost the run's workflow; nothing was changed.
    """
    run = await _live(services, principal, run_id, reason)
    async with _not_lost(services, run_id):
        await services.gateway.interrupt(run_id, InterruptInput(by=principal.name, reason=reason))
    return run


async def pause(services: Services, principal: Principal, run_id: str, *, reason: str = "") -> Run:
    """Tell a run to pause, and return it as it is now; a repeat changes nothing more.

    Running calls finish, and requests can be decided; nothing new starts until :func:`resume`. Its sub-agents are paused, too.
    Raises as :func:`interrupt`.
    """
    run = await _live(services, principal, run_id, reason)
    async with _not_lost(services, run_id):
        await services.gateway.pause(run_id, PauseInput(by=principal.name, reason=reason))
    return run


async def resume(services: Services, principal: Principal, run_id: str) -> Run:
    """Resume a paused run, and return it as it is now; if it is not paused, nothing changes. Raises as :func:`interrupt`."""
    run = await _live(services, principal, run_id, "")
    async with _not_lost(services, run_id):
        await services.gateway.resume(run_id, ResumeInput(by=principal.name))
    return run


async def _live(services: Services, principal: Principal, run_id: str, reason: str) -> Run:
    principal.require("runs:write")
    if len(reason) > MAX_REASON_CHARS:
        message = f"at most {MAX_REASON_CHARS:,} characters, not {len(reason):,}"
        raise InvalidInputError(f"/reason: {message}", errors=[{"pointer": "/reason", "message": message}])
    require_storable(reason, "/reason")
    async with services.database.read() as conn:
        run = await own_run(conn, principal, run_id)
    if run.status != "running":
        raise ConflictError(f"the run has ended already: it is {run.status}", code="run_ended", status=run.status)
    return run


@asynccontextmanager
async def _not_lost(services: Services, run_id: str) -> AsyncIterator[None]:
    """Say what to do about a live run whose workflow is gone, or not there yet, instead of that it has ended."""
    try:
        yield
    except ConflictError:
        if await is_lost(services, run_id):
            raise UnavailableError(
                f"Temporal has lost the workflow of run {run_id}: recover it first (`turngate recover {run_id}`)",
                run_id=run_id,
            ) from None
        async with services.database.read() as conn:
            run = await existing_run(conn, run_id)
        if run.status == "running" and run.step == 0:
            raise UnavailableError("the run has not started yet: try again in a moment", run_id=run_id) from None
        raise
