"""Requests for people, put together from the store. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.paging import encode_cursor
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.consequences import consequences_of
from turngate.approvals_api.requests.eligibility import audience_of, require_as_opened, starters
from turngate.approvals_api.requests.reveal import unseen_secrets
from turngate.approvals_api.retention.erase import erased_of
from turngate.approvals_api.runs.budgets import time_words
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.step_views import in_part, presentation_of
from turngate.approvals_api.runs.views import RUN_TEXTS, message_views, run_summary
from turngate.domain.digest import derived_id
from turngate.domain.errors import NotFoundError
from turngate.domain.origins.origin import Origins
from turngate.domain.policy.judge import Judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.requests import LostStart, runs_the_call
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.text.credentials import cut_credential_at
from turngate.domain.tools.defaults import Defaults, for_readers
from turngate.domain.tools.external import is_external
from turngate.domain.tools.preview import HEAD_CHARS, first_line
from turngate.domain.tools.secrets import MASKED, mask_json
from turngate.domain.tools.summary import describe
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import Beside, Decision, ListedRequest, Request
from turngate.store.requests.same_calls import same_calls
from turngate.store.runs import calls, errors, executions, external_calls, messages, runs, steps
from turngate.store.runs.calls import Call
from turngate.store.runs.messages import StoredMessage
from turngate.wire.decisions import DecisionView
from turngate.wire.precedents import SameCallView
from turngate.wire.requests import (
    ApprovalView,
    CrashView,
    EarlierApproval,
    LatestMessage,
    RequestDetail,
    RequestItem,
    TaskView,
)
from turngate.wire.view import Page

MAX_MESSAGE_CHARS: Final = 500
CRASHES_SHOWN: Final = 10


async def request_page(
    conn: Connection, wanted: InboxFilter, *, limit: int, after: tuple[str, str] | None = None
) -> Page[RequestItem]:
    """Return one page of the inbox: pending requests in its order, others newest first."""
    rows = await requests.page(conn, wanted, limit=limit + 1, after=after)
    listed = rows[:limit]
    more = encode_cursor(*requests.key_of(wanted, listed[-1])) if len(rows) > limit else None
    return Page(items=await request_items(conn, listed), next_cursor=more)


async def request_detail(conn: Connection, request_id: str, principal: Principal | None = None) -> RequestDetail:
    """Return a request with its decision, call, run and conversation so far.

    ``principal``: who reads it; who may decide it sees all of its call but what its tool declares secret. None: someone else.

    Raises NotFoundError, or ConflictError (``changed_after_opening``) for one that waits and was changed in the database.
    """
    request = await _unchanged(conn, request_id)
    run = await existing_run(conn, request.run_id)
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    execution = await executions.get(conn, request.run_id, request.tool_call_id)
    request_ids = [
        each.id for each in await requests.of_call(conn, request.run_id, request.tool_call_id, kind=request.kind)
    ]
    approved = await requests.of_request(conn, request_id) if request.quorum > 1 else []
    crashes = await errors.of_call(conn, request.run_id, request.tool_call_id, limit=CRASHES_SHOWN)
    path = await _path_of(conn, run, call)
    masks = await Masks.of_run(conn, run, path)
    call = None if call is None else masks.call(call)
    result = call.settled_result if call else None
    path = [masks.message(each) for each in path]
    seen = await _seen_call(conn, principal, request, masks)
    (item,) = await request_items(conn, [request])
    detail = RequestDetail(
        **item.model_copy(update=seen.of_item).model_dump(),
        manifest=request.tool.without_examples,
        latest_message=await _latest_message_of(conn, run, path, masks),
        time_left=await time_words(conn, run) if request.status == "pending" else None,
        agent_words=_agent_words(request, call, path, masks),
        preview_kind=request.preview_kind,
        preview=seen.preview,
        unseen_secrets=list(seen.unseen),
        not_by=request.not_by,
        starters=sorted(await starters(conn, request)),
        ask_terms=request.ask_terms,
        given=[masks.view(ApprovalView.model_validate(each), "message") for each in approved],
        allowed_verbs=list(request.ask_terms.verbs(request.kind)) if request.status == "pending" else [],
        decision=await _decision_view(conn, request, masks),
        execution=execution.state if execution else "not_started",
        partial_output=masks.text(execution.partial_output) if execution else "",
        edited_input=call.edited_input if call else None,
        result=result,
        presentation=presentation_of(call, result) if call else None,
        in_part=in_part(call, result) if call else None,
        precondition=seen.masks.optional(request.depends_on),
        confinement=request.process_confinement,
        origins=seen.origins,
        starts_at=request.starts_at,
        instead_of=_neighbour(request, request_ids, -1),
        replaced_by=_neighbour(request, request_ids, 1),
        lost_start=_lost_start(request, seen.masks),
        earlier=await _earlier(conn, _neighbour(request, request_ids, -1), seen.masks),
        judged=_judgement(call, masks),
        crashes=[CrashView.model_validate(each) for each in crashes],
        run=masks.view(run_summary(run), *RUN_TEXTS),
        messages=message_views(path),
        erased=await erased_of(conn, run),
    )
    return detail.model_copy(update={"leads_to": consequences_of(detail)})


async def _unchanged(conn: Connection, request_id: str) -> Request:
    seen = await requests.as_opened(conn, request_id)
    if seen is None:
        raise NotFoundError(f"there is no request {request_id!r}")
    return require_as_opened(seen)


async def masks_of(conn: Connection, request: Request) -> Masks:
    """Return what hides the secrets that people may quote about a request. Raises NotFoundError."""
    run = await existing_run(conn, request.run_id)
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    return await Masks.of_run(conn, run, await _path_of(conn, run, call))


async def _path_of(conn: Connection, run: runs.Run, call: Call | None) -> list[StoredMessage]:
    """Return the conversation up to the response that has the call."""
    step = await steps.get(conn, run.id, call.step) if call else None
    return await messages.path_to(conn, step.assistant_message_id if step else run.head_message_id)


@dataclass(frozen=True, kw_only=True)
class SeenCall:
    """What one reader sees of the call that a request asks about.

    ``masks``: of the other texts about it. ``unseen``: where it has declared secrets that its decider has not had revealed.
    """

    input: str
    defaults: Defaults
    summary: str
    preview: str | None
    origins: Origins | None
    masks: Masks
    unseen: Sequence[str] = ()

    @property
    def of_item(self) -> dict[str, object]:
        """The members of the request's line in a list, in their place."""
        of_call = {"input": self.input, "input_chars": len(self.input), "defaults": list(self.defaults)}
        return {**of_call, "summary": self.summary}


