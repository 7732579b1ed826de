"""Reads of the event log, for people and for exports: a page, a place by time, and all events as they were written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Subquery, bindparam, exists, func, literal, or_, select, union_all

from turngate.domain.runs.event_chain import ChainedEvent, ChainHead
from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.events.events import FOR_ALL_READERS, SYSTEM, Event, loaded
from turngate.store.tables import event_chains, events, requests, runs
from turngate.wire.events import AuditFilter
from turngate.wire.people import id_of

SCANNED_AT_ONCE: Final = 20_000
"""How many events one page searches. Rare ones take several pages, each of them quick."""
READ_AT_ONCE: Final = 1_000
CLOCKS_APART: Final = timedelta(minutes=5)
"""Several machines write events, each by its own clock: by this much a later event may be dated before an earlier one."""

_NEXT = events.alias("next_event")
_HEADS: Final = (
    select(chain.c.event_hash)
    .where(chain.c.id == events.c.run_id, chain.c.event_count == events.c.run_seq)
    .correlate(events)
    for chain in (runs, event_chains)
)
_NEXT_HASH: Final = func.coalesce(
    select(_NEXT.c.previous_hash)
    .where(_NEXT.c.run_id == events.c.run_id, _NEXT.c.run_seq == events.c.run_seq + 1)
    .scalar_subquery(),
    *(head.scalar_subquery() for head in _HEADS),
)
"""What the next event of the same chain, or else the chain's stored head, says that an event's hash is."""
_BEFORE: Final = events.alias("before")
_NEWEST_STEP: Final = (
    select(_BEFORE.c.run_seq)
    .where(_BEFORE.c.run_id == bindparam("run"), _BEFORE.c.type == "step.responded")
    .order_by(_BEFORE.c.run_seq.desc())
    .limit(1)
)
_WITH_NONCE: Final = (
    select(events, runs.c.nonce)
    .outerjoin(runs, runs.c.id == events.c.run_id)
    .where(events.c.hash == _NEXT_HASH)
    .order_by(events.c.seq)
)
_OF_NEWEST_STEP: Final = _WITH_NONCE.where(
    events.c.run_id == bindparam("run"), events.c.run_seq >= _NEWEST_STEP.scalar_subquery()
)


@dataclass(frozen=True, kw_only=True)
class AuditPage:
    """Some events, newest first. ``next_before``: where the next page begins, even if this one is empty; None: the end."""

    events: list[Event]
    next_before: int | None


async def page(
    conn: Connection, wanted: AuditFilter, *, limit: int, before: int | None = None, people: bool = True
) -> AuditPage:
    """Return the newest events that fit, from those with a ``seq`` below ``before``.

    ``people``: also logins, sessions and users, which only admins may read: a name that was typed at a login may be a
    password.
    """
    window = _window(wanted, before, await _upper(conn, wanted.until), await _lower(conn, wanted.since)).subquery()
    query = select(window).order_by(window.c.seq.desc()).limit(limit)
    if wanted.type is not None:
        query = query.where(window.c.type.like(_like(wanted.type), escape="\\"))
    query = query.where(*_in_payload(wanted, window))
    if not people:
        open_to_all = or_(*(window.c.type.startswith(each) for each in FOR_ALL_READERS))
        query = query.where(or_(window.c.run_id != SYSTEM, open_to_all))
    if wanted.since is not None:
        query = query.where(window.c.created_at >= as_text(wanted.since))
    if wanted.until is not None:
        query = query.where(window.c.created_at < as_text(wanted.until))
    rows = (await conn.execute(query)).mappings()
    matches = [loaded(row) for row in rows]
    if len(matches) == limit:
        return AuditPage(events=matches, next_before=matches[-1].seq)
    bounds = select(func.count().label("scanned"), func.min(window.c.seq).label("oldest"))
    searched = (await conn.execute(bounds)).one()
    return AuditPage(events=matches, next_before=searched.oldest if searched.scanned == SCANNED_AT_ONCE else None)


def _in_payload(wanted: AuditFilter, window: Subquery) -> list[ColumnElement[bool]]:
    """Return the conditions of payloads."""
    conditions = []
    if wanted.actor is not None:
        # The payload is JSON written in one way only, so this text is in it exactly when it is so. Not LIKE: SQLite's
        # takes Ann for ann.
        named = f'"by":{json.dumps(id_of(wanted.actor), ensure_ascii=False)}'
        conditions.append(func.replace(window.c.payload, named, "") != window.c.payload)
    if wanted.tool is not None:
        conditions.append(_of_tool(window, wanted.tool))
    return conditions


@dataclass(frozen=True, kw_only=True)
class RequestOfEvent:
    """What a sentence says of a request. ``summary``: of its call, masked; None: it has none."""

    tool_name: str
    summary: str | None
    created_at: str


@dataclass(frozen=True, kw_only=True)
class RunOfEvent:
    """What a chapter says of a run. ``task`` is not masked."""

    agent: str
    path: str
    task: str


async def requests_of(conn: Connection, request_ids: Collection[str]) -> dict[str, RequestOfEvent]:
    """Return these requests by id, without those that do not exist."""
    columns = (requests.c.id, requests.c.tool_name, requests.c.summary, requests.c.created_at)
    rows = await conn.execute(select(*columns).where(requests.c.id.in_(sorted(set(request_ids)))))
    return {
        row.id: RequestOfEvent(tool_name=row.tool_name, summary=row.summary, created_at=row.created_at) for row in rows
    }


async def runs_of(conn: Connection, run_ids: Collection[str]) -> dict[str, RunOfEvent]:
    """Return these runs by id, without those that do not exist."""
    rows = await conn.execute(select(runs.c.id, runs.c.agent, runs.c.path, runs.c.task).where(runs.c.id.in_(run_ids)))
    return {row.id: RunOfEvent(agent=row.agent, path=row.path, task=row.task) for row in rows}


async def seq_at(conn: Connection, instant: datetime) -> int:
    """Return the number of the first event at or after this instant; one above the newest when there is none."""
    low = await _first_from(conn, instant - CLOCKS_APART)
    at = as_text(instant)
    query = select(func.min(events.c.seq)).where(events.c.seq >= low, events.c.created_at >= at)
    seq = (await conn.execute(query)).scalar_one_or_none()
    return int(seq) if seq is not None else await _newest(conn) + 1


async def every(conn: Connection, *, since: int = 1, run_id: str | None = None) -> AsyncIterator[ChainedEvent]:
    """Yield every event from number ``since`` on, of all chains or of one, in order; read in batches."""
    query = select(events).order_by(events.c.seq).limit(READ_AT_ONCE)
    if run_id is not None:
        query = select(events).where(events.c.run_id == run_id).order_by(events.c.run_seq).limit(READ_AT_ONCE)
    count, last = READ_AT_ONCE, since - 1
    while count == READ_AT_ONCE:
        rows = (await conn.execute(query.where(events.c.seq > last))).mappings().all()
        for row in rows:
            yield ChainedEvent(**row)
        count, last = len(rows), max((row["seq"] for row in rows), default=last)


async def naming(
    conn: Connection, row_ids: Collection[str], *, chains: Select[Any] | Sequence[str], types: Collection[str] = ()
) -> tuple[list[ChainedEvent], set[str]]:
    """Return the events of these chains that name a row, oldest first, without what was added or changed past Turngate.

    With them the nonces of their runs. An event counts if its hash is over its content, and if the next one, or the chain's
    head, has that hash. ``types``: events that count without naming a row.
    """
    named = [events.c.payload.contains(_quoted(each), autoescape=True) for each in row_ids]
    query = _WITH_NONCE.where(events.c.run_id.in_(chains), or_(*named, events.c.type.in_(types)))
    return _unchanged((await conn.execute(query)).mappings())


async def naming_in_newest_step(
    conn: Connection, row_ids: Collection[str], *, run_id: str
) -> tuple[list[ChainedEvent], set[str]]:
    """Return what :func:`naming` does, of a run's events since its newest response: what it costs doesn't grow with the run."""
    rows = (await conn.look(_OF_NEWEST_STEP, {"run": run_id})).mappings()
    named = [_quoted(each) for each in row_ids]
    return _unchanged(row for row in rows if any(each in row["payload"] for each in named))


def _quoted(row_id: str) -> str:
    """Return how a payload has the id of a row."""
    return json.dumps(row_id, ensure_ascii=False)


def _unchanged(rows: Iterable[Mapping[Any, Any]]) -> tuple[list[ChainedEvent], set[str]]:
    columns = [dict(row) for row in rows]
    nonces = {str(row.pop("nonce") or "") for row in columns}
    return [each for each in (ChainedEvent(**row) for row in columns) if each.has_its_hash], nonces


async def hashes(conn: Connection, first: int, last: int) -> list[str]:
    """Return the hashes of the events numbered ``first`` to ``last``, in their order."""
    span = select(events.c.hash).where(events.c.seq.between(first, last)).order_by(events.c.seq)
    return list((await conn.execute(span)).scalars())


async def stored_heads(conn: Connection, *, since: int = 1) -> AsyncIterator[ChainHead]:
    """Yield the stored head of each chain with an event from number ``since`` on, by its run; read in batches."""
    heads = union_all(
        select(runs.c.id, runs.c.event_count, runs.c.event_hash),
        select(event_chains.c.id, event_chains.c.event_count, event_chains.c.event_hash),
    ).subquery()
    newest = (
        select(events.c.seq)
        .where(events.c.run_id == heads.c.id, events.c.run_seq == heads.c.event_count)
        .scalar_subquery()
    )
    # A chain whose newest event is missing is always included: that is the very thing to notice.
    query = select(heads).where(heads.c.event_count > 0, or_(literal(since) <= 1, newest.is_(None), newest >= since))
    query = query.order_by(heads.c.id).limit(READ_AT_ONCE)
    count, last = READ_AT_ONCE, ""
    while count == READ_AT_ONCE:
        rows = (await conn.execute(query.where(heads.c.id > last))).all()
        for row in rows:
            yield ChainHead(run_id=row.id, length=int(row.event_count), hash=str(row.event_hash))
        count, last = len(rows), rows[-1].id if rows else last


def actor_of(event: Event) -> str | None:
    """Return who caused the event; None: the engine."""
    by = event.payload.get("by")
    return by if isinstance(by, str) and by else None


def _of_tool(window: Subquery, tool: str) -> ColumnElement[bool]:
    """Return whether an event names this tool, or a request for a call of it."""
    named = f'"tool":{json.dumps(tool, ensure_ascii=False)}'
    about = literal('"request_id":"') + requests.c.id + '"'
    of_request = exists().where(
        requests.c.run_id == window.c.run_id,
        requests.c.tool_name == tool,
        func.replace(window.c.payload, about, "") != window.c.payload,
    )
    return or_(func.replace(window.c.payload, named, "") != window.c.payload, of_request)


def _window(wanted: AuditFilter, before: int | None, upper: int | None, lower: int | None) -> Select[Any]:
    """Return the query of the newest events to search. Those of one run have an index of their own."""
    query = select(events).limit(SCANNED_AT_ONCE)
    for bound in (before, upper):
        if bound is not None:
            query = query.where(events.c.seq < bound)
    if lower is not None:
        query = query.where(events.c.seq >= lower)
    if wanted.run_id is not None:
        return query.where(events.c.run_id == wanted.run_id).order_by(events.c.run_seq.desc())
    return query.order_by(events.c.seq.desc())


async def _upper(conn: Connection, until: datetime | None) -> int | None:
    return None if until is None else await _first_from(conn, until + CLOCKS_APART)


async def _lower(conn: Connection, since: datetime | None) -> int | None:
    return None if since is None else await _first_from(conn, since - CLOCKS_APART)


async def _first_from(conn: Connection, instant: datetime) -> int:
    """Return about where in the log an instant is: numbers have no gaps, so a binary search by key takes some twenty queries.

    About, because clocks differ; hence the callers' :data:`CLOCKS_APART`.
    """
    at, low, high = as_text(instant), 1, await _newest(conn) + 1
    while low < high:
        middle = (low + high) // 2
        query = select(events.c.created_at).where(events.c.seq <= middle).order_by(events.c.seq.desc()).limit(1)
        created_at = (await conn.execute(query)).scalar_one_or_none()
        if created_at is not None and created_at >= at:
            high = middle
        else:
            low = middle + 1
    return low


async def _newest(conn: Connection) -> int:
    return int((await conn.execute(select(func.max(events.c.seq)))).scalar_one() or 0)


def _like(pattern: str) -> str:
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")
