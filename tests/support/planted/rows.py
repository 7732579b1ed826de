"""Rows of every table that a page shows: runs, requests and their details. For :mod:`support.planted.pages`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Table, insert
from support.planted.text import LATER, NOW, THEN, Filling

from turngate.domain.likeness import features
from turngate.store import tables
from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.evidence import opening_event
from turngate.store.requests import precedents, requests

OPERATOR = "ada"
RUNS = {
    **{status: status for status in ("running", "completed", "failed", "interrupted")},
    "asking": "running",
    "brief": "running",
    "replay": "completed",
    "retrying": "running",
    "outside": "running",
}
"""Run → status. ``asking`` has the calls of requests with a whole conversation, ``brief`` those of the others; ``replay`` is a
dry run of ``completed``; ``retrying`` waits for a model that failed; ``outside`` is the run of an external call."""
ENDED = {"decided_by": None, "decided_at": THEN}


def _requests(filling: Filling) -> dict[str, dict[str, Any]]:
    """The requests by id: what differs from a pending approval."""
    answer = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    question = {"question": filling.in_json, "choices": [filling.in_json, "b"]}
    by = {"decided_by": filling.text, "decided_at": THEN}
    return {
        "approval": {"risk": "high", "preview_kind": "text", "preview": filling.text, "not_by": filling.text},
        "diff": {"preview_kind": "diff", "preview": filling.diff, "terms": filling.terms(quorum=2), "quorum": 2},
        "command": {"risk": "high", "preview_kind": "command", "preview": json.dumps(["echo", filling.in_json, ""])},
        "raw": {"input": filling.text, "terms": "{}"},
        "barred": {"not_by": OPERATOR},
        "claimed": {"claimed_by": filling.text, "claimed_until": LATER, "parked_at": THEN, "expires_at": None},
        "question": {
            "kind": "question", "input": json.dumps(question), "manifest": filling.manifest_of(answer, "interaction"),
        },
        "outcome": {"kind": "outcome", "risk": "high", "lost_start": filling.lost_start},
        "approved": {"status": "approved", "verb": "approve", "decision_id": "approved", **by},
        "edited": {"status": "approved", "verb": "edit", "decision_id": "edited", **by},
        "rejected": {"status": "rejected", "verb": "reject", "decision_id": "rejected", **by},
        "responded": {"kind": "question", "status": "responded", "verb": "respond", "decision_id": "responded", **by},
        "resolved": {"kind": "outcome", "status": "responded", "verb": "respond", "decision_id": "resolved", **by},
        "expired": {"status": "expired", **ENDED},
        "cancelled": {"status": "cancelled", **ENDED},
        "superseded": {"status": "superseded", **ENDED},
        "again": {"tool_call_id": "call_approved", "precondition": json.dumps([filling.in_json, "now"]),
                  "terms": filling.terms(fresh_for_seconds=3600, grantable=True), "confinement": None, "created_at": LATER},
        "outside": {"run_id": "run_outside", "agent": filling.outside, "path": "",
                    "manifest": filling.manifest_of(filling.schema, "external")},
    }  # fmt: skip


Put = Callable[..., Awaitable[None]]
"""``(table, **columns)``: write a row, its other columns filled."""


async def plant(conn: Connection, filling: Filling) -> None:
    """Insert the rows."""

    async def put(table: Table, **columns: Any) -> None:
        await conn.execute(insert(table).values(**filling.row(table, **columns)))

    for name in (filling.text, "second"):
        await put(tables.agents, name=name)
    await put(tables.worlds)
    for run in RUNS:
        await _put_run(put, filling, run)
    for name, differs in _requests(filling).items():
        about_arguments = name in {"approval", "outcome", "edited"}
        await _put_request(conn, put, filling, name, {**({} if about_arguments else filling.brief), **differs})
    for seq, name in enumerate(("approved", "edited", "rejected"), 1):
        await _put_precedent(conn, seq, f"rq_{name}")
    await put(tables.users, name=OPERATOR, role="admin", password_hash="none that fits")
    await put(tables.sessions, operator=OPERATOR, via="link", user_agent=filling.text, last_seen_at=THEN)
    await put(tables.grants, id="gr_1", request_id="rq_approved", uses=0)
    await put(tables.grants, id="gr_2", request_id=None, revoked_at=THEN, revoked_by=filling.text)
    await put(tables.grant_uses, grant_id="gr_1", run_id="run_completed", tool_call_id="call_ok")
    for name, differs in {
        "1": {"paused_at": None, "conversation_id": None, "model": None},
        "2": {"conversation_id": "conv_asking"},
        "3": {"conversation_id": None, "deleted_at": THEN, "deleted_by": filling.text},
    }.items():
        await put(tables.schedules, id=f"sched_{name}", name=f"{name}{filling.text}"[:64], **differs)
    for n, outcome in enumerate(("opened", "waiting", "skipped", "missed")):
        run_id = "run_completed" if outcome == "opened" else None
        by = filling.text if outcome == "opened" else None
        at = as_text(NOW - timedelta(minutes=n))
        await put(tables.schedule_fires, fire_at=at, outcome=outcome, run_id=run_id, fired_by=by)
    for run, kind in (("completed", "summary"), ("failed", "trim")):
        cut = {"head_message_id": f"{run}_assistant", "covers": f"{run}_user", "root_message_id": f"{run}_root"}
        await put(tables.summaries, run_id=f"run_{run}", step=1, kind=kind, **cut)
    await put(tables.used_below, run_id="run_completed", tokens=50)
    await put(tables.policy_versions, version=1, source=filling.rules)
    await put(tables.policy_proposals, number=1, version=2, source=filling.rules, outcome=None)
    await put(tables.deliveries, id="dl_1", status="failed", payload=json.dumps(filling.value))
    await put(tables.delivery_attempts, delivery_id="dl_1")
    attempt = {"step": 1, "attempt": 1, "error_class": filling.in_json, "message": filling.in_json}
    await events.append(conn, "run_failed", [("model.retrying", {**attempt, "retry_in_seconds": None})])
    broke_off = {"step": 2, "attempt": 1, "text": filling.in_json, "error_id": "err-1"}
    await events.append(conn, "run_failed", [("model.broke_off", broke_off)])
    instead = {"step": 1, "from": filling.in_json, "to": filling.in_json}
    fell_back = {**instead, "error_class": filling.in_json, "message": filling.in_json}
    await events.append(conn, "run_failed", [("run.model_fell_back", fell_back)])
    later = {**attempt, "step": 2, "retry_in_seconds": 7200, "shown": True}
    switched = {"by": filling.in_json, "from": filling.in_json, "to": filling.in_json, "step": 0}
    skipped = {"step": 2, "reason": "error", "model": filling.in_json, "error_class": filling.in_json, "forced": False}
    about_model = [
        ("run.model_switched", switched),
        ("context.compaction_skipped", skipped),
        ("model.retrying", {**attempt, "retry_in_seconds": 1}),
        ("model.broke_off", broke_off),
        ("model.retrying", later),
    ]
    await events.append(conn, "run_retrying", about_model)
    over = {"from_run_id": "run_completed", "step": 1, "messages": 3, "model": filling.in_json}
    await events.append(conn, "run_failed", [("context.carried_over", over)])
    await put(tables.deltas, run_id="run_retrying", step=2, attempt=1, n=2, payload=filling.delta)
    await put(tables.model_names, name=filling.text[:200], kind="profile")
    for run_id in ("run_completed", events.SYSTEM):
        payload = {"by": filling.in_json, "request_id": "rq_approved", **filling.value}
        await events.append(conn, run_id, [("request.opened", payload)])


async def _put_run(put: Put, filling: Filling, run: str) -> None:
    at = {"run_id": f"run_{run}", "conversation_id": f"conv_{run}"}
    roles = ("user",) if run == "brief" else ("user", "assistant", "tool")
    head = f"{run}_{roles[len(roles) // 2]}"
    await put(tables.conversations, id=f"conv_{run}", head_message_id=head)
    await put(
        tables.messages, id=f"{run}_root", parent_id=None, role="user", step=None, parts=filling.parts("user"), **at
    )
    for above, role in zip(("root", *roles), roles, strict=False):
        parent = f"{run}_{above}"
        step = None if role == "user" else 1
        parts = filling.parts(role)
        await put(tables.messages, id=f"{run}_{role}", parent_id=parent, role=role, step=step, parts=parts, **at)
    links = {"parent_run_id": "run_completed", "parent_tool_call_id": "call_ok"} if run == "interrupted" else {}
    first = "msg_first" if run == "running" else f"{run}_user"  # the later messages of its path came while it ran
    await put(
        tables.runs, id=f"run_{run}", conversation_id=f"conv_{run}", status=RUNS[run], input_message_id=first,
        head_message_id=head, ended_at=None if RUNS[run] == "running" else THEN,
        forked_from_run_id="run_completed" if run == "failed" else None, is_retry=False,
        replay_of_run_id="run_completed" if run == "replay" else None, **links,
        **({"agent": filling.outside, "path": ""} if run == "outside" else {}),
    )  # fmt: skip
    await put(tables.steps, run_id=f"run_{run}", assistant_message_id=head)
    if run == "running":
        await put(tables.queued_messages, id="running_user", run_id="run_running", taken_at=THEN)
        await put(tables.queued_messages, id="msg_waits", run_id="run_running", while_running="queue", taken_at=None)
    call_id = "call_ok" if run == "completed" else None
    await put(tables.errors, id=f"err-{run}"[:16], run_id=f"run_{run}", step=1, attempt=2, tool_call_id=call_id)
    if run in {"running", "completed", "replay"}:
        await _put_calls(put, filling, f"run_{run}")


async def _put_request(conn: Connection, put: Put, filling: Filling, name: str, columns: dict[str, Any]) -> None:
    of_another = "tool_call_id" in columns  # a request that replaces an earlier one has the same call
    at = {"run_id": columns.pop("run_id", "run_asking"), "tool_call_id": columns.pop("tool_call_id", f"call_{name}")}
    is_open = "status" not in columns
    if not of_another:
        call = {"settled_at": None, "result": None} if is_open else {"settled_at": THEN}
        if "input" in columns:
            call |= {"input": columns["input"], "edited_input": None}
        await put(tables.calls, **at, **call)
    await put(tables.requests, id=f"rq_{name}", rungs_climbed=0, **at, **columns)
    request = await requests.get(conn, f"rq_{name}")
    if is_open and request is not None:
        await events.append(conn, request.run_id, [opening_event(request)])
    if columns.get("decision_id"):
        outcome = "happened" if name == "resolved" else None
        await put(tables.decisions, id=name, request_id=f"rq_{name}", verb=columns["verb"], outcome=outcome)
    await put(tables.comments, id=f"cm_{name}", request_id=f"rq_{name}")
    await put(tables.views, request_id=f"rq_{name}", viewer=filling.text, last_at=LATER)
    await put(tables.approvals, request_id=f"rq_{name}", decision_id=f"once_{name}")


async def _put_precedent(conn: Connection, seq: int, request_id: str) -> None:
    request = await requests.get(conn, request_id)
    assert request is not None
    assert request.verb is not None
    decided = precedents.Decided(
        seq=seq, request_id=request_id, tool_name=request.tool_name, input=request.input, verb=request.verb
    )
    await precedents.add(conn, [(decided, features(request.tool_name, request.input))])


async def _put_calls(put: Put, filling: Filling, run_id: str) -> None:
    short = {"input": "{}", "edited_input": None}
    if run_id == "run_running":
        calls: dict[str, dict[str, Any]] = {"call_running": {**short, "result": None, "settled_at": None}}
    else:
        calls = {
            "call_ok": {"presentation": filling.blocks},
            "call_failed": {**short, "result": filling.failure, "verdict": "", "disposition": "closed"},
            **{
                f"call_{name}": {**short, "signal": control_call}
                for name, control_call in filling.control_calls.items()
            },
        }
    for position, (call_id, differs) in enumerate(calls.items()):
        state = "executing" if differs.get("result", "") is None else "succeeded"
        await put(tables.calls, run_id=run_id, tool_call_id=call_id, position=position, **differs)
        await put(tables.executions, run_id=run_id, tool_call_id=call_id, state=state, decision_id=None)
    for n, payload in enumerate((filling.in_json, filling.value), 1):
        await put(
            tables.progress,
            run_id=run_id,
            tool_call_id="call_running",
            n=n,
            payload=json.dumps({"event": payload, "dropped": n, "after": 0}),
        )