async def seen_calls(conn: Connection, principal: Principal, opened: Sequence[Request]) -> list[SeenCall]:
    """Return what a principal sees of the calls that these requests ask about, in their order."""
    masks = await Masks.of_each(conn, {each.run_id for each in opened})
    return [await _seen_call(conn, principal, each, masks.get(each.run_id, Masks())) for each in opened]


async def _seen_call(conn: Connection, principal: Principal | None, request: Request, masks: Masks) -> SeenCall:
    """Return what someone sees of a call. ``masks``: of its run, for a reader."""
    audience, tool = await audience_of(conn, principal, request), request.tool
    masked = tool.masked_input(request.input, audience)
    defaults, secret = request.left_out, [each.pointer for each in masked.secrets]
    unseen: Sequence[str] = ()
    if principal is not None and audience == "decider":
        masks = masks.for_decider(masked)
        unseen = () if request.kind == "question" else await unseen_secrets(conn, request, principal.name)
    else:
        defaults = for_readers(defaults)
    summary = masks.optional(request.summary)
    if summary is None or (audience == "decider" and MASKED in summary):  # there is none, or it was stored for readers
        summary = await asyncio.to_thread(describe, tool, masked.text, None, defaults)
    origins = request.origins_of_arguments
    return SeenCall(
        input=masked.text,
        defaults=defaults,
        summary=summary,
        preview=masks.optional(request.preview),
        origins=None if origins is None else origins.masked(secret, masks.text),
        masks=masks,
        unseen=unseen,
    )


