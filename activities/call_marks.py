"""Writing down what becomes of a call at the door: started, or settled without running."""

from __future__ import annotations

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


async def tell_started(
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    *,
    attempt: int,
    decision_id: str | None,
    signal: str | None = None,
) -> None:
    """Append the event of a handler's start, or of a signal's."""
    told = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "attempt": attempt, "decision_id": decision_id}
    if signal is not None:
        told["signal"] = signal
    await events.append(conn, run.id, [("execution.started", told)])
