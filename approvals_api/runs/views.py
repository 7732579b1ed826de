"""Runs and conversations for people, put together from the store. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.paging import one_page
from turngate.approvals_api.retention.erase import erased_of
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.overrides import overrides_view
from turngate.approvals_api.runs.step_views import step_views
from turngate.domain.errors import NotFoundError
from turngate.domain.runs.run_filter import EVERY_RUN, RunFilter
from turngate.domain.tools.defaults import Defaults, for_readers
from turngate.store import agents
from turngate.store.database import Connection
from turngate.store.events.events import Event
from turngate.store.live.deltas import Deltas
from turngate.store.live.progress import Progress
from turngate.store.runs import calls, messages, overrides, queued_messages, runs, steps
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.runs import Run
from turngate.store.schedules import schedules
from turngate.wire.agents import AgentView, agents_path
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.people import names_in
from turngate.wire.runs import MessageView, ParentCall, RunDetail, RunSummary, WaitingMessage
from turngate.wire.view import Page

RUN_TEXTS: Final = ("task", "reason", "pause_reason")
"""Of a run in a list: what a person or a program wrote into it."""


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
        for agent in await agents.current(conn)
    ]


async def run_page(
    conn: Connection,
    wanted: RunFilter = EVERY_RUN,
    *,
    limit: int,
    before: tuple[str, str] | None = None,
    started_by: str | None = None,
) -> Page[RunSummary]:
    """Return one page of runs, newest first; of a search often fewer than ``limit``. ``started_by`` None: everyone's."""
    rows = await runs.page(conn, wanted, limit=limit + 1, before=before, started_by=started_by)
    listed, more = one_page(rows, limit)
    masks = await Masks.of(conn, [run.id for run in listed])
    items = [masks.view(run_summary(run), *RUN_TEXTS) for run in listed]
    # What people may not see, they may not find: a search that finds a secret confirms a guess of it.
    return Page(items=[each for each in items if wanted.has_words_in(*_texts(each))], next_cursor=more)


def _texts(run: RunSummary) -> tuple[str, ...]:
    names = (run.id, run.agent, run.path, run.error_class, run.started_by, run.conversation_id)
    return *names, run.task, run.reason


async def run_detail(conn: Connection, run_id: str) -> RunDetail:
    """Return a run with its steps and calls; raises NotFoundError."""
    run = await existing_run(conn, run_id)
    taken = await steps.of_run(conn, run_id)
    # One walk yields every message of the run: its last response is a descendant of all the others.
    path = await messages.path_to(conn, taken[-1].assistant_message_id if taken else None)
    masks = await Masks.of_run(conn, run, path)
    path = [masks.message(each) for each in path]
    return RunDetail(
        **masks.view(run_summary(run), *RUN_TEXTS).model_dump(),
        steps=await step_views(conn, run, taken, path, masks),
        final_text=masks.text(await _final_text(conn, run, path)),
        parent=await _parent_call(conn, run),
        waiting_messages=[
            masks.view(WaitingMessage.model_validate(each), "text")
            for each in (await queued_messages.waiting(conn, run_id) if run.status == "running" else [])
        ],
        own=overrides_view(await overrides.get(conn, run.world)),
        schedule_name=await _schedule_name(conn, run),
        erased=await erased_of(conn, run),
    )


async def _schedule_name(conn: Connection, run: Run) -> str | None:
    schedule = None if run.schedule_id is None else await schedules.get(conn, run.schedule_id)
    return None if schedule is None else schedule.name


async def conversation_messages(conn: Connection, conversation_id: str) -> list[MessageView]:
    """Return the conversation from its first message to its head; raises NotFoundError."""
    if not await messages.conversation_exists(conn, conversation_id):
        raise NotFoundError(f"there is no conversation {conversation_id!r}")
    path = await messages.path_to(conn, await messages.head_of(conn, conversation_id))
    run_ids = {each.run_id for each in path if each.run_id is not None}
    masks = await Masks.of(conn, run_ids)
    return message_views([masks.message(each) for each in path], await calls.defaults_of_runs(conn, run_ids))


def run_summary(run: Run) -> RunSummary:
    """Return a run as lists show it."""
    return Masks().view(RunSummary.model_validate(run), *RUN_TEXTS)


def message_views(
    stored: Sequence[StoredMessage], defaults: Mapping[tuple[str, str], Defaults] = MappingProxyType({})
) -> list[MessageView]:
    """Return messages with their place in the tree. ``defaults``: by run and tool call."""
    return [
        MessageView(
            id=message.id,
            parent_id=message.parent_id,
            run_id=message.run_id,
            step=message.step,
            created_at=message.created_at,
            role=message.message.role,
            parts=message.message.parts,
            defaults={
                each.tool_call_id: list(for_readers(of_call))
                for each in message.message.calls
                if (of_call := defaults.get((message.run_id or "", each.tool_call_id)))
            },
        )
        for message in stored
    ]


def event_view(event: Event) -> EventView:
    """Return an event as streams send it."""
    view = EventView.model_validate(event)
    people = names_in(view.payload)
    return view.model_copy(update={"people": people}) if people else view


def progress_view(progress: Progress) -> ProgressView:
    """Return progress as streams send it."""
    return ProgressView.model_validate(progress)


def delta_view(deltas: Deltas | DeltaView) -> DeltaView:
    """Return the words of a model as streams send them."""
    return DeltaView.model_validate(deltas)


async def _final_text(conn: Connection, run: Run, path: Sequence[StoredMessage]) -> str:
    """Return a completed run's answer, which is its head: the last response, or the answer of a call that finishes."""
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