async def request_items(conn: Connection, listed: Sequence[ListedRequest]) -> list[RequestItem]:
    """Return requests as the inbox shows them, with the tasks that lead to them."""
    tasks = await _tasks_of(conn, listed)
    beside = await requests.beside(conn, [each.id for each in listed])
    same = await _same_calls(conn, listed)
    masks = await Masks.of_each(conn, {each.run_id for each in listed if each.masked_input is not None})
    views = {
        run_id: [TaskView(agent=task.agent, task=masks.get(run_id, Masks()).text(task.task)) for task in of_run]
        for run_id, of_run in tasks.items()
    }
    return [
        _item(each, beside[each.id], views.get(each.run_id, []), masks.get(each.run_id, Masks())).model_copy(
            update={"same_calls": same.get(each.id, [])}
        )
        for each in listed
    ]


async def _tasks_of(conn: Connection, listed: Sequence[ListedRequest]) -> dict[str, list[runs.RunTask]]:
    tasks = dict(await runs.tasks_of(conn, {each.run_id for each in listed if not is_external(each.agent)}))
    outside = {each.run_id: each.agent for each in listed if is_external(each.agent)}
    for run_id, conversation in (await external_calls.conversations_of(conn, outside)).items():
        first = next((each.text for each in conversation if each.author == "person"), None)
        tasks[run_id] = [] if first is None else [runs.RunTask(agent=outside[run_id], task=first[:MAX_MESSAGE_CHARS])]
    return tasks


async def _same_calls(conn: Connection, listed: Sequence[ListedRequest]) -> dict[str, list[SameCallView]]:
    waiting = [each.id for each in listed if each.status == "pending" and each.kind == "approval"]
    same = await same_calls(conn, waiting)
    return {request_id: [SameCallView.model_validate(each) for each in alike] for request_id, alike in same.items()}


def _item(request: ListedRequest, beside: Beside, tasks: list[TaskView], masks: Masks) -> RequestItem:
    preview_line, preview_more = _preview_line(beside, masks)
    is_masked = request.masked_input is not None
    text = request.shown_input if is_masked else mask_json(request.input).text
    return RequestItem.model_validate(
        {
            **vars(request),
            "input": text,
            "input_chars": len(text),
            "defaults": for_readers(request.left_out),
            "reason": masks.text(request.reason),
            "summary": masks.optional(request.summary),
            "preview_line": preview_line or None,
            "preview_more": preview_more,
            "preview_warns": beside.preview_kind == "warned",
            "step": beside.step,
            "doubts": beside.doubts,
            "not_run": masks.optional(beside.not_run),
            "tasks": tasks,
        }
    )


def _preview_line(beside: Beside, masks: Masks) -> tuple[str, str]:
    head = beside.preview_head
    cut = cut_credential_at(head) if len(head) >= HEAD_CHARS else None
    masked = masks.text(head) if cut is None else masks.text(head[:cut]) + MASKED
    return first_line(beside.preview_kind, masked, beside.preview_size)


def _agent_words(request: Request, call: Call | None, path: Sequence[StoredMessage], masks: Masks) -> str:
    """Return what the model said with the call. Without an approval, a question about a lost call has no copy of it."""
    if request.agent_words or request.kind != "outcome" or call is None or not path:
        return masks.text(request.agent_words)
    message = path[-1].message  # masked already
    return message.text if any(each.tool_call_id == call.tool_call_id for each in message.calls) else ""


