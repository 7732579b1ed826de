"""Activities ``note_pause`` and ``supersede_requests``: what people ordered for a live run, written into the store."""

from __future__ import annotations

from temporalio import activity

from activities.engine.engine import Engine
from turngate.domain import contract
from turngate.domain.contract import NotePauseInput, SupersedeRequestsInput
from turngate.domain.tools import results
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, runs


class SteerRun:
    """Writes that a run is held or resumed, and that a newer message supersedes requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.NOTE_PAUSE)
    async def note_pause(self, note: NotePauseInput) -> None:
        """Write that a live run is held, or continues. Safe to repeat."""
        async with self._engine.database.write() as conn:
            if note.paused:
                changed = await runs.pause(conn, note.run_id, by=note.by, reason=note.reason, at=note.at)
                event = ("run.paused", {"by": note.by, "reason": note.reason})
            else:
                changed = await runs.resume(conn, note.run_id)
                event = ("run.resumed", {"by": note.by})
            if changed:
                await events.append(conn, note.run_id, [event])

    @activity.defn(name=contract.SUPERSEDE_REQUESTS)
    async def supersede_requests(self, order: SupersedeRequestsInput) -> None:
        """Close requests and their calls, because a newer message came. Safe to repeat; what has ended stays as it is."""
        async with self._engine.database.write() as conn:
            for request_id in order.request_ids:
                request = await requests.get(conn, request_id)
                if request is None or not await requests.settle(
                    conn, request_id, requests.Ending(status="superseded", at=order.at)
                ):
                    continue
                await calls.settle(conn, order.run_id, request.tool_call_id, results.superseded(order.by))
                payload = {"request_id": request_id, "tool_call_id": request.tool_call_id, "by": order.by}
                await events.append(conn, order.run_id, [("request.superseded", payload)])
