"""The inbox's SQL: which rows a filter means, in which order, and where the next page begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, ColumnElement, Select, func, literal_column, or_, select, tuple_

from turngate.domain.inbox import NOBODY, InboxFilter
from turngate.store.clock import as_text, now
from turngate.store.tables import requests

if TYPE_CHECKING:
    from turngate.store.requests import Request

# Written out, not bound: only so do the planners see that an index of the pending requests alone will do.
_PENDING = requests.c.status == literal_column("'pending'")
_ENDED = requests.c.status != literal_column("'pending'")


def page_query(wanted: InboxFilter, *, limit: int, after: tuple[str, str] | None) -> Select[Any]:
    """Return the query of one page: pending requests oldest first, ended ones by their end, newest first, ``all`` newest first.

    ``after``: the :func:`key_of` the last request seen.
    """
    instant, newest_first = _order(wanted)
    query = select(requests).where(*_conditions(wanted)).limit(limit)
    if after is not None:
        seen, place = tuple_(*after), tuple_(instant, requests.c.id)
        query = query.where(place < seen if newest_first else place > seen)
    if newest_first:
        return query.order_by(instant.desc(), requests.c.id.desc())
    return query.order_by(instant, requests.c.id)


def count_query(wanted: InboxFilter) -> Select[int]:
    """Return the query of how many there are on all pages."""
    return select(func.count()).select_from(requests).where(*_conditions(wanted))


def key_of(wanted: InboxFilter, request: Request) -> tuple[str, str]:
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
    at = as_text(now())
    if name == NOBODY:
        return or_(requests.c.claimed_until.is_(None), requests.c.claimed_until <= at)
    return (requests.c.claimed_by == name) & (requests.c.claimed_until > at)