def _lost_start(request: Request, masks: Masks) -> LostStart | None:
    start = request.start_that_was_lost
    return None if start is None else masks.view(start, "progress", "check_with")


async def _latest_message_of(
    conn: Connection, run: runs.Run, path: Sequence[StoredMessage], masks: Masks
) -> LatestMessage | None:
    """Return the newest message of a person; of an external call, the one that its program sent."""
    if not is_external(run.agent):
        return _latest_message(run, path)
    conversation = (await external_calls.conversations_of(conn, [run.id])).get(run.id, ())
    people = [each.text for each in conversation if each.author == "person"][1:]
    if not people:
        return None
    return LatestMessage(message_id="", text=masks.text(people[-1])[:MAX_MESSAGE_CHARS], created_at=run.created_at)


def _latest_message(run: runs.Run, path: Sequence[StoredMessage]) -> LatestMessage | None:
    """Return the newest message that a person sent to the run; None: nothing but the task.

    Messages of the engine have a step, except for a summary that a fork begins with.
    """
    for stored in reversed(path):
        if stored.id == run.input_message_id:
            break
        is_summary = stored.id == derived_id("msg", stored.run_id or "", "carried-over")
        if stored.message.role == "user" and stored.step is None and not is_summary:
            text = stored.message.text[:MAX_MESSAGE_CHARS]
            return LatestMessage(message_id=stored.id, text=text, created_at=stored.created_at)
    return None


def _judgement(call: Call | None, masks: Masks) -> Judgement | None:
    """Return the judge's opinion of a call; None: it gave none."""
    if call is None or not call.verdict:
        return None
    judged = Verdict.model_validate_json(call.verdict).judged
    return None if judged is None else masks.view(judged, "reason")


def _neighbour(request: Request, request_ids: Sequence[str], side: Literal[-1, 1]) -> str | None:
    """Return the approval before or after this one among those of its call.

    A call has more than one only if a person's approval no longer counted when the call was about to run. Questions about a
    lost call's outcome also follow each other, but none replaces another.
    """
    if request.kind != "approval":
        return None
    place = request_ids.index(request.id) + side
    return request_ids[place] if 0 <= place < len(request_ids) else None


async def _earlier(conn: Connection, request_id: str | None, masks: Masks) -> EarlierApproval | None:
    request = None if request_id is None else await requests.get(conn, request_id)
    if request is None or request.decided_by is None or request.decided_at is None:
        return None
    return EarlierApproval(
        request_id=request.id,
        decided_by=request.decided_by,
        decided_at=request.decided_at,
        precondition=masks.optional(request.depends_on),
    )


async def _decision_view(conn: Connection, request: Request, masks: Masks) -> DecisionView | None:
    """Return the winning answer; a decision without content has no row of its own."""
    if request.decision_id is None or request.verb is None or request.decided_by is None or request.decided_at is None:
        return None
    content = await requests.decision(conn, request.decision_id)
    unseen: list[str] = []
    if runs_the_call(request.kind, request.verb, content.outcome if content else None):
        edited = content.args if content and content.verb == "edit" else None
        unseen = await unseen_secrets(conn, request, request.decided_by, edited=edited, until=request.decided_at)
    return DecisionView(
        id=request.decision_id,
        verb=request.verb,
        args=_shown_args(request, content),
        message=masks.text(content.message) if content else "",
        outcome=content.outcome if content else None,
        decided_by=request.decided_by,
        decided_at=request.decided_at,
        looked_ms=content.looked_ms if content else None,
        seen_percent=content.seen_percent if content else None,
        unseen_secrets=unseen,
    )


def _shown_args(request: Request, content: Decision | None) -> str | None:
    """Return the arguments or the answer of a decision as people see them."""
    if content is None or content.args is None:
        return None
    tool = request.tool
    return (tool.masked_input if content.verb == "edit" else tool.masked_answer)(content.args).text
