"""Calls that are the same as one that waits: another that waits, too, and those that ran lately. One query for a whole list.

Found by ``repeat_key``: pending requests by their arguments, executions by those that ran, whatever let them through. In another
run only those of the last hour count, and those that may have happened. One that was approved and is
about to start is looked for among the approvals that were decided last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, get_args

from sqlalchemy import ColumnElement, FromClause, Select, bindparam, exists, func, literal_column, select, union_all

from turngate.domain.requests import ExecutionState
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import calls, executions, requests
from turngate.store.texts import among, listed

MOST_RECENT: Final = 500
"""Decided requests that are looked through for a call that is about to start, the newest."""
RECENT: Final = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class SameCall:
    """A call that is the same. ``request_id``: of one that waits. ``at``: when another was approved, started or ended."""

    state: Literal["waits", "approved"] | ExecutionState
    request_id: str | None = None
    at: str | None = None


# Of an index over key, state and start all columns are used only where states are named.
_STATES: Final[list[ColumnElement[str]]] = [literal_column(f"'{each}'") for each in get_args(ExecutionState)]


def may_have_happened(execution: FromClause) -> ColumnElement[bool]:
    """Build the condition that no one knows whether it took effect, and no one has approved the same call again since (I3)."""
    later = executions.alias()
    approved_since = exists().where(
        later.c.repeat_key == execution.c.repeat_key,
        later.c.state.in_(_STATES),
        later.c.decision_id.is_not(None),
        later.c.started_at > execution.c.ended_at,
    )
    return (execution.c.state == literal_column("'unknown'")) & ~approved_since


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


def _ran(key: ColumnElement[str], *also: ColumnElement[bool]) -> Select[Any]:
    """Build the search for executions of the same arguments. ``key``: the column that holds it."""
    another = (executions.c.run_id != _ASKING.c.run_id) | (executions.c.tool_call_id != _ASKING.c.tool_call_id)
    return (
        select(
            _ASKING.c.id,
            executions.c.state,
            func.max(func.coalesce(executions.c.ended_at, executions.c.started_at)).label("at"),
        )
        .join_from(_ASKING, executions, key == _ASKING.c.repeat_key)
        .where(another, *also)
        .group_by(_ASKING.c.id, executions.c.state)
    )


_KEY = executions.c.repeat_key
_LATELY = _ran(_KEY, executions.c.state.in_(_STATES), executions.c.started_at >= bindparam("since"))
# By the run: of one key there may be many more executions than of a run, so here its index mustn't be used.
_IN_RUN = _ran(_KEY.op("||")(literal_column("''")), executions.c.run_id == _ASKING.c.run_id)
_UNKNOWN = _ran(_KEY, may_have_happened(executions))
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
_STARTED = (
    select(executions.c.run_id)
    .where(executions.c.run_id == _RECENT.c.run_id, executions.c.tool_call_id == _RECENT.c.tool_call_id)
    .exists()
)
_ABOUT_TO_RUN = (
    select(_ASKING.c.id, literal_column("'approved'").label("state"), func.max(_RECENT.c.decided_at).label("at"))
    .join_from(_ASKING, _RECENT, _RECENT.c.repeat_key == _ASKING.c.repeat_key)
    .join(calls, (calls.c.run_id == _RECENT.c.run_id) & (calls.c.tool_call_id == _RECENT.c.tool_call_id))
    .where(_RECENT.c.verb == literal_column("'approve'"), calls.c.result.is_(None), ~_STARTED, ~_ASKED_AGAIN)
    .group_by(_ASKING.c.id)
)
_SAME = union_all(
    select(_ASKING.c.id, literal_column("'waits'").label("state"), _WAITING.label("at")),
    _LATELY,
    _IN_RUN,
    _UNKNOWN,
    _ABOUT_TO_RUN,
)


async def same_calls(conn: Connection, request_ids: Iterable[str]) -> dict[str, list[SameCall]]:
    """Return by pending approval the calls that are the same.

    They are one that waits, the latest of those that ran or will, and the latest that may have happened.
    """
    values = {"requests": listed(request_ids), "since": as_text(now() - RECENT)}
    same: dict[str, dict[str, SameCall]] = {}
    for row in await conn.execute(_SAME, values):
        of_request = same.setdefault(row.id, {})
        if row.at is None:
            continue
        if row.state == "waits":
            of_request["waits"] = SameCall(state="waits", request_id=row.at)
            continue
        for place in ("latest", *(["unknown"] if row.state == "unknown" else [])):
            if place not in of_request or row.at > (of_request[place].at or ""):
                of_request[place] = SameCall(state=row.state, at=row.at)
    return {request_id: list(dict.fromkeys(by_place.values())) for request_id, by_place in same.items()}
