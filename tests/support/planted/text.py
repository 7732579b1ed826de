"""One text in every column of a table that holds free text. For :mod:`support.planted.rows`.

A column that is added later needs no work here: it is filled like the others and appears on the pages.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Boolean, Column, Integer, Table

from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.origins.origin import Origin, Origins, Place
from turngate.domain.policy.judge import Judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.policy.terms import AskTerms, Rung
from turngate.domain.requests import LostStart
from turngate.domain.text.json_pointers import escaped
from turngate.domain.tools.presentation import PRESENTATION, CommandBlock, DiffBlock, JsonBlock, TableBlock, TextBlock
from turngate.domain.tools.tool import ProcessConfinement
from turngate.store import tables
from turngate.store.clock import as_text

NOW = datetime.now(UTC)
THEN = as_text(NOW - timedelta(minutes=3))
LATER = as_text(NOW + timedelta(hours=2))
IN_FUTURE = ("expires_at", "claimed_until", "next_attempt_at")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
NULLS = {
    "parked_at", "claimed_by", "claimed_until", "revoked_at", "revoked_by", "not_by", "decision_id", "verb", "decided_by",
    "decided_at", "child_run_id", "signal", "whole_result", "idempotency_key", "runs.parent_run_id",
    "runs.parent_tool_call_id", "forked_from_run_id", "parent_id", "grant_wanted", "plan", "results_message_id",
    "disabled_at", "password_hash", "oidc_issuer", "oidc_subject", "preview_kind", "preview", "gathering_since",
    "replay_of_run_id", "deleted_at", "deleted_by", "removed_at", "masked_input", "lost_start",
    "erasure_id", "words", "removed_by",
}  # fmt: skip
"""Columns whose emptiness means something; the states that need them set them."""


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

    @cached_property
    def outside(self) -> str:
        """The agent's name of an external call's run."""
        return f"external-{self.text}"[:64]

    @cached_property
    def delta(self) -> str:
        """A row of the table of deltas: the last one of a response that broke off."""
        kinds = ("text", "reasoning", "tool-call")
        deltas = [
            {"kind": kind, "part": part, "text": self.text, "tool_name": self.text} for part, kind in enumerate(kinds)
        ]
        return json.dumps({"after": 0, "reset": self.text, "dropped": 1, "deltas": deltas})

    @cached_property
    def lost_start(self) -> str:
        """How a lost call had started."""
        texts = dict.fromkeys(("worker", "build", "progress", "check_with"), self.text)
        start = LostStart(idempotency_key="key", attempt=2, started_at=THEN, progress_at=THEN, **texts)
        return start.model_dump_json()

    @cached_property
    def judged(self) -> Judgement:
        judgement = {"verdict": "allow", "mode": "shadow", "ms": 5, "digest": "0", "judge": "0"}
        return Judgement.model_validate({**judgement, "reason": self.text, "model": self.text, "asked_by": self.text})

    def row(self, table: Table, **columns: Any) -> dict[str, Any]:
        return {
            column.name: columns[column.name] if column.name in columns else self._cell(table, column)
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
        """Columns that cannot hold just any text: ids, enumerations, and JSON of a schema."""
        return {
            "run_id": "run_asking",
            "conversation_id": "conv_1", "digest": "d1", "risk": "medium", "status": "pending", "kind": "approval",
            "agent": self.text[:64], "effect": "once", "repeat_key": "k", "policy_version": "p1", "disposition": "ask",
            "unattended_asks": "park", "executions.idempotency_key": "k", "request_fingerprint": "", "event_hash": "",
            "provider_options": "{}", "limits": "{}", "scope": "everyone", "outcome": None,
            "role": "operator", "created_by_role": "operator",
            "input": self.arguments, "edited_input": self.arguments, "args": self.arguments, "manifest": self.manifest,
            "verdict": Verdict(
                answer="ask", rule=self.text, reason=self.text, risk="high", judged=self.judged
            ).model_dump_json(),
            "confinement": ProcessConfinement(confined=False, text=self.text).model_dump_json(),
            "origins": self.origins.model_dump_json(),
            "defaults": json.dumps([{"at": f"/{escaped(self.text)}", "value": self.text}, {"at": "/nothing"}]),
            "terms": self.terms(), "precondition": json.dumps(self.value),
            "result": json.dumps({"tag": "ok", "value": self.value}),
            "presentation": None, "progress.payload": json.dumps(self.value), "agents.sub_agent_of": self.name,
            "path": f"{self.text}/below", "agents.tools": f"{self.name}, look",
            "schedule_id": "sched_1", "overlap": "skip", "timetable": json.dumps({"every_seconds": 60}),
            "extensions": json.dumps([{"call": "call_ok", "budget": "tokens", "by": "100", "at": THEN}]),
            "schedules.input": self.text, "api_tokens.scopes": "requests:read",
            "runs.world": self.overrides.digest, "worlds.digest": self.overrides.digest,
            "worlds.content": self.overrides.model_dump_json(),
            "pattern": json.dumps({"tool": self.in_json, "fixed": {self.in_json: self.value}, "open": ["x"]}),
        }  # fmt: skip

    @property
    def overrides(self) -> RunOverrides:
        return RunOverrides(agent=self.text, instructions=self.text, tools=(self.text,), policy=self.text)

    @property
    def origins(self) -> Origins:
        place = Place(kind="result", tool=self.text, at=self.text, agent=self.text, message_id="msg_1")
        origin = Origin(at="/text", part=self.text, places=(place,), doubt="contradicts", instead=self.text)
        return Origins(items=(origin,) * 8)  # more than are in sight

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
                "far": {"$ref": "#/$defs/far"},
                "flag": {"type": "boolean"},
            },
            "required": ["text"],
            "$defs": {"far": {"title": self.in_json, "description": self.in_json}},
        }  # fmt: skip

    @cached_property
    def arguments(self) -> str:
        text = self.in_raw
        return json.dumps(
            {"text": text, "number": 1, "pick": text, "rows": [{text: text}, {text: text}], "map": {"k": "v"},
             "either": {text: text}, text: [text], "more": self.value}
        )  # fmt: skip

    @cached_property
    def manifest(self) -> str:
        return self.manifest_of(self.schema)

    @cached_property
    def brief(self) -> dict[str, Any]:
        """The columns of a request whose arguments do not matter: one argument, and a short conversation."""
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
        """Stored rules. TOML writes strings as JSON does, except for characters beyond the basic plane and for DEL."""
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
    def control_calls(self) -> dict[str, str]:
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
            written = base64.b64encode(text.encode(errors="replace")).decode()
            parts += [
                {"type": "image", "media_type": kind, "content": written}
                for kind in (text, "image/svg+xml", "image/png")
            ]
            parts += [{"type": "image", "media_type": "image/png", "content": each} for each in (PIXEL, text)]
        return json.dumps(parts)
