"""Rows for every table that a page shows, each full of one text. For :mod:`planted_pages`.

The text stands wherever a table has a column that is no id, word or instant of Turngate's own, so that a column which is
added later needs no work here, and shows up on the pages by itself.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Boolean, Column, Integer, Table, insert

from turngate.domain.ask_terms import AskTerms, Rung
from turngate.domain.policy import Verdict
from turngate.domain.presentation import PRESENTATION, CommandBlock, DiffBlock, JsonBlock, TableBlock, TextBlock
from turngate.store import events, tables
from turngate.store.clock import as_text
from turngate.store.database import Connection

NOW = datetime.now(UTC)
THEN = as_text(NOW - timedelta(minutes=3))
LATER = as_text(NOW + timedelta(hours=2))
IN_FUTURE = ("expires_at", "claimed_until", "next_attempt_at")
OPERATOR = "ada"
NULLS = {
    "parked_at", "claimed_by", "claimed_until", "revoked_at", "revoked_by", "not_by", "decision_id", "verb", "decided_by",
    "decided_at", "child_run_id", "signal", "whole_result", "idempotency_key", "runs.parent_run_id",
    "runs.parent_tool_call_id", "forked_from_run_id", "parent_id", "grant_wanted", "plan", "results_message_id",
    "disabled_at", "password_hash", "oidc_issuer", "oidc_subject", "preview_kind", "preview", "gathering_since",
}  # fmt: skip
"""Columns that say something by being empty; a state that they belong to sets them."""


class Filling:
    """The rows. ``text``: in every column; ``in_json``, ``in_raw``: in texts inside JSON, and inside a call's arguments."""

    def __init__(self, text: str, in_json: str | None = None, in_raw: str | None = None) -> None:
        self.text = text
        self.in_json = text if in_json is None else in_json
        self.in_raw = self.in_json if in_raw is None else in_raw

    @cached_property
    def name(self) -> str:
        """The text as one of several names in one column."""
        return self.text.replace(",", ";")

    @cached_property
    def value(self) -> dict[str, Any]:
        return {"text": self.in_json, self.in_json: [self.in_json, {"key": self.in_json}], "n": 1.5, "none": None}

    def row(self, table: Table, **given: Any) -> dict[str, Any]:
        return {
            column.name: given[column.name] if column.name in given else self._cell(table, column)
            for column in table.columns
            if not (table is tables.progress and column.name == "id")
        }

    def _cell(self, table: Table, column: Column[Any]) -> Any:
        if isinstance(column.type, Boolean):
            return True
        if isinstance(column.type, Integer):
            return 1
        if column.nullable and (column.name in NULLS or f"{table.name}.{column.name}" in NULLS):
            return None
        for name in (f"{table.name}.{column.name}", column.name):
            if name in self.own:
                return self.own[name]
        if column.name in IN_FUTURE:
            return LATER
        return THEN if column.name.endswith(("_at", "_until", "_since")) else self.text

    @cached_property
    def own(self) -> dict[str, Any]:
        """Columns that cannot hold just any text: ids, words of ours, and JSON of a shape."""
        return {
            "run_id": "run_asking",
            "conversation_id": "conv_1", "digest": "d1", "risk": "medium", "status": "pending", "kind": "approval",
            "agent": self.text[:64], "effect": "once", "repeat_key": "k", "policy_version": "p1", "disposition": "ask",
            "unattended_asks": "park", "executions.idempotency_key": "k", "request_fingerprint": "", "event_hash": "",
            "provider_options": "{}", "limits": "{}", "scope": "everyone", "outcome": None,
            "role": "operator", "created_by_role": "operator",
            "input": self.arguments, "edited_input": self.arguments, "args": self.arguments, "manifest": self.manifest,
            "verdict": Verdict(answer="ask", rule=self.text, reason=self.text, risk="high").model_dump_json(),
            "terms": self.terms(), "precondition": json.dumps(self.value),
            "result": json.dumps({"tag": "ok", "value": self.value}),
            "presentation": None, "progress.payload": json.dumps(self.value), "agents.sub_agent_of": self.name,
            "path": f"{self.text}/below", "agents.tools": f"{self.name}, look",
            "api_tokens.scopes": "requests:read",
            "pattern": json.dumps({"tool": self.in_json, "fixed": {self.in_json: self.value}, "open": ["x"]}),
        }  # fmt: skip

    def terms(self, **more: Any) -> str:
        rung = Rung(after_seconds=60, do="escalate", people=[self.text])
        return AskTerms(expires_after_seconds=3600, ladder=[rung], **more).model_dump_json()

    @cached_property
    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "description": self.in_json, "title": self.in_json}
        row = {
            "type": "object",
            "properties": {self.in_json: text, "n": {"type": "integer"}},
            "required": [self.in_json],
        }
        return {
            "type": "object",
            "properties": {
                "text": text,
                "number": {"type": "integer", "default": 3},
                "pick": {"enum": [self.in_json, 1, None], "description": self.in_json},
                "rows": {"type": "array", "items": row, "description": self.in_json},
                "map": {"type": "object", "additionalProperties": text},
                "either": {"anyOf": [{**row, "title": self.in_json}, text, {"const": self.in_json}]},
                self.in_json: {"type": "array", "items": {"type": "string"}},
                "far": {"$ref": self.in_json},
                "flag": {"type": "boolean"},
            },
            "required": ["text"],
        }  # fmt: skip

    @cached_property
    def arguments(self) -> str:
        text = self.in_raw
        return json.dumps(
            {"text": text, "number": 1, "pick": text, "rows": [{text: text}, {text: text}], "map": {"k": text},
             "either": {text: text}, text: [text], "more": self.value}
        )  # fmt: skip

    @cached_property
    def manifest(self) -> str:
        return self.manifest_of(self.schema)

    @cached_property
    def brief(self) -> dict[str, Any]:
        """The columns of a request that is not about its arguments: one of them, and no conversation to speak of."""
        schema = {"type": "object", "properties": {"text": {"type": "string", "description": self.in_json}}}
        manifest = json.dumps({**json.loads(self.manifest), "parameters": schema, "success": schema})
        return {"run_id": "run_brief", "input": json.dumps({"text": self.in_raw}), "manifest": manifest}

    def manifest_of(self, success: dict[str, Any], kind: str = "local") -> str:
        return json.dumps(
            {"name": self.in_json, "description": f"{self.in_json}\n\nmore", "kind": kind, "parameters": self.schema,
             "success": success, "effect": "once", "origin": {self.in_json: self.in_json}}
        )  # fmt: skip

    @cached_property
    def rules(self) -> str:
        """Stored rules. In TOML a string is written as in JSON, but for what lies beyond the basic plane, and DEL."""
        reason = json.dumps(self.text, ensure_ascii=False).replace("\x7f", "\\u007f")
        return f'[[rule]]\nname = "watched"\nverdict = "ask"\ntools = ["pay"]\nreason = {reason}\n'

    @cached_property
    def diff(self) -> str:
        return f"--- a/{self.text}\n+++ b/x\n@@ -1,1 +1,1 @@\n-{self.text}\n+{self.text}\n"

    @cached_property
    def blocks(self) -> str:
        blocks = (
            TextBlock(text=self.text),
            DiffBlock(diff=self.diff),
            CommandBlock(argv=("echo", self.text, "")),
            TableBlock(columns=(self.text, "n"), rows=((self.text, 1), (None, True), ({"k": self.text}, "")), more=2),
            JsonBlock(value={self.text: [self.text]}),
        )
        return PRESENTATION.dump_json(blocks).decode()

    @cached_property
    def failure(self) -> str:
        return json.dumps({"tag": "failure", "kind": self.in_json, "reason": self.in_json, "fields": self.value})

    @cached_property
    def signals(self) -> dict[str, str]:
        return {
            "hand_off": json.dumps({"signal": "hand_off", "agent": self.text}),
            "switch_model": json.dumps({"signal": "switch_model", "model": self.text}),
            "wait_until": json.dumps({"signal": "wait_until", "seconds": 60}),
            "finish": json.dumps({"signal": "finish", "answer": self.text}),
        }

    def parts(self, role: str) -> str:
        text, call = self.in_json, {"tool_call_id": "call_ok", "tool_name": self.in_json}
        parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if role == "assistant":
            parts += [{"type": "reasoning", "text": text}, {"type": "tool-call", **call, "input": self.arguments}]
        if role == "tool":
            ok, failed = {"tag": "ok", "value": self.value}, json.loads(self.failure)
            parts = [{"type": "tool-result", **call, "result": ok, "edited_input": self.arguments, "whole_result": "w"}]
            parts += [{"type": "tool-result", **call, "result": failed}]
        if role == "user":
            parts += [{"type": kind, "media_type": text, "url": text} for kind in ("image", "file")]
        return json.dumps(parts)


