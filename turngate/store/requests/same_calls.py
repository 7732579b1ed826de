"""Calls that are the same as one that waits: another that waits, too, and those that ran lately. One query for a whole list.

Found by ``repeat_key``: pending requests by its index, those of the same run by the calls', those of other runs among the
approvals that were decided last. So nothing is found that ran in another run long ago, or there without a person's approval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from sqlalchemy import bindparam, func, literal_column, select, union_all

from turngate.domain.requests import ExecutionState
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import calls, executions, requests
from turngate.store.texts import among, listed

MOST_RECENT: Final = 500
"""Approvals of other runs that are looked through, the newest."""
RECENT: Final = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class SameCall:
    """A call that is the same. ``request_id``: of one that waits. ``at``: when another was approved, started or ended."""

    state: Literal["waits", "approved"] | ExecutionState
    request_id: str | None = None
    at: str | None = None


_ASKING = (
    select(requests.c.id, requests.c.run_id, requests.c.tool_call_id, requests.c.repeat_key)
    .outerjoin(calls, (calls.c.run_id == requests.c.run_id) & (calls.c.tool_call_id == requests.c.tool_call_id))
    .where(
        requests.c.id.in_(among("requests")),
        requests.c.status == literal_column("'pending'"),
        requests.c.kind == literal_column("'approval'"),
        requests.c.repeat_key != literal_column("''"),
        func.coalesce(calls.c.effect, "once") != literal_column("'read'"),
    )
    .cte("asking")
)
_OTHER = requests.alias("other")
_WAITING = (
    select(_OTHER.c.id)
    .where(
        _OTHER.c.repeat_key == _ASKING.c.repeat_key,
        _OTHER.c.status == literal_column("'pending'"),
        _OTHER.c.kind == literal_column("'approval'"),
        _OTHER.c.id != _ASKING.c.id,
    )
    .limit(literal_column("1"))
    .scalar_subquery()
)
_STATE = func.coalesce(executions.c.state, "approved").label("state")
_LATEST = func.max(func.coalesce(executions.c.ended_at, executions.c.started_at)).label("at")
_IN_RUN = (
    select(_ASKING.c.id, executions.c.state, _LATEST)
    .join_from(_ASKING, calls, (calls.c.run_id == _ASKING.c.run_id) & (calls.c.repeat_key == _ASKING.c.repeat_key))
    .join(executions, (executions.c.run_id == calls.c.run_id) & (executions.c.tool_call_id == calls.c.tool_call_id))
    .where(calls.c.tool_call_id != _ASKING.c.tool_call_id, calls.c.edited_input.is_(None))
    .group_by(_ASKING.c.id, executions.c.state)
)
_RECENT = (
    select(requests.c.run_id, requests.c.tool_call_id, requests.c.repeat_key, requests.c.verb, requests.c.decided_at)
    .where(requests.c.status != literal_column("'pending'"), requests.c.decided_at >= bindparam("since"))
    .order_by(requests.c.decided_at.desc(), requests.c.id.desc())
    .limit(literal_column(str(MOST_RECENT)))
    .cte("recent")
)
_ASKED_AGAIN = (
    select(_OTHER.c.id)
    .where(
        _OTHER.c.run_id == _RECENT.c.run_id,
        _OTHER.c.tool_call_id == _RECENT.c.tool_call_id,
        _OTHER.c.status == literal_column("'pending'"),
    )
    .exists()
)
_APPROVED_LATELY = (
    select(
        _ASKING.c.id,
        _STATE,
        func.max(func.coalesce(executions.c.ended_at, executions.c.started_at, _RECENT.c.decided_at)).label("at"),
    )
    .join_from(_ASKING, _RECENT, _RECENT.c.repeat_key == _ASKING.c.repeat_key)
    .join(calls, (calls.c.run_id == _RECENT.c.run_id) & (calls.c.tool_call_id == _RECENT.c.tool_call_id))
    .outerjoin(
        executions,
        (executions.c.run_id == _RECENT.c.run_id) & (executions.c.tool_call_id == _RECENT.c.tool_call_id),
    )
    .where(
        _RECENT.c.verb == literal_column("'approve'"),
        # Its own earlier request is of another call that means the same only if it ran.
        (_RECENT.c.run_id != _ASKING.c.run_id) | (_RECENT.c.tool_call_id != _ASKING.c.tool_call_id),
        # Approved and neither started nor settled nor asked again: it is about to run.
        executions.c.state.is_not(None) | (calls.c.result.is_(None) & ~_ASKED_AGAIN),
    )
    .group_by(_ASKING.c.id, _STATE)
)
_SAME = union_all(
    select(_ASKING.c.id, literal_column("'waits'").label("state"), _WAITING.label("at")),
    _IN_RUN,
    _APPROVED_LATELY,
)


async def same_calls(conn: Connection, request_ids: Iterable[str]) -> dict[str, list[SameCall]]:
    """Return by pending approval the calls that are the same: one that waits, and the latest of those that ran or will."""
    values = {"requests": listed(request_ids), "since": as_text(now() - RECENT)}
    waiting: dict[str, SameCall] = {}
    latest: dict[str, SameCall] = {}
    for row in await conn.execute(_SAME, values):
        if row.at is None:
            continue
        if row.state == "waits":
            waiting[row.id] = SameCall(state="waits", request_id=row.at)
        elif row.id not in latest or row.at > (latest[row.id].at or ""):
            latest[row.id] = SameCall(state=row.state, at=row.at)
    both = {request_id: (waiting.get(request_id), latest.get(request_id)) for request_id in (*waiting, *latest)}
    return {request_id: [each for each in pair if each is not None] for request_id, pair in both.items()}
