"""Rebuilding one request of the inbox from what its run's workflow says. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from approvals_api.recovery.redelivery import redeliver
from approvals_api.services import Services
from turngate.domain.runs.turn_state import Gate
from turngate.domain.tools import results
from turngate.domain.tools.results import Failure
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, recovery, steps

if TYPE_CHECKING:
    from approvals_api.recovery.reconcile import Difference


async def mend(services: Services, run_id: str, difference: Difference, *, by: str) -> bool:
    """Bring the inbox to what the workflow says of one request; False when that would take a person.

    Raises UnavailableError when Temporal or the store is away.
    """
    gate = difference.gate
    if difference.kind == "closed_in_inbox" and difference.stored in {"approved", "rejected", "responded"}:
        return await redeliver(services, difference.request_id)  # the store has a decision that its run never heard of
    async with services.database.write() as conn:
        request = await requests.get(conn, difference.request_id)
        if request is None or request.status != difference.stored:
            return False
        if difference.kind == "closed_in_inbox":
            mended = await _reopened(conn, request)
        elif gate is None:
            mended = await _withdrawn(conn, request)
        else:
            mended = await _closed(conn, request, gate)
        if mended:
            after = await requests.get(conn, request.id)
            status = request.status if after is None else after.status
            told = {"request_id": request.id, "from_status": request.status, "status": status, "by": by}
            await events.append(conn, run_id, [("request.rebuilt", told)])
    return mended


async def _reopened(conn: Connection, request: Request) -> bool:
    """Show a request again that its run waits for; not one whose call has its result, which nobody could change."""
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    if call is None or call.result is not None:
        return False
    return await recovery.reopen_request(conn, request.id)


async def _withdrawn(conn: Connection, request: Request) -> bool:
    """Take away a request that nobody waits for: its call has its result, or its step is closed.

    Else the run may be about to hear of it: the worker that opened it has been lost, say, and another is yet to come.
    """
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    step = None if call is None else await steps.get(conn, request.run_id, call.step)
    settled = call is not None and call.result is not None
    if not settled and (step is None or step.closed_at is None):
        return False
    return await requests.settle(conn, request.id, status="cancelled", at=now())


async def _closed(conn: Connection, request: Request, gate: Gate) -> bool:
    """Write how a request ended in its run; a decision only where all of its content is in the store."""
    result: Failure | None = None
    if gate.decision_id is None:
        result = {"expired": results.expired()}.get(gate.status)
    elif gate.verb == "reject":
        content = await requests.decision(conn, gate.decision_id)
        result = results.rejected(gate.decided_by or "", "" if content is None else content.message)
    elif gate.verb != "approve":
        call = await calls.get(conn, request.run_id, request.tool_call_id)
        kept = call is not None and (call.edited_input if gate.verb == "edit" else call.result) is not None
        if not kept:
            return False
    decided = {"decision_id": gate.decision_id, "verb": gate.verb, "by": gate.decided_by}
    if not await requests.settle(conn, request.id, status=gate.status, at=now(), **decided):  # type: ignore[arg-type]
        return False
    if result is not None:
        await calls.settle(conn, request.run_id, request.tool_call_id, result)
    return True