RUNS = {
    **{status: status for status in ("running", "completed", "failed", "interrupted")},
    "asking": "running",
    "brief": "running",
}
"""Run → status. ``asking`` has the calls of requests with a whole conversation, ``brief`` those of the others."""
ENDED = {"decided_by": None, "decided_at": THEN}


def _requests(filling: Filling) -> dict[str, dict[str, Any]]:
    """The requests by id: what differs from a pending approval."""
    answer = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    question = {"question": filling.in_json, "choices": [filling.in_json, "b"]}
    by = {"decided_by": filling.text, "decided_at": THEN}
    return {
        "approval": {"risk": "high", "preview_kind": "text", "preview": filling.text, "not_by": filling.text},
        "diff": {"preview_kind": "diff", "preview": filling.diff, "terms": filling.terms(quorum=2), "quorum": 2},
        "command": {"preview_kind": "command", "preview": json.dumps(["echo", filling.in_json, ""])},
        "raw": {"input": filling.text, "terms": ""},
        "barred": {"not_by": OPERATOR},
        "claimed": {"claimed_by": filling.text, "claimed_until": LATER, "parked_at": THEN, "expires_at": None},
        "question": {
            "kind": "question", "input": json.dumps(question), "manifest": filling.manifest_of(answer, "interaction"),
        },
        "outcome": {"kind": "outcome", "risk": "high"},
        "approved": {"status": "approved", "verb": "approve", "decision_id": "approved", **by},
        "edited": {"status": "approved", "verb": "edit", "decision_id": "edited", **by},
        "rejected": {"status": "rejected", "verb": "reject", "decision_id": "rejected", **by},
        "responded": {"kind": "question", "status": "responded", "verb": "respond", "decision_id": "responded", **by},
        "told": {"kind": "outcome", "status": "responded", "verb": "respond", "decision_id": "told", **by},
        "expired": {"status": "expired", **ENDED},
        "cancelled": {"status": "cancelled", **ENDED},
        "superseded": {"status": "superseded", **ENDED},
    }  # fmt: skip


