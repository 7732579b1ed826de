"""Everyone whose order led to a run's calls: where a rule wants other eyes, each of them counts as the starter."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, or_, select

from turngate.store.database import Connection
from turngate.store.events.events import SYSTEM
from turngate.store.runs.runs import Run
from turngate.store.tables import events, runs

ORDERS: Final = ("run.started", "message.queued", "run.model_switched")
"""Events of runs with whose order it was; a model that a call of the agent's switched to is no one's."""
MAY_STEER: Final = ("request.decided", "request.superseded", "run.interrupted")
"""Events of runs of which those count whose words or arguments the model reads: they steer, or have a reason in words."""
ORDERS_OF_SCHEDULE: Final = ("schedule.created", "schedule.changed")


async def starters_of(conn: Connection, run: Run, *, until: str) -> frozenset[str]:
    """Return who started, messaged, forked, retried, rescheduled or chose the model of what led to a run's calls.

    Also who edited or answered there, or rejected or interrupted with words. The log says it, not the rows that can be changed.
    That is the run, the others of its conversation, and those that these continue, fork, work for or let work. ``until``: what
    was ordered after this instant led to nothing that was asked before.
    """
    known, new = set[str](), {run.conversation_id}
    while new:
        known |= new
        new = await _conversations_around(conn, new) - known
    those = select(runs.c.id).where(runs.c.conversation_id.in_(known))  # the events tell when
    orders = await _payloads(conn, events.c.run_id.in_(those) & events.c.type.in_(ORDERS), until=until)
    others = await _payloads(conn, events.c.run_id.in_(those) & events.c.type.in_(MAY_STEER), until=until)
    orders += [each for each in others if each.get("steers") or "reason" in each.get("words", {})]
    schedule_ids = {each["schedule_id"] for each in orders if each.get("schedule_id")}
    if schedule_ids:
        changes = (events.c.run_id == SYSTEM) & events.c.type.in_(ORDERS_OF_SCHEDULE)
        of_all = await _payloads(conn, changes, until=until)
        orders += [each for each in of_all if each["schedule_id"] in schedule_ids]
    names = {run.started_by} | {each.get(name) for each in orders for name in ("by", "started_by")}
    return frozenset(each for each in names if each)


async def _column(conn: Connection, query: Select[Any]) -> list[Any]:
    return list((await conn.execute(query)).scalars())


async def _payloads(conn: Connection, which: ColumnElement[bool], *, until: str) -> list[dict[str, Any]]:
    query = select(events.c.payload).where(which, events.c.created_at <= until)
    return [json.loads(each) for each in await _column(conn, query)]


async def _conversations_around(conn: Connection, conversations: set[str]) -> set[str]:
    """Return the conversations of the runs that these continue, fork or work for, and of those that work for these."""
    here = runs.c.conversation_id.in_(conversations)
    led_here = or_(
        runs.c.id.in_(select(runs.c.parent_run_id).where(here)),
        runs.c.id.in_(select(runs.c.forked_from_run_id).where(here)),
        runs.c.parent_run_id.in_(select(runs.c.id).where(here)),
    )
    return set(await _column(conn, select(runs.c.conversation_id).where(led_here).distinct()))
