"""Reading for people: runs, requests and conversations put together from the store. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from approvals_api.lookups import existing_request, existing_run
from approvals_api.paging import encode_cursor, one_page
from approvals_api.runs.overrides import world_view
from approvals_api.runs.step_views import in_part, presentation_of, step_views
from turngate.domain.errors import NotFoundError
from turngate.domain.policy.policy import Verdict
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.runs.requests import RunStatus
from turngate.store import agents
from turngate.store.database import Connection
from turngate.store.events.events import Event
from turngate.store.live.deltas import Deltas
from turngate.store.live.progress import Progress
from turngate.store.requests import approvals, requests
from turngate.store.requests.requests import Decision, ListedRequest, Request
from turngate.store.runs import calls, executions, messages, overrides, queued_messages, runs, steps
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.runs import Run
from turngate.store.schedules import schedules
from turngate.wire.agents import AgentView, agents_path
from turngate.wire.decisions import DecisionView
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.requests import ApprovalView, EarlierApproval, RequestDetail, RequestItem
from turngate.wire.runs import MessageView, ParentCall, RunDetail, RunSummary, WaitingMessage
from turngate.wire.view import Page


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
            sub_agent_of=[name for name in agent.sub_agent_of.split(", ") if name],
        )
        for agent in await agents.every(conn)
    ]


async def run_page(
    conn: Connection, *, limit: int, before: tuple[str, str] | None = None, status: RunStatus | None = None
) -> Page[RunSummary]:
    """Return one page of runs, newest first."""
    found = await runs.page(conn, limit=limit + 1, before=before, status=status)
    shown, more = one_page(found, limit)
    return Page(items=[run_summary(run) for run in shown], next_cursor=more)


async def request_page(
    conn: Connection, wanted: InboxFilter, *, limit: int, after: tuple[str, str] | None = None
) -> Page[RequestItem]:
    """Return one page of the inbox: pending requests oldest first, others newest first."""
    found = await requests.page(conn, wanted, limit=limit + 1, after=after)
    shown = found[:limit]
    more = encode_cursor(*requests.key_of(wanted, shown[-1])) if len(found) > limit else None
    return Page(items=[request_item(request) for request in shown], next_cursor=more)


async def run_detail(conn: Connection, run_id: str) -> RunDetail:
    """Return a run with its steps and calls; raises NotFoundError."""
    run = await existing_run(conn, run_id)
    taken = await steps.of_run(conn, run_id)
    # One walk gives every message of the run: its last response hangs below all the others.
    path = await messages.path_to(conn, taken[-1].assistant_message_id if taken else None)
    return RunDetail(
        **run_summary(run).model_dump(),
        steps=await step_views(conn, run, taken, path),
        final_text=await _final_text(conn, run, path),
        parent=await _parent_call(conn, run),
        waiting_messages=[
            WaitingMessage.model_validate(each)
            for each in (await queued_messages.waiting(conn, run_id) if run.status == "running" else [])
        ],
        own=world_view(await overrides.get(conn, run.world)),
        schedule_name=await _schedule_name(conn, run),
    )


async def _schedule_name(conn: Connection, run: Run) -> str | None:
    schedule = None if run.schedule_id is None else await schedules.get(conn, run.schedule_id)
    return None if schedule is None else schedule.name


async def request_detail(conn: Connection, request_id: str) -> RequestDetail:
    """Return a request with its decision, call, run and conversation so far; raises NotFoundError."""
    request = await existing_request(conn, request_id)
    run = await existing_run(conn, request.run_id)
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    step = await steps.get(conn, request.run_id, call.step) if call else None
    result = call.settled_result if call else None
    execution = await executions.get(conn, request.run_id, request.tool_call_id)
    content = await requests.decision(conn, request.decision_id) if request.decision_id else None
    asked = [each.id for each in await requests.of_call(conn, request.run_id, request.tool_call_id, kind=request.kind)]
    given = await approvals.of_request(conn, request_id) if request.quorum > 1 else []
    head = step.assistant_message_id if step else run.head_message_id
    return RequestDetail(
        **request_item(request).model_dump(),
        manifest=request.tool,
        agent_words=request.agent_words,
        preview_kind=request.preview_kind,
        preview=request.preview,
        not_by=request.not_by,
        ask_terms=request.ask_terms,
        given=[ApprovalView.model_validate(each) for each in given],
        allowed_verbs=list(request.ask_terms.verbs(request.kind)) if request.status == "pending" else [],
        decision=_decision_view(request, content),
        execution=execution.state if execution else "not_started",
        partial_output=execution.partial_output if execution else "",
        edited_input=call.edited_input if call else None,
        result=result,
        presentation=presentation_of(call, result) if call else None,
        in_part=in_part(call, result) if call else None,
        precondition=request.precondition,
        instead_of=_neighbour(request, asked, -1),
        replaced_by=_neighbour(request, asked, 1),
        earlier=await _earlier(conn, _neighbour(request, asked, -1)),
        judged=Verdict.model_validate_json(call.verdict).judged if call and call.verdict else None,
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


def request_item(request: ListedRequest) -> RequestItem:
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


def progress_view(said: Progress) -> ProgressView:
    """Return progress as streams send it."""
    return ProgressView.model_validate(said)


def delta_view(said: Deltas) -> DeltaView:
    """Return what a model says as streams send it."""
    return DeltaView.model_validate(said)


async def _final_text(conn: Connection, run: Run, path: Sequence[StoredMessage]) -> str:
    """Return a completed run's answer, which is its head: the last response, or what a call that finishes gave."""
    if run.status != "completed":
        return ""
    read = next((each.message for each in path if each.id == run.head_message_id), None)
    return (await messages.get(conn, run.head_message_id) if read is None else read).text


async def _parent_call(conn: Connection, run: Run) -> ParentCall | None:
    """Return the call that a sub-agent's run answers, with its place on its run's page."""
    if run.parent_run_id is None or run.parent_tool_call_id is None:
        return None
    parent = await runs.get(conn, run.parent_run_id)
    call = await calls.get(conn, run.parent_run_id, run.parent_tool_call_id)
    if parent is None or call is None:
        return None
    return ParentCall(
        run_id=parent.id,
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        agents=agents_path(parent.path, parent.agent),
        step=call.step,
        place=call.position + 1,
    )


def _neighbour(request: Request, asked: Sequence[str], side: Literal[-1, 1]) -> str | None:
    """Return the approval before or after this one among those of its call.

    A call has more than one only when a person's approval did not count any more by the time it was to run. Questions
    about a lost call's outcome come one after the other, too, and none of them takes another's place.
    """
    if request.kind != "approval":
        return None
    place = asked.index(request.id) + side
    return asked[place] if 0 <= place < len(asked) else None


async def _earlier(conn: Connection, request_id: str | None) -> EarlierApproval | None:
    request = None if request_id is None else await requests.get(conn, request_id)
    if request is None or request.decided_by is None or request.decided_at is None:
        return None
    return EarlierApproval(
        request_id=request.id,
        decided_by=request.decided_by,
        decided_at=request.decided_at,
        precondition=request.precondition,
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
