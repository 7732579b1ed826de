"""Reading for people: runs, requests and conversations put together from the store. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from approvals_api.cursors import encode_cursor
from approvals_api.read_models import (
    AgentView,
    CallRequest,
    CallView,
    DecisionView,
    EventView,
    MessageView,
    Page,
    RequestDetail,
    RequestItem,
    RunDetail,
    RunSummary,
    StepView,
)
from turngate.domain.errors import NotFoundError
from turngate.domain.messages import ReasoningPart
from turngate.domain.policy import Verdict
from turngate.domain.requests import ALLOWED_VERBS, RequestStatus, RunStatus
from turngate.store import agents, calls, executions, messages, requests, runs, steps
from turngate.store.calls import Call
from turngate.store.database import Connection
from turngate.store.events import Event
from turngate.store.executions import Execution
from turngate.store.messages import StoredMessage
from turngate.store.requests import Decision, Request
from turngate.store.runs import Run
from turngate.store.steps import Step


async def agent_list(conn: Connection) -> list[AgentView]:
    """Return the published agents by name."""
    return [
        AgentView(
            name=agent.name,
            version=agent.version,
            model=agent.model,
            description=agent.description,
            tools=[name for name in agent.tools.split(", ") if name],
            published_at=agent.published_at,
        )
        for agent in await agents.every(conn)
    ]


async def run_page(
    conn: Connection, *, limit: int, before: tuple[str, str] | None = None, status: RunStatus | None = None
) -> Page[RunSummary]:
    """Return one page of runs, newest first."""
    found = await runs.page(conn, limit=limit + 1, before=before, status=status)
    shown = found[:limit]
    more = encode_cursor(shown[-1].created_at, shown[-1].id) if len(found) > limit else None
    return Page(items=[run_summary(run) for run in shown], next_cursor=more)


async def request_page(
    conn: Connection,
    *,
    status: RequestStatus | None,
    limit: int,
    after: tuple[str, str] | None = None,
    run_id: str | None = None,
) -> Page[RequestItem]:
    """Return one page of the inbox, oldest first; ``status`` None: whatever their status."""
    found = await requests.page(conn, status=status, limit=limit + 1, after=after, run_id=run_id)
    shown = found[:limit]
    more = encode_cursor(shown[-1].created_at, shown[-1].id) if len(found) > limit else None
    return Page(items=[request_item(request) for request in shown], next_cursor=more)


async def existing_run(conn: Connection, run_id: str) -> Run:
    """Return a run; raises NotFoundError when there is none."""
    run = await runs.get(conn, run_id)
    if run is None:
        raise NotFoundError(f"there is no run {run_id!r}")
    return run


async def run_detail(conn: Connection, run_id: str) -> RunDetail:
    """Return a run with its steps and calls; raises NotFoundError."""
    run = await existing_run(conn, run_id)
    taken = await steps.of_run(conn, run_id)
    # One walk gives every message of the run: its last response hangs below all the others.
    path = await messages.path_to(conn, taken[-1].assistant_message_id if taken else None)
    by_id = {stored.id: stored for stored in path}
    executed = {execution.tool_call_id: execution for execution in await executions.of_run(conn, run_id)}
    asked: dict[str, list[Request]] = defaultdict(list)
    for request in await requests.of_run(conn, run_id):
        asked[request.tool_call_id].append(request)
    made: dict[int, list[CallView]] = defaultdict(list)
    for call in await calls.of_run(conn, run_id):
        made[call.step].append(_call_view(call, asked[call.tool_call_id], executed.get(call.tool_call_id)))
    views = [_step_view(step, by_id[step.assistant_message_id], made[step.step]) for step in taken]
    final_text = views[-1].text if views and run.status == "completed" else ""
    return RunDetail(**run_summary(run).model_dump(), steps=views, final_text=final_text)


async def request_detail(conn: Connection, request_id: str) -> RequestDetail:
    """Return a request with its decision, call, run and conversation so far; raises NotFoundError."""
    request = await requests.get(conn, request_id)
    if request is None:
        raise NotFoundError(f"there is no request {request_id!r}")
    run = await existing_run(conn, request.run_id)
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    step = await steps.get(conn, request.run_id, call.step) if call else None
    execution = await executions.get(conn, request.run_id, request.tool_call_id)
    content = await requests.decision(conn, request.decision_id) if request.decision_id else None
    head = step.assistant_message_id if step else run.head_message_id
    return RequestDetail(
        **request_item(request).model_dump(),
        manifest=request.tool,
        agent_words=request.agent_words,
        preview_kind=request.preview_kind,
        preview=request.preview,
        not_by=request.not_by,
        allowed_verbs=list(ALLOWED_VERBS[request.kind]) if request.status == "pending" else [],
        decision=_decision_view(request, content),
        execution=execution.state if execution else "not_started",
        partial_output=execution.partial_output if execution else "",
        edited_input=call.edited_input if call else None,
        result=call.settled_result if call else None,
        run=run_summary(run),
        messages=message_views(await messages.path_to(conn, head)),
    )


async def conversation_messages(conn: Connection, conversation_id: str) -> list[MessageView]:
    """Return the conversation from its first message to its head; raises NotFoundError."""
    if not await messages.conversation_exists(conn, conversation_id):
        raise NotFoundError(f"there is no conversation {conversation_id!r}")
    return message_views(await messages.path_to(conn, await messages.head_of(conn, conversation_id)))


def run_summary(run: Run) -> RunSummary:
    """Return a run as lists show it."""
    return RunSummary.model_validate(run)


def request_item(request: Request) -> RequestItem:
    """Return a request as the inbox shows it."""
    return RequestItem.model_validate(request)


def message_views(stored: Sequence[StoredMessage]) -> list[MessageView]:
    """Return messages with their place in the tree."""
    return [
        MessageView(
            id=message.id,
            parent_id=message.parent_id,
            run_id=message.run_id,
            step=message.step,
            created_at=message.created_at,
            role=message.message.role,
            parts=message.message.parts,
        )
        for message in stored
    ]


def event_view(event: Event) -> EventView:
    """Return an event as streams send it."""
    return EventView.model_validate(event)


def _step_view(step: Step, stored: StoredMessage, made: list[CallView]) -> StepView:
    thoughts = [part.text for part in stored.message.parts if isinstance(part, ReasoningPart)]
    return StepView(
        step=step.step,
        model=step.model,
        finish_reason=step.finish_reason,
        input_tokens=step.input_tokens,
        output_tokens=step.output_tokens,
        text=stored.message.text,
        reasoning="\n\n".join(thoughts),
        calls=made,
        created_at=step.created_at,
        closed_at=step.closed_at,
    )


def _call_view(call: Call, asked: list[Request], execution: Execution | None) -> CallView:
    return CallView(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        input=call.input,
        edited_input=call.edited_input,
        digest=call.digest,
        effect=call.effect,
        disposition=call.disposition,
        verdict=Verdict.model_validate_json(call.verdict) if call.verdict else None,
        requests=[CallRequest.model_validate(request) for request in asked],
        execution=execution.state if execution else "not_started",
        attempts=execution.attempts if execution else 0,
        started_at=execution.started_at if execution else None,
        ended_at=execution.ended_at if execution else None,
        result=call.settled_result,
        settled_at=call.settled_at,
    )


def _decision_view(request: Request, content: Decision | None) -> DecisionView | None:
    """Return the winning answer; a decision without content has no row of its own."""
    if request.decision_id is None or request.verb is None or request.decided_by is None or request.decided_at is None:
        return None
    return DecisionView(
        id=request.decision_id,
        verb=request.verb,
        args=content.args if content else None,
        message=content.message if content else "",
        outcome=content.outcome if content else None,
        decided_by=request.decided_by,
        decided_at=request.decided_at,
    )
