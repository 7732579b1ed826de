"""Writing down what becomes of a call at the door: started, or settled without running."""

from __future__ import annotations

from dataclasses import dataclass

from activities.redeemed import AlreadySettled
from turngate.domain.results import Failure
from turngate.store import calls, events, runs
from turngate.store.database import Connection


async def refuse(conn: Connection, run: runs.Run, call: calls.Call, failure: Failure) -> AlreadySettled:
    """Settle the call with a failure in place of running it."""
    await calls.settle(conn, run.id, call.tool_call_id, failure)
    told = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "kind": failure.kind}
    await events.append(conn, run.id, [("call.closed", told)])
    return AlreadySettled()


@dataclass(frozen=True, kw_only=True)
class Start:
    """What lets a call start: the decision and who made it, both None when policy allowed it, and the digest it is for."""

    attempt: int
    decision_id: str | None
    by: str | None
    digest: str


async def tell_started(conn: Connection, run: runs.Run, call: calls.Call, start: Start, **more: str) -> None:
    """Append the event of a start: a handler's, a signal's or a sub-agent's. ``more``: what else it says."""
    told = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, **vars(start), **more}
    await events.append(conn, run.id, [("execution.started", told)])
