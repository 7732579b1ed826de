"""Planning: every call of a response is classified once, and the verdict is stored. Policy decides; nothing runs here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.engine import Engine
from turngate.domain import results
from turngate.domain.agents import Agent
from turngate.domain.contract import MAX_CALLS_PER_STEP, PlannedCall, StepPlan
from turngate.domain.digest import call_digest, derived_id, repeat_key
from turngate.domain.messages import Message, ToolCallPart
from turngate.domain.policy import Verdict, evaluate
from turngate.domain.requests import RequestKind
from turngate.domain.results import Failure
from turngate.domain.tools import InvalidToolInput, Preview, Tool
from turngate.store import calls, runs
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import NewEvent
from turngate.store.requests import Request

PREVIEW_SECONDS = 10.0
UNFINISHED = {"length", "content_filter", "refusal"}
"""Finish reasons of a response that is not complete; truncated arguments can be valid JSON (DESIGN §13)."""
MALFORMED_KINDS = {"unknown_tool", "input_validation_error"}


def request_id_of(run_id: str, tool_call_id: str, kind: RequestKind) -> str:
    """Return the id of the request for this call; a retry derives the same one."""
    return derived_id("rq", run_id, tool_call_id, kind)


@dataclass
class PlannedStep:
    """What one transaction writes: call rows, inbox requests, events, and the plan for the workflow."""

    plan: StepPlan
    calls: list[calls.Call] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)


@dataclass(frozen=True)
class _Admitted:
    """A call that is well-formed and not denied: its tool, decoded parameters and verdict."""

    tool: Tool
    params: Any
    verdict: Verdict


class Planner:
    """Classifies the calls of one response."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def plan(
        self, conn: Connection, run: runs.Run, agent: Agent, step: int, message: Message, finish_reason: str
    ) -> PlannedStep:
        """Return everything to store for this response's calls. Reads the store, writes nothing."""
        keys = [repeat_key(call.tool_name, call.input) for call in message.calls]
        refused = await calls.refusals_by_key(conn, run.id, keys) if step > 1 else {}
        planned = PlannedStep(plan=StepPlan(final=False))
        to_settle: list[PlannedCall] = []
        kinds: list[str | None] = []
        for position, (call, key) in enumerate(zip(message.calls, keys, strict=True)):
            admitted = self._admit(agent, call, position, finish_reason, refused.get(key))
            row = self._row(run, step, position, call, key, admitted)
            planned.calls.append(row)
            if isinstance(admitted, Failure):
                kinds.append(admitted.kind)
                closed = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "kind": admitted.kind}
                planned.events.append(("call.closed", closed))
                continue
            kinds.append(None)
            request = None
            if admitted.verdict.answer != "allow":
                request = await self._request(run, agent, row, admitted, message.text)
                planned.requests.append(request)
                opened = {"request_id": request.id, "tool_call_id": call.tool_call_id}
                planned.events.append(("request.opened", {**opened, "tool": call.tool_name, "kind": request.kind}))
            to_settle.append(self._wire(agent, run, row, admitted, request))
        malformed = all(kind in MALFORMED_KINDS for kind in kinds)  # an empty response has no calls: malformed too
        planned.plan = StepPlan(final=False, calls=tuple(to_settle), malformed=malformed)
        return planned

    def _admit(
        self, agent: Agent, call: ToolCallPart, position: int, finish_reason: str, refused: Failure | None
    ) -> _Admitted | Failure:
        """Return the call's tool and verdict, or why it is closed without running and without asking."""
        if finish_reason in UNFINISHED:
            reason = (
                f"The response ended early ({finish_reason}), so none of its calls ran. Send the call again, whole."
            )
            return Failure(kind="cancelled", reason=reason)
        if position >= MAX_CALLS_PER_STEP:
            return Failure(
                kind="cancelled", reason=f"A response may make {MAX_CALLS_PER_STEP} calls; this one came after."
            )
        tool = agent.toolkit.find(call.tool_name)
        if tool is None:
            return results.unknown_tool(call.tool_name, agent.toolkit.names)
        if tool.kind == "local" and tool.handler is None:
            return Failure(kind="non_local_tool", reason=f"{tool.name!r} is declared, but nothing here can run it.")
        try:
            params = tool.decode(call.input)
        except InvalidToolInput as problem:
            return results.invalid_input(str(problem))
        verdict = evaluate(self._engine.policy, tool, params, agent=agent.name)
        if verdict.answer == "deny":
            return results.denied(verdict.rule, verdict.reason)
        if refused is not None:
            return results.repeated(refused)
        return _Admitted(tool, params, verdict)

    def _row(
        self, run: runs.Run, step: int, position: int, call: ToolCallPart, key: str, admitted: _Admitted | Failure
    ) -> calls.Call:
        closed = isinstance(admitted, Failure)
        version = self._engine.policy.version
        manifest_digest = "" if isinstance(admitted, Failure) else admitted.tool.manifest.digest
        disposition: calls.Disposition = "closed"
        if not isinstance(admitted, Failure):
            disposition = "run" if admitted.verdict.answer == "allow" else "ask"
        return calls.Call(
            run_id=run.id,
            tool_call_id=call.tool_call_id,
            step=step,
            position=position,
            tool_name=call.tool_name,
            input=call.input,
            repeat_key=key,
            disposition=disposition,
            verdict="" if isinstance(admitted, Failure) else admitted.verdict.model_dump_json(),
            digest=call_digest(
                tool_name=call.tool_name,
                manifest_digest=manifest_digest,
                raw_input=call.input,
                run_id=run.id,
                tool_call_id=call.tool_call_id,
                policy_version=version,
            ),
            policy_version=version,
            effect="" if isinstance(admitted, Failure) else admitted.tool.effect,
            result=admitted.model_dump_json() if isinstance(admitted, Failure) else None,
            settled_at=as_text(now()) if closed else None,
        )

    async def _request(
        self, run: runs.Run, agent: Agent, row: calls.Call, admitted: _Admitted, agent_words: str
    ) -> Request:
        verdict, tool = admitted.verdict, admitted.tool
        kind: RequestKind = "question" if tool.kind == "interaction" else "approval"
        preview = await _previewed(tool, admitted.params, run.workspace)
        created_at = now()
        seconds = _expiry_seconds(verdict, agent)
        return Request(
            id=request_id_of(run.id, row.tool_call_id, kind),
            run_id=run.id,
            tool_call_id=row.tool_call_id,
            kind=kind,
            status="pending",
            agent=agent.name,
            tool_name=tool.name,
            manifest=tool.manifest.model_dump_json(),
            input=row.input,
            digest=row.digest,
            rule=verdict.rule,
            reason=verdict.reason,
            risk=verdict.risk,
            agent_words=agent_words,
            preview_kind=preview.kind if preview else None,
            preview=preview.text if preview else None,
            not_by=None if verdict.starter_may_decide else run.started_by,
            expires_at=None if seconds is None else as_text(created_at + timedelta(seconds=seconds)),
            created_at=as_text(created_at),
        )

    def _wire(
        self, agent: Agent, run: runs.Run, row: calls.Call, admitted: _Admitted, request: Request | None
    ) -> PlannedCall:
        tool = admitted.tool
        planned = PlannedCall(
            call=row.tool_call_id, timeout_seconds=int(tool.timeout.total_seconds()), queue=tool.task_queue
        )
        if request is None:
            return planned
        return planned.model_copy(
            update={
                "request_id": request.id,
                "kind": request.kind,
                "digest": request.digest,
                "expires_after_seconds": _expiry_seconds(admitted.verdict, agent),
                "not_by": None if admitted.verdict.starter_may_decide else run.started_by,
            }
        )


def _expiry_seconds(verdict: Verdict, agent: Agent) -> int | None:
    if verdict.expires_after_seconds is not None:
        return verdict.expires_after_seconds
    limit = agent.limits.request_expiry
    return None if limit is None else int(limit.total_seconds())


async def _previewed(tool: Tool, params: Any, workspace: str | None) -> Preview | None:
    """Return what the tool says will change; a preview that fails or hangs says so and never holds up the inbox."""
    if tool.preview is None:
        return None
    try:
        preview = asyncio.to_thread(tool.preview, params, None if workspace is None else Path(workspace))
        return await asyncio.wait_for(preview, PREVIEW_SECONDS)
    except Exception as error:  # noqa: BLE001 - the tool author's code; the operator still sees the exact arguments
        return Preview(kind="text", text=f"No preview: {type(error).__name__}: {error}")
