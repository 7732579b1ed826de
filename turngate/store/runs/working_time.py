"""How long a run worked so far, from the events of it and of the runs below it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select

from turngate.domain.runs.working_time import STARTS, TYPES, Moment, working_time
from turngate.domain.tools.control_calls import WAITS
from turngate.store.clock import from_text
from turngate.store.database import Connection
from turngate.store.runs.runs import Run
from turngate.store.tables import events, runs


@dataclass(frozen=True)
class WorkingTime:
    """How long a run worked, and how long it may. An extension counts from when it was granted."""

    used: timedelta
    most: timedelta

    @property
    def left(self) -> timedelta:
        """What is left of it."""
        return max(self.most - self.used, timedelta())


async def of(conn: Connection, run: Run, limit: timedelta, at: datetime) -> WorkingTime:
    """Return the working time of a run at a moment. ``limit``: as the agent's limits have it."""
    began = from_text(run.created_at)
    granted = [
        await worked(conn, run.id, began, each.at) + timedelta(seconds=float(each.by))
        for each in run.granted
        if each.budget == "wall_time"
    ]
    return WorkingTime(await worked(conn, run.id, began, at), max([limit, *granted]))


async def worked(conn: Connection, run_id: str, began: datetime, at: datetime) -> timedelta:
    """Return a run's working time until ``at``."""
    own = select(runs.c.id, runs.c.parent_run_id, runs.c.parent_tool_call_id).where(runs.c.id == run_id)
    tree = own.cte("tree", recursive=True)
    below = select(runs.c.id, runs.c.parent_run_id, runs.c.parent_tool_call_id)
    tree = tree.union_all(below.join(tree, runs.c.parent_run_id == tree.c.id))
    of_tree = list(await conn.execute(select(tree)))
    rows = await conn.execute(
        select(events.c.run_id, events.c.type, events.c.payload, events.c.created_at)
        .where(events.c.run_id.in_([each.id for each in of_tree]), events.c.type.in_(sorted(TYPES)))
        .order_by(events.c.seq)
    )
    moments = [_moment(row.run_id, row.type, json.loads(row.payload), row.created_at) for row in rows]
    return working_time(
        moments, began, at, sub_agents={(each.parent_run_id, each.parent_tool_call_id) for each in of_tree}
    )


def _moment(run_id: str, kind: str, payload: dict[str, object], created_at: str) -> Moment:
    key = payload.get("request_id") if kind.startswith("request.") else payload.get("tool_call_id")
    on_timer = kind == STARTS and payload.get("signal") == WAITS
    return Moment(run_id, kind, str(key), from_text(created_at), on_timer)
