"""Activities ``climb_ladder`` and ``record_expiry``: what happens to a request that has no answer yet."""

from __future__ import annotations

from typing import Final

from temporalio import activity

from turngate.activities.engine.engine import Engine
from turngate.domain import contract
from turngate.domain.contract import ClimbLadderInput, RecordExpiryInput, RecordExpiryResult
from turngate.domain.tools import results
from turngate.store.clock import as_text, from_text
from turngate.store.events import events
from turngate.store.events.row_digests import text_digest
from turngate.store.requests import requests
from turngate.store.runs import calls

CLIMBED: Final = {"remind": "request.reminded", "escalate": "request.escalated", "delegate": "request.delegated"}


class Escalation:
    """Writes that time has passed for a request: it climbs its ladder, is parked, or expires."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.CLIMB_LADDER)
    async def climb_ladder(self, order: ClimbLadderInput) -> None:
        """Write that a request has climbed to this rung, with who may decide it now. Safe to repeat.

        Rungs below that are not written yet, because the store was away, are written first. What the request's terms and the
        store's clock say counts, not the order: it can only be late (I13). Raises LookupError, retryable, when another attempt or
        a decision came in between, and ApplicationError, to be retried when the rung is due.
        """
        async with self._engine.database.write() as conn:
            seen = await requests.as_opened(conn, order.request_id)
            if seen is None or seen.changed is not None:  # no one is shown it, and its terms aren't the rule's
                return
            request = seen.request
            if request.run_id != order.run_id or request.status != "pending":
                return
            due_at = request.rung_at(order.rung)
            if due_at is None or request.rungs_climbed > order.rung:
                return
            self._engine.require_due("the rung", due_at)
            terms, written, climbed = request.ask_terms, request.terms, []
            payload = {"request_id": request.id, "tool_call_id": request.tool_call_id, "tool": request.tool_name}
            missing = terms.ladder[request.rungs_climbed : order.rung + 1]
            for number, rung in enumerate(missing, request.rungs_climbed + 1):
                terms = terms.climbed(rung)
                to = {"rung": number, "roles": rung.roles, "people": rung.people}
                written = terms.model_dump_json(exclude_defaults=True)
                climbed.append((CLIMBED[rung.do], {**payload, **to, "terms": text_digest(written, request.nonce)}))
            if not await requests.climb(conn, request, rungs=order.rung + 1, terms=written):
                raise LookupError(f"request {request.id!r} moved on while it climbed; looking again")
            await events.append(conn, order.run_id, climbed)

    @activity.defn(name=contract.RECORD_EXPIRY)
    async def record_expiry(self, order: RecordExpiryInput) -> RecordExpiryResult:
        """End a request that was not answered in time, and its call; or park it, as its terms say. Safe to repeat.

        One that has ended already stays as it is, as does one that never expires. Raises ApplicationError, to be retried then,
        while the store's clock says that there is time left.
        """
        async with self._engine.database.write() as conn:
            request = await requests.get(conn, order.request_id)
            if request is None or request.run_id != order.run_id:
                raise LookupError(f"run {order.run_id!r} has no request {order.request_id!r}")
            if request.expires_at is None:
                return RecordExpiryResult(status=request.status)
            self._engine.require_due("the expiry", from_text(request.expires_at))
            at = self._engine.clock()
            if request.ask_terms.on_expiry == "park":
                if await requests.park(conn, request, at=at):
                    parked = {"request_id": request.id, "at": as_text(at)}
                    await events.append(conn, order.run_id, [("request.parked", parked)])
            elif await requests.settle(conn, request.id, requests.Ending(status="expired", at=at)):
                digest = await calls.settle(
                    conn, order.run_id, request.tool_call_id, results.expired(), nonce=request.nonce
                )
                payload = {"request_id": request.id, "at": as_text(at)}
                payload |= events.digests(result={request.tool_call_id: digest})
                await events.append(conn, order.run_id, [("request.expired", payload)])
                return RecordExpiryResult(status="expired")
            current = await requests.get(conn, request.id)
        return RecordExpiryResult(status=request.status if current is None else current.status)
