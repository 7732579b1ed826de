"""The inbox's SQL: which rows a filter means, in which order, and where the next page begins."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Select,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from turngate.domain.runs.inbox import NOBODY, InboxFilter
from turngate.store.clock import as_text, now
from turngate.store.tables import requests

if TYPE_CHECKING:
    from turngate.store.requests.requests import ListedRequest

# Written out, not bound: only so do the planners see that an index of the pending requests alone will do.
_PENDING = requests.c.status == literal_column("'pending'")
KEPT_QUERIES: Final = 256
"""Building a query costs more than running it, and people look through the same few filters all day."""
_ENDED = requests.c.status != literal_column("'pending'")


@lru_cache(maxsize=KEPT_QUERIES)
def page_query(wanted: InboxFilter, columns: tuple[Column[Any], ...], *, limit: int, resumed: bool) -> Select[Any]:
    """Return the query of one page: pending requests oldest first, ended ones by their end, newest first, ``all`` newest first.

    ``columns``: of each request. ``resumed``: it begins after a request seen before. Run it with :func:`values_of`.
    """
    instant, newest_first = _order(wanted)
    query = select(*columns).where(*_conditions(wanted)).limit(limit)
    if resumed:
        seen, place = tuple_(bindparam("seen_at"), bindparam("seen_id")), tuple_(instant, requests.c.id)
        query = query.where(place < seen if newest_first else place > seen)
    if newest_first:
        return query.order_by(instant.desc(), requests.c.id.desc())
    return query.order_by(instant, requests.c.id)


@lru_cache(maxsize=KEPT_QUERIES)
def count_query(wanted: InboxFilter) -> Select[int]:
    """Return the query of how many there are on all pages. Run it with :func:`values_of`."""
    return select(func.count()).select_from(requests).where(*_conditions(wanted))


def values_of(wanted: InboxFilter, after: tuple[str, str] | None = None) -> dict[str, str]:
    """Return the values that the filter's queries are run with. ``after``: the :func:`key_of` the last request seen."""
    values = {} if wanted.claimed is None else {"at": as_text(now())}
    return values if after is None else {**values, "seen_at": after[0], "seen_id": after[1]}


def key_of(wanted: InboxFilter, request: ListedRequest) -> tuple[str, str]:
    """Return a request's place in the filter's order: an instant, then its id."""
    instant, _newest_first = _order(wanted)
    return str(getattr(request, instant.name)), request.id


def _order(wanted: InboxFilter) -> tuple[Column[str], bool]:
    if wanted.status == "pending":
        return requests.c.created_at, False
    return (requests.c.created_at if wanted.status == "all" else requests.c.decided_at), True


def _conditions(wanted: InboxFilter) -> list[ColumnElement[bool]]:
    found = list(_status(wanted))
    exactly = {
        "kind": wanted.kind,
        "agent": wanted.agent,
        "tool_name": wanted.tool,
        "risk": wanted.risk,
        "rule": wanted.rule,
        "run_id": wanted.run_id,
    }
    found.extend(requests.c[name] == value for name, value in exactly.items() if value is not None)
    if wanted.claimed is not None:
        found.append(_claimed(wanted.claimed))
    if wanted.parked is not None:
        found.append(requests.c.parked_at.is_not(None) if wanted.parked else requests.c.parked_at.is_(None))
    return found


def _status(wanted: InboxFilter) -> list[ColumnElement[bool]]:
    match wanted.status:
        case "all":
            return []
        case "pending":
            return [_PENDING]
        case "decided":
            return [_ENDED]
        case status:
            return [_ENDED, requests.c.status == status]


def _claimed(name: str) -> ColumnElement[bool]:
    at: BindParameter[str] = bindparam("at")
    if name == NOBODY:
        return or_(requests.c.claimed_until.is_(None), requests.c.claimed_until <= at)
    return (requests.c.claimed_by == name) & (requests.c.claimed_until > at)
