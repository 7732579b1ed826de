"""The order to stop, given to a run and those below it in one transaction: by a person, or because the run above ended."""

from __future__ import annotations

from collections.abc import Sequence

from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import runs


async def interrupt(conn: Connection, run_ids: Sequence[str], *, by: str, reason: str) -> None:
    """Order live runs to stop, and end what waits for a person in them. Safe to repeat: the first order counts.

    ``run_ids``: the lowest first. Requests are locked before runs, and a run after those below it, as at a run's end.
    """
    at = now()
    cancelled = {run_id: await requests.cancel_pending(conn, run_id, at=at) for run_id in reversed(run_ids)}
    await runs.hold_several(conn, run_ids)
    for run_id in run_ids:
        new: list[events.NewEvent] = []
        if await runs.interrupt(conn, run_id, by=by, reason=reason, at=at):
            new.append(("run.interrupted", {"by": by, "reason": reason}))
        new += [("request.cancelled", {"request_id": each, "by": by, "at": as_text(at)}) for each in cancelled[run_id]]
        if new:
            await events.append(conn, run_id, new)
