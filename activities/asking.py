"""Asking a person: the inbox request for a call, first and again, and the call as the workflow waits for it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.author_code import heard
from activities.engine import Engine
from turngate.domain.agents import Agent
from turngate.domain.contract import PlannedCall
from turngate.domain.digest import derived_id
from turngate.domain.policy import Verdict
from turngate.domain.previews import Preview
from turngate.domain.requests import RequestKind
from turngate.domain.tools import Tool
from turngate.store import calls, events, requests, runs
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.requests import Request

PREVIEW_SECONDS = 10.0
MAX_SHOWN_PRECONDITION = 300


def request_id_of(run_id: str, tool_call_id: str, kind: RequestKind) -> str:
    """Return the id of the first request for this call; a retry derives the same one."""
    return derived_id("rq", run_id, tool_call_id, kind)


def new_request(
    run: runs.Run,
    agent: Agent,
    call: calls.Call,
    tool: Tool,
    verdict: Verdict,
    *,
    request_id: str,
    kind: RequestKind,
    raw_input: str,
    digest: str,
    reason: str,
    agent_words: str,
    preview: Preview | None,
    precondition: str | None,
) -> Request:
    """Return a pending request, made now."""
    created_at = now()
    seconds = expiry_seconds(verdict, agent)
    return Request(
        id=request_id,
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        kind=kind,
        status="pending",
        agent=agent.name,
        tool_name=tool.name,
        manifest=tool.manifest.model_dump_json(),
        input=raw_input,
        digest=digest,
        rule=verdict.rule,
        reason=reason,
        risk=verdict.risk,
        agent_words=agent_words,
        preview_kind=preview.kind if preview else None,
        preview=preview.text if preview else None,
        not_by=None if verdict.starter_may_decide else run.started_by,
        expires_at=None if seconds is None else as_text(created_at + timedelta(seconds=seconds)),
        created_at=as_text(created_at),
        path=run.path,
        precondition=precondition,
    )


def planned_call(agent: Agent, call: calls.Call, tool: Tool, verdict: Verdict, request: Request | None) -> PlannedCall:
    """Return the call as the workflow settles it: at once, or once its request is answered."""
    planned = PlannedCall(
        call=call.tool_call_id, timeout_seconds=int(tool.timeout.total_seconds()), queue=tool.task_queue
    )
    if request is None:
        return planned
    return planned.model_copy(
        update={
            "request_id": request.id,
            "kind": request.kind,
            "digest": request.digest,
            "expires_after_seconds": expiry_seconds(verdict, agent),
            "not_by": request.not_by,
        }
    )


async def ask_again(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool,
    approved: Request,
    *,
    digest: str,
    precondition: str | None,
    preview: Preview | None,
) -> PlannedCall:
    """Open another request for a call whose world has changed since it was approved; the approval is not redeemed.

    Safe to repeat: the same approval leads to the same request.
    """
    agent = engine.agent(run.agent)
    verdict = Verdict.model_validate_json(call.verdict)
    request = new_request(
        run,
        agent,
        call,
        tool,
        verdict,
        request_id=again_id(approved),
        kind="approval",
        raw_input=call.running_input,
        digest=digest,
        reason=f"{approved.decided_by} approved this, but what it depends on changed before it could run: "
        f"it was {_shown(approved.precondition)}, and is now {_shown(precondition)}.",
        agent_words=approved.agent_words,
        preview=preview,
        precondition=precondition,
    )
    await requests.insert_all(conn, [request])
    opened = {"request_id": request.id, "tool_call_id": call.tool_call_id, "tool": tool.name, "kind": request.kind}
    await events.append(conn, run.id, [("request.opened", {**opened, "instead_of": approved.id})])
    return planned_call(agent, call, tool, verdict, request)


async def asked_again(
    engine: Engine, conn: Connection, run: runs.Run, call: calls.Call, tool: Tool, approved: Request
) -> PlannedCall | None:
    """Return the call with the request that took the place of this approval, if there is one already.

    From then on only that one counts, also when the world has changed back: an operator has it on their screen.
    """
    request = None if approved.precondition is None else await requests.get(conn, again_id(approved))
    if request is None:
        return None
    return planned_call(engine.agent(run.agent), call, tool, Verdict.model_validate_json(call.verdict), request)


def again_id(approved: Request) -> str:
    """Return the id of the request that takes the place of an approval."""
    return derived_id("rq", approved.run_id, approved.tool_call_id, "again", approved.id)


def _shown(precondition: str | None) -> str:
    text = "nothing" if precondition is None else precondition
    return text if len(text) <= MAX_SHOWN_PRECONDITION else f"{text[:MAX_SHOWN_PRECONDITION]}…"


def expiry_seconds(verdict: Verdict, agent: Agent) -> int | None:
    """Return how long a request waits for an answer; None: for ever."""
    if verdict.expires_after_seconds is not None:
        return verdict.expires_after_seconds
    limit = agent.limits.request_expiry
    return None if limit is None else int(limit.total_seconds())


async def previewed(tool: Tool, params: Any, workspace: str | None) -> Preview | None:
    """Return what the tool says will change; a preview that fails or hangs says so and never holds up the inbox."""
    if tool.preview is None:
        return None
    try:
        preview = asyncio.to_thread(tool.preview, params, None if workspace is None else Path(workspace))
        return await heard(preview, seconds=PREVIEW_SECONDS)
    except Exception as error:  # noqa: BLE001 - the tool author's code; the operator still sees the exact arguments
        return Preview(kind="text", text=f"No preview: {type(error).__name__}: {error}")
