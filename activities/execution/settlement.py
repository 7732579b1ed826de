"""Writing down what becomes of a call at the door: started, settled with a result, or settled without running."""

from __future__ import annotations

from dataclasses import dataclass

from activities.engine.engine import Engine
from activities.execution.large_results import shown_to_model
from activities.execution.redemption import AlreadySettled
from turngate.domain.runs.requests import ExecutionState
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import calls, runs, whole_results


async def refuse(conn: Connection, run: runs.Run, call: calls.Call, failure: Failure) -> AlreadySettled:
    """Settle the call with a failure in place of running it."""
    await calls.settle(conn, run.id, call.tool_call_id, failure)
    told = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "kind": failure.kind}
    await events.append(conn, run.id, [("call.closed", told)])
    return AlreadySettled()


async def settle_with(
    engine: Engine, conn: Connection, run: runs.Run, call: calls.Call, result: Ok | Failure, *, by: str | None = None
) -> AlreadySettled:
    """Settle the call with a result that no handler of this attempt returned; the caller ends its execution.

    ``by``: who brought it (``probe``, ``report``); None: the engine itself made it.
    """
    shown, whole = shown_to_model(engine, run, result)
    digest = None if whole is None else await whole_results.keep(conn, whole)
    await calls.settle(conn, run.id, call.tool_call_id, shown, whole_result=digest)
    told = ended_facts(call.tool_call_id, call.tool_name, result)
    if by is not None:
        told["by"] = by
    await events.append(conn, run.id, [("execution.finished", told)])
    return AlreadySettled()


def ended_facts(tool_call_id: str, tool_name: str, result: Ok | Failure) -> dict[str, object]:
    """Return what the event of an execution's end says of it: which call, and in a word what came of it."""
    told: dict[str, object] = {"tool_call_id": tool_call_id, "tool": tool_name, "ok": isinstance(result, Ok)}
    return told | {"kind": result.kind} if isinstance(result, Failure) else told


def ended_state(result: Ok | Failure) -> ExecutionState:
    """Return how an execution ended that gave this result."""
    return "succeeded" if isinstance(result, Ok) else "failed"


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
