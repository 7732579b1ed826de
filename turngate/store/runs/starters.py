"""Everyone whose order led to a run's calls: where a rule wants other eyes, each of them counts as the starter."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import ColumnElement, Select, or_, select

from turngate.store.database import Connection
from turngate.store.events.events import SYSTEM
from turngate.store.runs.runs import Run
from turngate.store.tables import events, queued_messages, runs, schedule_fires, schedules


async def starters_of(conn: Connection, run: Run, *, until: str) -> frozenset[str]:
    """Return who started, messaged, forked, retried, rescheduled or chose the model of what led to a run's calls.

    That is the run, the others of its conversation, and those that these continue, fork, work for or let work. ``until``: what
    was ordered after this instant led to nothing that was asked before.
    """
    known, new = set[str](), {run.conversation_id}
    while new:
        known |= new
        new = await _conversations_around(conn, new) - known
    those = select(runs.c.id).where(runs.c.conversation_id.in_(known), runs.c.created_at <= until)
    of_schedules = select(schedule_fires.c.schedule_id).where(schedule_fires.c.run_id.in_(those))
    names = {run.started_by}
    for query in (
        select(runs.c.started_by).where(runs.c.id.in_(those)),
        select(queued_messages.c.sent_by).where(
            queued_messages.c.run_id.in_(those), queued_messages.c.created_at <= until
        ),
        select(schedule_fires.c.fired_by).where(schedule_fires.c.run_id.in_(those)),
        select(schedules.c.created_by).where(schedules.c.id.in_(of_schedules)),
    ):
        names.update(await _column(conn, query.distinct()))
    names |= await _signers(conn, (events.c.type == "run.model_switched") & events.c.run_id.in_(those), until=until)
    for schedule_id in await _column(conn, of_schedules.distinct()):
        changes = (events.c.run_id == SYSTEM) & (events.c.type == "schedule.changed")
        names |= await _signers(conn, changes, until=until, schedule_id=schedule_id)
    return frozenset(each for each in names if each)


async def _column(conn: Connection, query: Select[Any]) -> list[Any]:
    return list((await conn.execute(query)).scalars())


async def _signers(conn: Connection, which: ColumnElement[bool], *, until: str, **about: str) -> set[str]:
    """Return by whom these events were ordered. A switch by a call of the agent's is ordered by no one."""
    query = select(events.c.payload).where(which, events.c.created_at <= until)
    payloads = [json.loads(each) for each in await _column(conn, query)]
    return {each["by"] for each in payloads if each.get("by") and about.items() <= each.items()}


async def _conversations_around(conn: Connection, conversations: set[str]) -> set[str]:
    """Return the conversations of the runs that these continue, fork or work for, and of those that work for these."""
    here = runs.c.conversation_id.in_(conversations)
    led_here = or_(
        runs.c.id.in_(select(runs.c.parent_run_id).where(here)),
        runs.c.id.in_(select(runs.c.forked_from_run_id).where(here)),
        runs.c.parent_run_id.in_(select(runs.c.id).where(here)),
    )
    return set(await _column(conn, select(runs.c.conversation_id).where(led_here).distinct()))
