"""Asking a person: the inbox request for a call, first and again, and the call as the workflow waits for it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.engine.author_code import heard
from activities.engine.engine import Engine
from turngate.domain.agents.app import Agent
from turngate.domain.contract import PlannedCall
from turngate.domain.digest import derived_id
from turngate.domain.policy.policy import Verdict
from turngate.domain.policy.terms import PLAIN_TERMS
from turngate.domain.runs.requests import RequestKind
from turngate.domain.text.durations import exact_span, span
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.tool import Tool
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, runs

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
    terms = verdict.terms if kind == "approval" else verdict.terms.model_copy(update={"quorum": 1})
    seconds = expiry_seconds(run, verdict, agent)
    parked = not run.attended and run.unattended_asks == "park"
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
        not_by=None if terms.starter_may_decide else run.started_by,
        expires_at=None if seconds is None else as_text(created_at + timedelta(seconds=seconds)),
        created_at=as_text(created_at),
        path=run.path,
        precondition=precondition,
        terms=terms.model_dump_json(exclude_defaults=True),
        quorum=terms.quorum,
        parked_at=as_text(created_at) if parked else None,
    )


def planned_call(
    run: runs.Run, agent: Agent, call: calls.Call, tool: Tool, verdict: Verdict, request: Request | None
) -> PlannedCall:
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
            "expires_after_seconds": expiry_seconds(run, verdict, agent),
            "not_by": request.not_by,
            "terms": None if request.ask_terms == PLAIN_TERMS else request.ask_terms,
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
    """Open another request for a call whose approval does not count any more; it is not redeemed.

    The world has changed since, or may have: the approval is older than its rule allows, and nothing vouches for it.

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
        reason=_why_again(approved, precondition),
        agent_words=approved.agent_words,
        preview=preview,
        precondition=precondition,
    )
    await requests.insert_all(conn, [request])
    await events.append(conn, run.id, [opened(request, instead_of=approved.id)])
    return planned_call(run, agent, call, tool, verdict, request)


async def ask_after_all(
    engine: Engine,
    conn: Connection,
    run: runs.Run,
    call: calls.Call,
    tool: Tool,
    verdict: Verdict,
    *,
    precondition: str | None,
    preview: Preview | None,
) -> PlannedCall:
    """Open a request for a call that policy allowed when it was planned and does not allow any more.

    The caller found no execution of it, in the transaction that this is part of. From here on it is a call that waits
    for a person, as if it had been asked for at once.
    """
    agent = engine.agent(run.agent)
    was = Verdict.model_validate_json(call.verdict)
    verdict = verdict.model_copy(update={"overruled": was.rule})
    request = new_request(
        run,
        agent,
        call,
        tool,
        verdict,
        request_id=request_id_of(run.id, call.tool_call_id, "approval"),
        kind="approval",
        raw_input=call.input,
        digest=call.digest,
        reason=f"It was allowed by {was.rule!r} when the model asked for it, and is not any more. {verdict.reason}",
        agent_words="",
        preview=preview,
        precondition=precondition,
    )
    await requests.insert_all(conn, [request])
    await calls.set_disposition(conn, run.id, call.tool_call_id, "ask", verdict.model_dump_json(exclude_defaults=True))
    await events.append(conn, run.id, [opened(request)])
    return planned_call(run, agent, call, tool, verdict, request)


async def asked_after_all(
    engine: Engine, conn: Connection, run: runs.Run, call: calls.Call, tool: Tool
) -> PlannedCall | None:
    """Return the call with the request that :func:`ask_after_all` opened, when its answer was lost on the way; or None."""
    verdict = Verdict.model_validate_json(call.verdict)
    if verdict.overruled is None:
        return None
    request = await requests.get(conn, request_id_of(run.id, call.tool_call_id, "approval"))
    return None if request is None else planned_call(run, engine.agent(run.agent), call, tool, verdict, request)


async def asked_again(
    engine: Engine, conn: Connection, run: runs.Run, call: calls.Call, tool: Tool, approved: Request
) -> PlannedCall | None:
    """Return the call with the request that took the place of this approval, if there is one already.

    From then on only that one counts, also when the world has changed back: an operator has it on their screen.
    """
    lasting = approved.precondition is None and approved.ask_terms.fresh_for_seconds is None
    request = None if lasting else await requests.get(conn, again_id(approved))
    if request is None:
        return None
    return planned_call(run, engine.agent(run.agent), call, tool, Verdict.model_validate_json(call.verdict), request)


def is_stale(approved: Request) -> bool:
    """Tell whether an approval is older than the rule it was asked by lets one count.

    Of an approval that several gave, the one that completed them is its age: until then there was nothing to redeem.
    """
    lasts = approved.ask_terms.fresh_for_seconds
    if lasts is None or approved.decided_at is None:
        return False
    return now() - from_text(approved.decided_at) > timedelta(seconds=lasts)


def _why_again(approved: Request, precondition: str | None) -> str:
    said, lasts = f"{approved.decided_by} approved this", approved.ask_terms.fresh_for_seconds
    changed = f"it was {_shown(approved.precondition)}, and is now {_shown(precondition)}."
    if not is_stale(approved) or approved.decided_at is None or lasts is None:
        return f"{said}, but what it depends on changed before it could run: {changed}"
    age = span((now() - from_text(approved.decided_at)).total_seconds())
    said = f"{said} {age} ago, and its rule lets an approval count for {exact_span(lasts)}"
    if approved.precondition is None:
        return f"{said}. Nothing tells whether what it depends on has changed since."
    return f"{said}. What it depends on has changed since: {changed}"


def opened(request: Request, **more: str) -> events.NewEvent:
    """Return the event of a request's opening: what asks, for what, by which rule. ``more``: what else it says."""
    named = {"request_id": request.id, "tool_call_id": request.tool_call_id, "tool": request.tool_name}
    asked = {"kind": request.kind, "rule": request.rule, "digest": request.digest}
    return "request.opened", {**named, **asked, **more}


def again_id(approved: Request) -> str:
    """Return the id of the request that takes the place of an approval."""
    return derived_id("rq", approved.run_id, approved.tool_call_id, "again", approved.id)


def _shown(precondition: str | None) -> str:
    text = "nothing" if precondition is None else precondition
    return text if len(text) <= MAX_SHOWN_PRECONDITION else f"{text[:MAX_SHOWN_PRECONDITION]}…"


def expiry_seconds(run: runs.Run, verdict: Verdict, agent: Agent) -> int | None:
    """Return how long a request waits for an answer; None: for ever, as all do in a run whose questions are parked."""
    if not run.attended and run.unattended_asks == "park":
        return None
    if verdict.terms.expires_after_seconds is not None:
        return verdict.terms.expires_after_seconds
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
