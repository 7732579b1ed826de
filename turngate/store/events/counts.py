"""What people and tools did in a span of the log, counted twice: from the events, and from the rows that they wrote.

Neither count looks at the other's source, so a row without its event, or an event without its row, makes them differ. A span is
by numbers of events; rows have instants, which may differ from their event's by a moment. So rows near an end of the span count
with their event.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, FromClause, Select, select, tuple_

from turngate.domain.digest import framed_sha256
from turngate.domain.runs.event_chain import ChainedEvent
from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.events.audit import CLOCKS_APART
from turngate.store.tables import calls, executions, requests
from turngate.store.tables import events as events_table

OPENED: Final = "requests opened"
DECIDED: Final = "decisions"
ENDED: Final = "requests ended by the system"
EXECUTED: Final = "executions started"
COUNTED: Final = (OPENED, DECIDED, ENDED, EXECUTED)
ENDINGS: Final = ("expired", "cancelled", "superseded")
DIFFERENCES_NAMED: Final = 50
"""How many differences are named; all are counted."""
ROWS_AT_ONCE: Final = 2_000
IDS_AT_ONCE: Final = 200

Key = tuple[str, str]
"""A request's run and id, or a call's run and id."""


@dataclass
class LogCounts:
    """Counts events, given in order of ``seq``; only those numbered ``first`` to ``last`` count."""

    first: int
    last: int
    seen: dict[str, dict[Key, str]] = field(default_factory=lambda: {what: {} for what in COUNTED})
    """What → key → by what it is counted: a kind and tool, a verb, a status, a tool."""
    requests_opened: dict[str, int] = field(default_factory=dict)
    """Request → the number of its event."""
    _hashes: list[str] = field(default_factory=list)

    def add(self, event: ChainedEvent) -> None:
        """Take the next event."""
        if not self.first <= event.seq <= self.last:
            return
        self._hashes.append(event.hash)
        kind = event.type.removeprefix("request.")
        if event.type not in {"request.opened", "request.decided", "execution.started"} and kind not in ENDINGS:
            return
        payload = payload_of(event)
        if event.type == "execution.started":
            key = event.run_id, str(payload.get("tool_call_id"))
            self.seen[EXECUTED].setdefault(key, str(payload.get("tool")))
            return
        key = event.run_id, str(payload.get("request_id"))
        if event.type == "request.opened":
            self.seen[OPENED][key] = f"{payload.get('kind')}: {payload.get('tool')}"
            self.requests_opened[key[1]] = event.seq
        elif event.type == "request.decided":
            self.seen[DECIDED][key] = str(payload.get("verb"))
        else:
            self.seen[ENDED][key] = kind

    @property
    def events_digest(self) -> str:
        """The SHA-256 over the hashes of the span's events in their order: what a signed head has of its own span."""
        return framed_sha256(*self._hashes)

    @property
    def population_digest(self) -> str:
        """The digest of the ids of all requests that were opened, sorted."""
        return framed_sha256(*sorted(self.requests_opened))

    def totals(self) -> dict[str, dict[str, int]]:
        """Return what → by what → how many."""
        return {what: dict(sorted(Counter(self.seen[what].values()).items())) for what in COUNTED}


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """What the rows say of the same span. ``by_risk``: of the requests opened; their events have a digest of it."""

    totals: Mapping[str, Mapping[str, int]]
    by_risk: Mapping[str, int]
    differences: Sequence[str]
    difference_count: int


_BY_TOOL: Final = calls.c.tool_name
_CALLED: Final = executions.join(
    calls, (calls.c.run_id == executions.c.run_id) & (calls.c.tool_call_id == executions.c.tool_call_id)
)
_OF_REQUEST: Final = (requests.c.run_id, requests.c.id)
_OF_CALL: Final = (executions.c.run_id, executions.c.tool_call_id)


@dataclass(frozen=True)
class _Rows:
    """The rows that events of one type write. ``at``: when; ``by``: by what they are counted."""

    key: tuple[Column[Any], Column[Any]]
    at: Column[Any]
    by: tuple[Column[Any], ...]
    table: FromClause = requests
    condition: ColumnElement[bool] | None = None

    async def within(self, conn: Connection, since: str, until: str) -> AsyncIterator[Sequence[Any]]:
        """Yield (run, id, instant, by what …) of the rows of a time."""
        query = self._query().where(self.at >= since, self.at < until)
        result = await conn.execute(query)
        for batch in result.partitions(ROWS_AT_ONCE):
            for row in batch:
                yield row

    async def of_keys(self, conn: Connection, keys: Sequence[Key]) -> AsyncIterator[Sequence[Any]]:
        """Yield the same of these rows."""
        for start in range(0, len(keys), IDS_AT_ONCE):
            for row in await conn.execute(
                self._query().where(tuple_(*self.key).in_(keys[start : start + IDS_AT_ONCE]))
            ):
                yield row

    def _query(self) -> Select[Any]:
        query = select(*self.key, self.at, *self.by).select_from(self.table)
        return query if self.condition is None else query.where(self.condition)