Put = Callable[..., Awaitable[None]]
"""``(table, **columns)``: write a row, its other columns filled."""


async def plant(conn: Connection, filling: Filling) -> None:
    """Put the rows in."""

    async def put(table: Table, **given: Any) -> None:
        await conn.execute(insert(table).values(**filling.row(table, **given)))

    for name in (filling.text, "second"):
        await put(tables.agents, name=name)
    for run in RUNS:
        await _put_run(put, filling, run)
    for name, differs in _requests(filling).items():
        about_arguments = name in {"approval", "outcome", "edited"}
        await _put_request(put, filling, name, {**({} if about_arguments else filling.brief), **differs})
    await put(tables.saved_views, owner=OPERATOR, name=filling.text[:100], query="status=all")
    await put(tables.users, name=OPERATOR, role="admin", password_hash="none that fits")
    await put(tables.sessions, operator=OPERATOR, via="link", user_agent=filling.text)
    await put(tables.grants, id="gr_1", request_id="rq_approved", uses=0)
    await put(tables.grants, id="gr_2", request_id=None, revoked_at=THEN, revoked_by=filling.text)
    await put(tables.grant_uses, grant_id="gr_1", run_id="run_completed", tool_call_id="call_ok")
    await put(tables.policy_versions, version=1, source=filling.rules)
    await put(tables.deliveries, id="dl_1", status="failed", payload=json.dumps(filling.value))
    await put(tables.delivery_attempts, delivery_id="dl_1")
    for run_id in ("run_completed", events.SYSTEM):
        payload = {"by": filling.in_json, "request_id": "rq_approved", **filling.value}
        await events.append(conn, run_id, [("request.opened", payload)])


async def _put_run(put: Put, filling: Filling, run: str) -> None:
    at = {"run_id": f"run_{run}", "conversation_id": f"conv_{run}"}
    roles = ("user",) if run == "brief" else ("user", "assistant", "tool")
    said = f"{run}_{roles[len(roles) // 2]}"
    await put(tables.conversations, id=f"conv_{run}", head_message_id=said)
    for above, role in zip((None, *roles), roles, strict=False):
        parent = above and f"{run}_{above}"
        await put(tables.messages, id=f"{run}_{role}", parent_id=parent, role=role, parts=filling.parts(role), **at)
    links = {"parent_run_id": "run_completed", "parent_tool_call_id": "call_ok"} if run == "interrupted" else {}
    await put(
        tables.runs, id=f"run_{run}", conversation_id=f"conv_{run}", status=RUNS[run], input_message_id=f"{run}_user",
        head_message_id=said, ended_at=None if RUNS[run] == "running" else THEN,
        forked_from_run_id="run_completed" if run == "failed" else None, **links,
    )  # fmt: skip
    await put(tables.steps, run_id=f"run_{run}", assistant_message_id=said)
    if run in {"running", "completed"}:
        await _put_calls(put, filling, f"run_{run}")


async def _put_request(put: Put, filling: Filling, name: str, columns: dict[str, Any]) -> None:
    at = {"run_id": columns.pop("run_id", "run_asking"), "tool_call_id": f"call_{name}"}
    is_open = "status" not in columns
    await put(tables.calls, **at, settled_at=None if is_open else THEN, **({"result": None} if is_open else {}))
    await put(tables.requests, id=f"rq_{name}", **at, **columns)
    if columns.get("decision_id"):
        outcome = "happened" if name == "told" else None
        await put(tables.decisions, id=name, request_id=f"rq_{name}", verb=columns["verb"], outcome=outcome)
    await put(tables.comments, id=f"cm_{name}", request_id=f"rq_{name}")
    await put(tables.views, request_id=f"rq_{name}", viewer=filling.text, last_at=as_text(NOW))
    await put(tables.approvals, request_id=f"rq_{name}", decision_id=f"once_{name}")


async def _put_calls(put: Put, filling: Filling, run_id: str) -> None:
    short = {"input": "{}", "edited_input": None}
    if run_id == "run_running":
        calls: dict[str, dict[str, Any]] = {"call_running": {**short, "result": None, "settled_at": None}}
    else:
        calls = {
            "call_ok": {"presentation": filling.blocks},
            "call_failed": {**short, "result": filling.failure, "verdict": "", "disposition": "closed"},
            **{f"call_{name}": {**short, "signal": signal} for name, signal in filling.signals.items()},
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
