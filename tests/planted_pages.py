"""Every state of every page, from rows planted in a store: no engine behind it. A page is added by one row of :data:`STATES`.

The rows hold one text wherever a table has a column for text that is no id, word or instant of Turngate's own, so that a
column which is added later needs no work here, and shows up on the pages by itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from hostile import MARK
from posted_form import PostedPage
from sqlalchemy import Boolean, Column, Integer, Table, insert
from temporalio.client import Client

from approvals_api.app import create_app
from approvals_api.gateway import Gateway
from approvals_api.principals import SESSION_COOKIE
from approvals_api.settings import ApiSettings
from turngate.domain.ask_terms import AskTerms, Rung
from turngate.domain.policy import Verdict
from turngate.domain.presentation import PRESENTATION, CommandBlock, DiffBlock, JsonBlock, TableBlock, TextBlock
from turngate.store import sessions, tables
from turngate.store.clock import as_text
from turngate.store.database import Connection, Database

ADDRESS = "http://127.0.0.1"
NOW = datetime.now(UTC)
THEN = as_text(NOW - timedelta(minutes=3))
LATER = as_text(NOW + timedelta(hours=2))
IN_FUTURE = ("expires_at", "claimed_until", "next_attempt_at")
OPERATOR = "ada"


@dataclass(frozen=True)
class PageState:
    """A page as it is asked for. ``action``: a form of it is sent, with ``changes`` (control → text), and the answer counts."""

    path: str
    action: str | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    logged_in: bool = True
    empty: bool = False


IN_ADDRESS = f"{MARK}<b>\u202e\x1b[31m\r\n javascript:owned() \u0430"

STATES: dict[str, PageState] = {
    "inbox": PageState("/"),
    "inbox decided": PageState("/?status=all"),
    "inbox empty": PageState("/", empty=True),
    "runs": PageState("/runs"),
    "runs empty": PageState("/runs", empty=True),
    "approval": PageState("/requests/rq_approval?conversation=all"),
    "approval with a diff": PageState("/requests/rq_diff"),
    "approval of a command": PageState("/requests/rq_command"),
    "approval of what is no object": PageState("/requests/rq_raw"),
    "approval barred": PageState("/requests/rq_barred"),
    "approval parked and claimed": PageState("/requests/rq_claimed"),
    "approval edited wrongly": PageState("/requests/rq_approval", "edit", {"edit-1": "many", "edit-0": ""}),
    "approval with a row more": PageState("/requests/rq_approval", "edit", {"row": "add edit-3"}),
    "approval unconfirmed": PageState("/requests/rq_approval", "approve", {"approve-confirm": "no"}),
    "question": PageState("/requests/rq_question"),
    "outcome": PageState("/requests/rq_outcome"),
    "approved": PageState("/requests/rq_approved"),
    "approved as edited": PageState("/requests/rq_edited"),
    "rejected": PageState("/requests/rq_rejected"),
    "answered": PageState("/requests/rq_responded"),
    "outcome told": PageState("/requests/rq_told"),
    "expired": PageState("/requests/rq_expired"),
    "cancelled": PageState("/requests/rq_cancelled"),
    "superseded": PageState("/requests/rq_superseded"),
    "run running": PageState("/runs/run_running"),
    "run completed": PageState("/runs/run_completed"),
    "run failed": PageState("/runs/run_failed"),
    "run interrupted": PageState("/runs/run_interrupted"),
    "run told wrongly": PageState("/runs/run_failed", "message", {"input": ""}),
    "result": PageState("/runs/run_completed/result?call=call_ok"),
    "result of a failure": PageState("/runs/run_completed/result?call=call_failed"),
    "new run": PageState("/runs/new"),
    "new run without agents": PageState("/runs/new", empty=True),
    "login": PageState("/login", logged_in=False),
    "login by link": PageState("/login?link=secret", logged_in=False),
    "not found": PageState(f"/requests/{quote(IN_ADDRESS)}"),
    "invalid": PageState(f"/?status={quote(IN_ADDRESS)}"),
}


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

    @property
    def name(self) -> str:
        """The text as one of several names in one column."""
        return self.text.replace(",", ";")

    @property
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

    @property
    def own(self) -> dict[str, Any]:
        """Columns that cannot hold just any text: ids, words of ours, and JSON of a shape."""
        return {
            "run_id": "run_asking",
            "conversation_id": "conv_1", "digest": "d1", "risk": "medium", "status": "pending", "kind": "approval",
            "agent": self.text[:64], "effect": "once", "repeat_key": "k", "policy_version": "p1", "disposition": "ask",
            "unattended_asks": "park", "executions.idempotency_key": "k", "request_fingerprint": "", "event_hash": "",
            "provider_options": "{}", "limits": "{}", "scope": "everyone", "outcome": None, "role": "operator",
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

    @property
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

    @property
    def arguments(self) -> str:
        text = self.in_raw
        return json.dumps(
            {"text": text, "number": 1, "pick": text, "rows": [{text: text}, {text: text}], "map": {"k": text},
             "either": {text: text}, text: [text], "more": self.value}
        )  # fmt: skip

    @property
    def manifest(self) -> str:
        return self.manifest_of(self.schema)

    def manifest_of(self, success: dict[str, Any], kind: str = "local") -> str:
        return json.dumps(
            {"name": self.in_json, "description": f"{self.in_json}\n\nmore", "kind": kind, "parameters": self.schema,
             "success": success, "effect": "once", "origin": {self.in_json: self.in_json}}
        )  # fmt: skip

    @property
    def diff(self) -> str:
        return f"--- a/{self.text}\n+++ b/x\n@@ -1,1 +1,1 @@\n-{self.text}\n+{self.text}\n"

    @property
    def blocks(self) -> str:
        blocks = (
            TextBlock(text=self.text),
            DiffBlock(diff=self.diff),
            CommandBlock(argv=("echo", self.text, "")),
            TableBlock(columns=(self.text, "n"), rows=((self.text, 1), (None, True), ({"k": self.text}, "")), more=2),
            JsonBlock(value={self.text: [self.text]}),
        )
        return PRESENTATION.dump_json(blocks).decode()

    @property
    def failure(self) -> str:
        return json.dumps({"tag": "failure", "kind": self.in_json, "reason": self.in_json, "fields": self.value})

    @property
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
    "running": "running", "completed": "completed", "failed": "failed", "interrupted": "interrupted", "asking": "running",
}  # fmt: skip
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


async def plant(conn: Connection, filling: Filling) -> None:
    """Put the rows in."""

    async def put(table: Table, **given: Any) -> None:
        await conn.execute(insert(table).values(**filling.row(table, **given)))

    for name in (filling.text, "second"):
        await put(tables.agents, name=name)
    for run, status in RUNS.items():
        await put(tables.conversations, id=f"conv_{run}", head_message_id=f"{run}_tool")
        above = None
        for role in ("user", "assistant", "tool"):
            await put(
                tables.messages, id=f"{run}_{role}", parent_id=above, conversation_id=f"conv_{run}", run_id=f"run_{run}",
                role=role, parts=filling.parts(role),
            )  # fmt: skip
            above = f"{run}_{role}"
        parent = {"parent_run_id": "run_completed", "parent_tool_call_id": "call_ok"} if run == "interrupted" else {}
        await put(
            tables.runs, id=f"run_{run}", conversation_id=f"conv_{run}", status=status, input_message_id=f"{run}_user",
            head_message_id=f"{run}_assistant", ended_at=None if run == "running" else THEN,
            forked_from_run_id="run_completed" if run == "failed" else None, **parent,
        )  # fmt: skip
        await put(tables.steps, run_id=f"run_{run}", assistant_message_id=f"{run}_assistant")
        if run in {"running", "completed"}:
            await _put_calls(put, filling, f"run_{run}")
    for name, differs in _requests(filling).items():
        call_id = f"call_{name}"
        await put(
            tables.calls, run_id="run_asking", tool_call_id=call_id, settled_at=None if "status" not in differs else THEN,
            **({} if "status" in differs else {"result": None}),
        )  # fmt: skip
        await put(tables.requests, id=f"rq_{name}", tool_call_id=call_id, **differs)
        if differs.get("decision_id"):
            outcome = "happened" if name == "told" else None
            await put(tables.decisions, id=name, request_id=f"rq_{name}", verb=differs["verb"], outcome=outcome)
        await put(tables.comments, id=f"cm_{name}", request_id=f"rq_{name}")
        await put(tables.views, request_id=f"rq_{name}", viewer=filling.text[:200], last_at=as_text(NOW))
        await put(tables.approvals, request_id=f"rq_{name}", decision_id=f"once_{name}")
    await put(tables.saved_views, owner=OPERATOR, name=filling.text[:100], query="status=all")
    await put(tables.grants, id="gr_1", request_id="rq_approved")


async def _put_calls(put: Any, filling: Filling, run_id: str) -> None:
    short = {"input": "{}", "edited_input": None}
    calls: dict[str, dict[str, Any]] = {
        "call_ok": {"presentation": filling.blocks},
        "call_failed": {**short, "result": filling.failure, "verdict": "", "disposition": "closed"},
        "call_running": {**short, "result": None, "settled_at": None},
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


@dataclass
class Pages:
    """The pages over one store, asked for without a network."""

    database: Database
    client: httpx.AsyncClient
    empty: httpx.AsyncClient

    async def html(self, state: PageState) -> str:
        """Return the page of a state, its form sent if it is about one."""
        client = self.empty if state.empty else self.client
        headers = {} if state.logged_in else {"Cookie": ""}
        answer = await client.get(state.path, headers=headers)
        if state.action is not None:
            sent = {**PostedPage(answer.text).form(state.action).sent, **state.changes}
            answer = await client.post(state.path, data=sent)
        assert answer.headers["content-type"] == "text/html; charset=utf-8", answer.text[:1_000]
        assert answer.status_code in {200, 404, 422}, answer.text[:1_000]
        return answer.text


@asynccontextmanager
async def pages_of(filling: Filling, template: Path, folder: Path) -> AsyncIterator[Pages]:
    """Serve the pages of two stores, one filled and one empty, to a logged-in operator. Nobody answers for Temporal.

    ``template``: a migrated SQLite file to copy. ``folder``: is made, and keeps the copies.
    """
    filled, empty = (Database(f"sqlite:///{file}") for file in _copies(template, folder))
    nowhere = await Client.connect("127.0.0.1:1", lazy=True)
    async with filled.write() as conn:
        await plant(conn, filling)
    async with _client(filled, nowhere) as client, _client(empty, nowhere) as without:
        yield Pages(filled, client, without)
    await filled.close()
    await empty.close()


def _copies(template: Path, folder: Path) -> list[Path]:
    folder.mkdir()
    return [Path(shutil.copy(template, folder / name)) for name in ("filled.db", "empty.db")]


@asynccontextmanager
async def _client(database: Database, nowhere: Client) -> AsyncIterator[httpx.AsyncClient]:
    async with database.write() as conn:
        secret = await sessions.begin(conn, OPERATOR)
    app = create_app(database=database, gateway=Gateway(nowhere), settings=ApiSettings())
    headers = {
        "Accept": "text/html",
        "Origin": ADDRESS,
        "Sec-Fetch-Site": "same-origin",
        "Cookie": f"{SESSION_COOKIE}={secret}",
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS, headers=headers) as client:
        yield client
