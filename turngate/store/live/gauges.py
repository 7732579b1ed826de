"""What the store shows of requests, runs and deliveries, as numbers for a monitor. Each query reads a bounded number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import and_, case, exists, func, literal, select

from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.sequences import NEWEST_EVENT
from turngate.store.tables import calls, events, executions, notification_cursors, requests, runs

MOST_REQUESTS: Final = 20_000
"""The most urgent ones. Where more wait, the rest is missing in every number but the total."""
MOST_RUNS: Final = 2_000
"""A sample, where more are live."""
MOST_CHANNELS: Final = 50

CAUSES: Final = ("interrupt", "resume", "person", "sub_agent", "timer", "tool", "model_or_worker")
"""What a live run may wait for."""

Age = Literal["5m", "1h", "1d", "older"]
AGES: Final[dict[Age, timedelta]] = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1), "1d": timedelta(days=1)}
"""Younger than this; else older than all of them."""

_URGENT = (
    select(requests.c.kind, requests.c.tool_name, requests.c.risk, requests.c.created_at)
    .where(requests.c.status == "pending")
    .order_by(requests.c.urgent_at)
    .limit(MOST_REQUESTS)
    .subquery()
)
_LIVE = (
    select(runs.c.id, runs.c.created_at, runs.c.event_count, runs.c.paused_at, runs.c.interrupted_at)
    .where(runs.c.status == "running")
    .order_by(
        runs.c.conversation_id
    )  # as the index of the live ones is: by time, a database would read those that ended, too
    .limit(MOST_RUNS)
    .subquery()
)


@dataclass(frozen=True, kw_only=True)
class PendingRequests:
    """Pending requests that are alike. ``oldest_at``: when the first of them was opened."""

    kind: str
    tool: str
    risk: str
    age: Age
    count: int
    oldest_at: str


@dataclass(frozen=True, kw_only=True)
class LiveRuns:
    """Live runs that wait for the same. ``silent_since``: the newest event of the one that was silent the longest."""

    waits_for: str
    count: int
    silent_since: str


async def pending_requests(conn: Connection, at: datetime) -> list[PendingRequests]:
    """Return the pending requests in groups."""
    older = [(_URGENT.c.created_at > as_text(at - span), literal(age)) for age, span in AGES.items()]
    aged = select(_URGENT, case(*older, else_="older").label("age")).subquery()
    groups = (aged.c.kind, aged.c.tool_name, aged.c.risk, aged.c.age)
    rows: Any = await conn.execute(select(*groups, func.count(), func.min(aged.c.created_at)).group_by(*groups))
    return [
        PendingRequests(kind=kind, tool=tool, risk=risk, age=age, count=int(count), oldest_at=oldest_at)
        for kind, tool, risk, age, count, oldest_at in rows
    ]


async def live_runs(conn: Connection) -> list[LiveRuns]:
    """Return the live runs by what they wait for, as far as the store says.

    ``model_or_worker``: the engine has to do the next thing. It asks a model, or no worker has taken the run's task yet.
    """
    of_run = executions.c.run_id == _LIVE.c.id, executions.c.state == "executing"
    running = select(literal(1)).select_from(executions).where(*of_run)
    call = and_(calls.c.run_id == executions.c.run_id, calls.c.tool_call_id == executions.c.tool_call_id)
    of_call = select(literal(1)).select_from(executions.join(calls, call)).where(*of_run, calls.c.result.is_(None))
    pending = select(literal(1)).where(requests.c.run_id == _LIVE.c.id, requests.c.status == "pending")
    waits_for = case(
        (_LIVE.c.interrupted_at.is_not(None), "interrupt"),
        (_LIVE.c.paused_at.is_not(None), "resume"),
        (exists(pending), "person"),
        (exists(of_call.where(calls.c.child_run_id.is_not(None))), "sub_agent"),
        (exists(of_call.where(calls.c.signal.is_not(None))), "timer"),
        (exists(running), "tool"),
        else_="model_or_worker",
    ).label("waits_for")
    newest = and_(events.c.run_id == _LIVE.c.id, events.c.run_seq == _LIVE.c.event_count)
    since = func.coalesce(events.c.created_at, _LIVE.c.created_at).label("since")
    looked = select(waits_for, since).select_from(_LIVE.outerjoin(events, newest)).subquery()
    silent = func.min(looked.c.since)
    rows: Any = await conn.execute(select(looked.c.waits_for, func.count(), silent).group_by(looked.c.waits_for))
    return [LiveRuns(waits_for=cause, count=int(count), silent_since=since) for cause, count, since in rows]


async def newest_event(conn: Connection) -> int:
    """Return how many events there are."""
    return int((await conn.execute(NEWEST_EVENT)).scalar_one())


async def cursors(conn: Connection) -> dict[str, int]:
    """Return channel → the newest event that it has read."""
    query = select(notification_cursors.c.channel, notification_cursors.c.last_seq)
    rows: Any = await conn.execute(query.order_by(notification_cursors.c.last_seq).limit(MOST_CHANNELS))
    return {channel: int(seq) for channel, seq in rows}
