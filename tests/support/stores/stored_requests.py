"""Runs and requests for tests that need them in the store without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turngate.domain.conversation.messages import user_message
from turngate.domain.requests import RequestKind
from turngate.domain.runs.inbox import urgent_at
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.evidence import opening_event
from turngate.store.requests import requests
from turngate.store.runs import messages, new_run, runs

AT = now()


def request_row(run: runs.Run, request_id: str, *, kind: RequestKind = "approval", **changes: Any) -> requests.Request:
    defaults: dict[str, Any] = {
        "id": request_id,
        "run_id": run.id,
        "tool_call_id": f"call of {request_id}",
        "kind": kind,
        "status": "pending",
        "agent": "agent",
        "tool_name": "pay",
        "manifest": "{}",
        "input": '{ "cents" : 1.0 }',
        "digest": "d",
        "rule": "default",
        "reason": "why",
        "risk": "low",
        "agent_words": "I will pay.",
        "preview_kind": None,
        "preview": None,
        "not_by": None,
        "expires_at": None,
        "created_at": as_text(AT),
    }
    row = {**defaults, **changes}
    expires_at = None if row["expires_at"] is None else from_text(row["expires_at"])
    urgent = urgent_at(from_text(row["created_at"]), expires_at, row["risk"])
    return requests.Request(**{"urgent_at": as_text(urgent), **row})


async def open_requests(conn: Connection, opened: Sequence[requests.Request]) -> None:
    """Insert requests of one run; those that wait with the event of their opening, as planning does."""
    await requests.insert_all(conn, opened)
    waiting = [each for each in opened if each.status == "pending"]
    if waiting:
        await events.append(conn, waiting[0].run_id, [opening_event(each) for each in waiting])


async def live_run(
    conn: Connection,
    run_id: str,
    *,
    conversation_id: str | None = None,
    after: str | None = None,
    task: str = "go",
    logged: bool = False,
    **more: Any,
) -> runs.Run:
    """Insert a live run with its input message, in a conversation of its own unless one is named.

    ``after``: the message that its input follows. ``logged``: with its first event, too, as Turngate opens a run.
    ``more``: fields of :class:`new_run.NewRun`.
    """
    if conversation_id is None:
        conversation_id = f"conv_{run_id}"
        await messages.create_conversation(conn, conversation_id)
    usual: dict[str, Any] = {"agent": "agent", "agent_version": "v1", "model": "scripted:test", "started_by": "starter"}
    place = {"conversation_id": conversation_id, "input_message_id": f"msg_{run_id}"}
    new = new_run.NewRun(id=run_id, task=task, **place, **{**usual, **more})
    message = new.input_after(after, user_message(task))
    if logged:
        return await new_run.open_run(conn, new, message, details={})
    await messages.append(conn, message)
    await new_run.insert_run(conn, new)
    run = await runs.get(conn, run_id)
    assert run is not None
    return run
