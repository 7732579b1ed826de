"""Activities ``climb_ladder`` and ``record_expiry``: what happens to a request that has no answer yet."""

from __future__ import annotations

from typing import Final

from temporalio import activity

from activities.engine.engine import Engine
from turngate.domain import contract
from turngate.domain.contract import ClimbLadderInput, RecordExpiryInput
from turngate.domain.tools import results
from turngate.store.events import events
from turngate.store.evidence import terms_digest
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

        Rungs below that are not written yet, because the store was away, are written first. Raises LookupError, retryable,
        when another attempt or a decision came in between.
        """
        async with self._engine.database.write() as conn:
            request = await requests.get(conn, order.request_id)
            if request is None or request.status != "pending" or request.rungs_climbed > order.rung:
                return
            terms, written, climbed = request.ask_terms, request.terms, []
            payload = {"request_id": request.id, "tool_call_id": request.tool_call_id, "tool": request.tool_name}
            missing = terms.ladder[request.rungs_climbed : order.rung + 1]
            for number, rung in enumerate(missing, request.rungs_climbed + 1):
                terms = terms.climbed(rung)
                to = {"rung": number, "roles": rung.roles, "people": rung.people}
                written = terms.model_dump_json(exclude_defaults=True)
                climbed.append((CLIMBED[rung.do], {**payload, **to, "terms": terms_digest(written)}))
            if not await requests.climb(conn, request, rungs=order.rung + 1, terms=written):
                raise LookupError(f"request {request.id!r} moved on while it climbed; looking again")
            await events.append(conn, order.run_id, climbed)

    @activity.defn(name=contract.RECORD_EXPIRY)
    async def record_expiry(self, order: RecordExpiryInput) -> None:
        """Close a request that was not answered in time, and its call; or park it. Safe to repeat."""
        async with self._engine.database.write() as conn:
            if order.park:
                if await requests.park(conn, order.request_id, at=order.at):
                    await events.append(conn, order.run_id, [("request.parked", {"request_id": order.request_id})])
                return
            if not await requests.settle(conn, order.request_id, requests.Ending(status="expired", at=order.at)):
                return
            request = await requests.get(conn, order.request_id)
            if request is not None:
                await calls.settle(conn, order.run_id, request.tool_call_id, results.expired())
            await events.append(conn, order.run_id, [("request.expired", {"request_id": order.request_id})])