_ROWS: Final = {
    OPENED: _Rows(_OF_REQUEST, requests.c.created_at, (requests.c.kind, requests.c.tool_name)),
    DECIDED: _Rows(
        _OF_REQUEST, requests.c.decided_at, (requests.c.verb,), condition=requests.c.decision_id.is_not(None)
    ),
    ENDED: _Rows(_OF_REQUEST, requests.c.decided_at, (requests.c.status,), condition=requests.c.status.in_(ENDINGS)),
    EXECUTED: _Rows(_OF_CALL, executions.c.started_at, (_BY_TOOL,), table=_CALLED),
}
_EVENTS: Final = {
    OPENED: ("request.opened",),
    DECIDED: ("request.decided",),
    ENDED: tuple(f"request.{each}" for each in ENDINGS),
    EXECUTED: ("execution.started",),
}


async def count_rows(conn: Connection, log: LogCounts, since: datetime, until: datetime) -> RowCounts:
    """Count the rows of a time and compare them, one by one, with the events that ``log`` has counted.

    ``since``, ``until``: the instants at which the span's first event, and the first after it, were looked for.
    """
    problems = _Problems()
    totals: dict[str, dict[str, int]] = {}
    for what in _ROWS:
        counted = await _count(conn, what, log.seen[what], _Span(since, until), problems)
        totals[what] = dict(sorted(counted.items()))
    return RowCounts(
        totals=totals,
        by_risk=await _by_risk(conn, log),
        differences=tuple(problems.named),
        difference_count=problems.count,
    )


@dataclass(frozen=True)
class _Span:
    """The time of a span of events, within which a row is near its event."""

    since: datetime
    until: datetime

    @property
    def early(self) -> str:
        return as_text(self.since - CLOCKS_APART)

    @property
    def late(self) -> str:
        return as_text(self.until + CLOCKS_APART)

    def is_near_an_end(self, at: str) -> bool:
        return at < as_text(self.since + CLOCKS_APART) or at >= as_text(self.until - CLOCKS_APART)

    def has(self, at: str) -> bool:
        return as_text(self.since) <= at < as_text(self.until)


async def _count(
    conn: Connection, what: str, logged: Mapping[Key, str], span: _Span, problems: _Problems
) -> Counter[str]:
    counted: Counter[str] = Counter()
    open_keys = dict(logged)
    async for run_id, row_id, at, *by in _ROWS[what].within(conn, span.early, span.late):
        name, key = ": ".join(by), (run_id, row_id)
        in_log = open_keys.pop(key, None)
        # An event near an end of the span may have come a moment before it, or after it.
        if in_log is None and span.is_near_an_end(at) and (not span.has(at) or await _is_logged(conn, what, key)):
            continue
        counted[name] += 1
        if in_log is None:
            problems.add(f"{what}: {row_id} of run {run_id} is in the store, and no event of the span wrote it")
        elif in_log != name:
            problems.add(f"{what}: {row_id} of run {run_id} is {name!r} in the store and {in_log!r} in the log")
    if what == EXECUTED:  # a call that was started again has the instant of its newest start
        async for run_id, row_id, at, *by in _ROWS[what].of_keys(conn, list(open_keys)):
            if at >= span.early and open_keys.pop((run_id, row_id), None) is not None:
                counted[": ".join(by)] += 1
    for run_id, row_id in open_keys:
        problems.add(f"{what}: {row_id} of run {run_id} is in the log, and not in the store at that time")
    return counted


@dataclass
class _Problems:
    named: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, sentence: str) -> None:
        self.count += 1
        if len(self.named) < DIFFERENCES_NAMED:
            self.named.append(sentence)


async def _is_logged(conn: Connection, what: str, key: Key) -> bool:
    """Tell whether some event, of whatever time, is the one that wrote a row."""
    run_id, row_id = key
    field_name = "tool_call_id" if what == EXECUTED else "request_id"
    query = select(events_table).where(events_table.c.run_id == run_id, events_table.c.type.in_(_EVENTS[what]))
    logged = [ChainedEvent(**row) for row in (await conn.execute(query)).mappings()]
    return any(payload_of(each).get(field_name) == row_id for each in logged)


async def _by_risk(conn: Connection, log: LogCounts) -> dict[str, int]:
    counted: Counter[str] = Counter()
    ids = list(log.requests_opened)
    for start in range(0, len(ids), IDS_AT_ONCE):
        query = select(requests.c.risk).where(requests.c.id.in_(ids[start : start + IDS_AT_ONCE]))
        counted.update((await conn.execute(query)).scalars())
    return dict(sorted(counted.items()))


def payload_of(event: ChainedEvent) -> dict[str, Any]:
    """Return an event's payload; one that was changed into something else is empty."""
    try:
        value = json.loads(event.payload)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
