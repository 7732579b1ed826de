"""Interrupting, pausing and resuming a run: orders in the store. Its workflow and those below it then get a signal.

Nothing starts in a run that is interrupted or paused, whether its workflow knows or not: the door asks the store.
"""

from __future__ import annotations

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.ownership import own_run, run_to_continue
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.text import require_storable
from turngate.domain.errors import ConflictError, InvalidInputError
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import orders, recovery, runs
from turngate.store.runs.runs import Run

MAX_REASON_CHARS = 2_000


async def interrupt(services: Services, principal: Principal, run_id: str, *, reason: str = "") -> Run:
    """Order a run to stop, and return it as it is now; a repeat changes nothing more. What waits for a person ends at once.

    Raises:
        NotFoundError: no such run.
        ConflictError: ``run_ended``.
        InvalidInputError: the reason is longer than 2,000 characters.
        ForbiddenError: the principal may not stop runs.
        UnavailableError: the store is away; nothing was changed.
    """
    _check(principal, reason)
    async with services.database.read() as conn:
        await own_run(conn, principal, run_id)
    return await stop(services, run_id, by=principal.name, reason=Masks().text(reason))


async def stop(services: Services, run_id: str, *, by: str, reason: str) -> Run:
    """Order a run to stop, in the name of ``by``. Raises as :func:`interrupt`."""
    async with services.database.write() as conn:
        members = await _members(conn, run_id)
        await orders.interrupt(conn, members, by=by, reason=reason)
        run = await existing_run(conn, run_id)
    _tell(services, members)
    return run


async def pause(services: Services, principal: Principal, run_id: str, *, reason: str = "") -> Run:
    """Order a run to pause, and return it as it is now; a repeat changes nothing more.

    Running calls finish, and requests can be decided; nothing new starts until :func:`resume`. Its sub-agents are paused, too.
    Raises as :func:`interrupt`.
    """
    _check(principal, reason)
    reason = Masks().text(reason)
    async with services.database.write() as conn:
        await own_run(conn, principal, run_id)
        members = await _members(conn, run_id)
        await runs.hold_several(conn, members)
        for member in members:
            if await runs.pause(conn, member, by=principal.name, reason=reason, at=now()):
                payload = {"by": principal.name, "reason": reason}
                await events.append(conn, member, [("run.paused", payload)])
        run = await existing_run(conn, run_id)
    _tell(services, members)
    return run


async def resume(services: Services, principal: Principal, run_id: str) -> Run:
    """Resume a paused run, and return it as it is now; if it is not paused, nothing changes. Raises as :func:`interrupt`."""
    _check(principal, "")
    async with services.database.write() as conn:
        await run_to_continue(conn, principal, run_id)
        members = await _members(conn, run_id)
        await runs.hold_several(conn, members)
        for member in members:
            if await runs.resume(conn, member):
                await events.append(conn, member, [("run.resumed", {"by": principal.name})])
        run = await existing_run(conn, run_id)
    _tell(services, members)
    return run


async def _members(conn: Connection, run_id: str) -> list[str]:
    """Return the live run and the live ones below it, the lowest first: in this order their ends lock them, too."""
    run = await existing_run(conn, run_id)
    if run.status != "running":
        raise ConflictError(f"the run has ended already: it is {run.status}", code="run_ended", status=run.status)
    below = [each.id for each in await recovery.runs_below(conn, run_id) if each.status == "running"]
    return [*reversed(below), run_id]


def _tell(services: Services, run_ids: list[str]) -> None:
    for run_id in reversed(run_ids):
        services.gateway.tell_changed(run_id)


def _check(principal: Principal, reason: str) -> None:
    principal.require("runs:write")
    if len(reason) > MAX_REASON_CHARS:
        message = f"at most {MAX_REASON_CHARS:,} characters, not {len(reason):,}"
        raise InvalidInputError(f"/reason: {message}", errors=[{"pointer": "/reason", "message": message}])
    require_storable(reason, "/reason")
