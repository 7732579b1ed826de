"""Evidence (I15): what the log says of the stored rows, so that a row that was changed after the fact is found.

The chain of events cannot be changed unseen, but people decide by the rows: requests, calls, messages, decisions, runs, grants,
users, rules. :mod:`turngate.store.tables.evidence` says, as data, what events say of which columns. A :class:`Ledger` reads a
log by it, and compares rows with what it read.

A digest is over what the database returns, so text that the columns had to change (``turngate.store.storable``) is hashed as it
is stored. It is keyed: with the nonce of the run whose chain it is in, or with a secret of an encrypted store
(:func:`secret_of`).

When content is erased, what the log had digests of is gone. So the event ``conversation.erased`` has one digest of all rows of
its run as erasing left them (:func:`rows_digest`), and from then on those rows are compared with that, and with the values in
payloads. Whether they were as the log said until then was compared first, and the event says it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, NamedTuple

from pydantic import JsonValue, ValidationError
from sqlalchemy import Column, ColumnElement, Select, Table, literal, select, true, tuple_

from turngate.domain.conversation.clipping import result_digest
from turngate.domain.conversation.history import CLOSED_BY_REPAIR
from turngate.domain.digest import call_digest, derived_id, framed_sha256
from turngate.domain.errors import UnreadableContentError
from turngate.domain.runs.event_chain import ChainBreak, ChainedEvent
from turngate.domain.tools.results import Ok, as_object
from turngate.domain.tools.tool import ToolManifest
from turngate.store.database import Connection
from turngate.store.events import audit
from turngate.store.events.events import SYSTEM, NewEvent
from turngate.store.events.row_digests import DIGEST_CHARS, Row, changed_column, row_digest, secret_of, text_digest
from turngate.store.requests.requests import Decision, Request
from turngate.store.runs import messages, overrides, steps, whole_results
from turngate.store.runs.calls import Call
from turngate.store.storable import stored_digest
from turngate.store.tables import events, metadata, requests, runs
from turngate.store.tables.evidence import (
    CONTENT,
    DIGESTS,
    FACTS,
    RELATED,
    RUN,
    TABLES,
    UNCHANGED,
    UNKNOWN,
    About,
    Always,
    Fact,
    InPayload,
    Interrupter,
    InWords,
    OneMore,
    Source,
)

READ_AT_ONCE: Final = 200
"""How many runs, or rows of a table of no run, are read at once."""
EVENTS_AT_ONCE: Final = 5_000
"""How many events the runs that are compared together have at most, unless a single one has more."""
A_TRANSACTION: Final = timedelta(minutes=5)
"""How far the instants of a row and of its event may be apart."""
ERASED: Final = "conversation.erased"
OF_ERASED: Final = {
    "requests": "requests",
    "calls": "calls",
    "decisions": "decisions",
    "approvals": "approvals",
    "executions": "executions",
    "messages": "messages",
    "queued": "queued_messages",
    "steps": "steps",
}
"""The tables that :func:`rows_digest` is over, by their names in it."""
OF_ANY_RUN: Final = ("messages", "queued_messages")
"""Tables whose rows name a run that the database doesn't require to be there."""
OF_RUNS: Final = frozenset(kind for kind, facts in FACTS.items() if any(each.table == "runs" for each in facts))
"""Events about their own run, which their payload doesn't name."""
BY_REQUEST: Final = ("decisions", "approvals", "comments", "views", "grants")
"""Tables whose rows name a request, not a run."""


def request_digest(request: Request) -> str:
    """Return the digest of what a person is shown of a request."""
    return row_digest("request", vars(request), request.nonce)


def call_row_digest(call: Call) -> str:
    """Return the digest of a call as it was planned, with what policy says of it."""
    return row_digest("call", vars(call), call.nonce)


def running_digest(call: Call) -> str:
    """Return the digest of what runs in place of the model's own arguments, and of what it leaves out."""
    return row_digest("running", vars(call), call.nonce)


def planned_digests(planned: Sequence[Call]) -> dict[str, dict[str, str]]:
    """Return the digests of calls that have just been planned, as :func:`turngate.store.events.events.digests` takes them."""
    return {
        "call": {each.tool_call_id: call_row_digest(each) for each in planned},
        "running": running_digests(*planned),
    }


def running_digests(*of: Call) -> dict[str, str]:
    """Return the digests of what runs, by call, of those of which more or other than the model wrote does."""
    otherwise = [each for each in of if each.edited_input is not None or each.defaults is not None]
    return {each.tool_call_id: running_digest(each) for each in otherwise}


def digests_of_call(call: Call) -> dict[str, dict[str, str]]:
    """Return the digests of a call that was judged again, or edited, as :func:`turngate.store.events.events.digests` has them."""
    return {"call": {call.tool_call_id: call_row_digest(call)}, "running": {call.tool_call_id: running_digest(call)}}


def decision_digest(decision: Decision, nonce: str) -> str:
    """Return the digest of what a person sent. ``nonce``: the request's."""
    return row_digest("decision", vars(decision), nonce)


def shown_digests(request: Request) -> dict[str, str]:
    """Return the digests of what a person was shown and on which terms, for the event of what they sent."""
    content = stored_digest(request_values(request), request.nonce)
    return {"shown": content, "terms": text_digest(request.terms, request.nonce)}


def request_values(request: Request) -> dict[str, object]:
    """Return what :func:`request_digest` is over, by name."""
    return {name: getattr(request, name) for name in DIGESTS["request"].columns}


def decision_values(decision: Decision) -> dict[str, object]:
    """Return what :func:`decision_digest` is over, by name."""
    return {name: getattr(decision, name) for name in DIGESTS["decision"].columns}


def opening_event(request: Request, **more: object) -> NewEvent:
    """Return the event of a request's opening: which call asks for what, by which rule, and a digest of what is shown.

    ``more``: further fields.
    """
    of_call = {"request_id": request.id, "tool_call_id": request.tool_call_id, "tool": request.tool_name}
    of_question = {"kind": request.kind, "rule": request.rule, "digest": request.digest}
    content = {"content": request_digest(request), "terms": text_digest(request.terms, request.nonce)}
    if request.parked_at is not None:
        content["parked_at"] = request.parked_at
    return "request.opened", {**of_call, **of_question, **content, **more}


async def first_difference(conn: Connection, run_id: str) -> ChainBreak | None:
    """Compare a run's rows with its events, and return the first that differ; None when all agree.

    The events' own chain is checked by ``turngate.domain.runs.event_chain``. Nothing is written.
    """
    return await first_of_runs(conn, [run_id])


async def first_of_runs(conn: Connection, run_ids: Sequence[str]) -> ChainBreak | None:
    """Compare the rows of some runs with their events, as :func:`first_difference` does."""
    try:
        for run in await _read(conn, run_ids):
            different = next(run.differences(), None)
            if different is not None:
                return different
    except UnreadableContentError as unreadable:
        return ChainBreak(run_id=run_ids[0] if len(run_ids) == 1 else "", run_seq=0, problem=str(unreadable))
    return None


async def rows_difference(
    conn: Connection, rows: Sequence[tuple[str, Row]], *, chains: Select[Any] | Sequence[str]
) -> ChainBreak | None:
    """Compare rows with the events that name them: before something is done or shown because of them, in a person's name.

    ``rows``: with their tables. ``chains``: whose events may name them. A row that was added past Turngate differs, too.
    """
    types = OF_RUNS if any(table == "runs" for table, _row in rows) else ()
    named, nonces = await audit.naming(conn, _ids(rows), chains=chains, types=types)
    ledger = Ledger(of_run=TABLES[rows[0][0]].of_run)
    return ledger.first_of_rows(rows, named, [*nonces, secret_of(conn)])


async def call_difference(
    conn: Connection, call: Call, rows: Sequence[tuple[str, Row]], *, request_ids: Collection[str]
) -> ChainBreak | None:
    """Compare rows about a call with the events of its step, as :func:`rows_difference` does.

    ``rows``: the call's, and those that let it start, among them its execution, if it has one. ``request_ids``: of all requests
    that the store has about it; another one in the log was taken out. If the step's events don't account for all that, all of
    the run's are read: the call may be of an earlier step.
    """
    read = await audit.naming_in_newest_step(conn, _ids(rows), run_id=call.run_id)
    if _of_call(conn, call, rows, request_ids, *read) is None:
        return None
    read = await audit.naming(conn, _ids(rows), chains=[call.run_id])
    return _of_call(conn, call, rows, request_ids, *read)


def _of_call(
    conn: Connection,
    call: Call,
    rows: Sequence[tuple[str, Row]],
    request_ids: Collection[str],
    named: Sequence[ChainedEvent],
    nonces: Collection[str],
) -> ChainBreak | None:
    ledger = Ledger(of_run=True)
    different = ledger.first_of_rows(rows, named, [*nonces, secret_of(conn)])
    if different is not None:
        return different
    tables = [table for table, _row in rows]
    for row in (row for table, row in rows if table == "requests" and row["approvals"] > 1):
        if tables.count("approvals") != row["approvals"]:
            return _differs(None, f"requests {row['id']}, approvals: it is not the number of people who approved it")
    for (table, row_id), values in ledger.values.items():
        is_lacking = table == "executions" and row_id == call.tool_call_id and table not in tables
        if table == "requests" and row_id not in request_ids and "tool_call_id" in values:
            is_lacking = values["tool_call_id"].value == call.tool_call_id
        if is_lacking:
            return _differs(next(iter(values.values())).event, f"{table} {row_id}: the row is missing")
    return None


def _ids(rows: Sequence[tuple[str, Row]]) -> set[str]:
    return {str(row[name])[: TABLES[table].key_chars] for table, row in rows for name in TABLES[table].key}


async def first_in_store(conn: Connection, ledger: Ledger) -> ChainBreak | None:
    """Compare all rows of a store with its log. ``ledger``: it has read the whole log; rows of runs are compared without it."""
    async for run_ids in batches(conn):
        different = await first_of_runs(conn, run_ids)
        if different is not None:
            return different
    for table in (metadata.tables[name] for name in OF_ANY_RUN):
        stray = select(table.c.id).where(table.c.run_id.is_(None) | table.c.run_id.not_in(select(runs.c.id))).limit(1)
        for row_id in (await conn.execute(stray)).scalars():
            return ChainBreak(run_id="", run_seq=0, problem=f"{table.name} {row_id}, run_id: the row is of no run")
    try:
        return await ledger.first_difference(conn)
    except UnreadableContentError as unreadable:
        return ChainBreak(run_id="", run_seq=0, problem=str(unreadable))


async def rows_digest(conn: Connection, run_id: str) -> str:
    """Return the digest of a run's rows as they are now, for the event that says what was erased of them."""
    return (await _read(conn, [run_id]))[0].rows_digest()


async def batches(conn: Connection) -> AsyncIterator[list[str]]:
    """Yield the ids of all runs, in order, in batches of a bounded number of events."""
    query, last = select(runs.c.id, runs.c.event_count).order_by(runs.c.id).limit(READ_AT_ONCE), ""
    while rows := (await conn.execute(query.where(runs.c.id > last))).all():
        batch, count = list[str](), 0
        for row in rows:
            if batch and count + row.event_count > EVENTS_AT_ONCE:
                yield batch
                batch, count = [], 0
            batch.append(row.id)
            count += row.event_count
        yield batch
        last = rows[-1].id


# What a log says.


class _Place(NamedTuple):
    """An event, as problems name it."""

    run_id: str
    run_seq: int
    type: str


class _Expected(NamedTuple):
    """What a column is to hold, by the newest event about it."""

    event: _Place
    source: Source
    value: Any


class _Digest(NamedTuple):
    event: _Place
    digest: str


@dataclass
class Ledger:
    """What a log says of rows, by :data:`FACTS` and :data:`DIGESTS`. Give it events in order; its size follows from their rows.

    ``of_run``: the log is one run's chain, and it is about that run's rows. Else it is a whole log, about the rows of no run.
    """

    of_run: bool = False
    values: dict[tuple[str, str], dict[str, _Expected]] = field(default_factory=dict)
    digests: dict[tuple[str, str], _Digest] = field(default_factory=dict)
    optional: set[tuple[str, str]] = field(default_factory=set)
    erased_runs: set[str] = field(default_factory=set)
    contradictions: list[ChainBreak] = field(default_factory=list)

    def add(self, event: ChainedEvent) -> None:
        """Take the log's next event."""
        facts = [each for each in FACTS.get(event.type, ()) if TABLES[each.table].of_run == self.of_run]
        if event.type == ERASED:
            self.erased_runs.add(event.run_id)
        if not facts and event.type not in CONTENT and '"digests":' not in event.payload:
            return
        payload, place = _payload(event.payload), _Place(event.run_id, event.run_seq, event.type)
        for fact in facts:
            self._take(fact, event, payload, place)
        if not self.of_run and event.run_id != SYSTEM:
            return
        for kind, of_rows in _digests_in(event.type, payload):
            self._take_digests(kind, of_rows, place)

    def _take(self, fact: Fact, event: ChainedEvent, payload: Mapping[str, Any], place: _Place) -> None:
        parts = [event.run_id if name == RUN else payload.get(name) for name in fact.key]
        row = fact.table, "/".join(map(str, parts))
        if None in parts or (fact.if_known and row not in self.values):
            return
        if fact.ends:
            self.values.pop(row, None)
            return
        if fact.if_there:
            self.optional.add(row)
        known = self.values.setdefault(row, {})
        for column, source in fact.says.items():
            value = _value_of(source, event, payload, known.get(column))
            if value is UNKNOWN:
                known.pop(column, None)
            elif value is not UNCHANGED:
                known[column] = _Expected(place, source, value)

    def _take_digests(self, kind: str, of_rows: Mapping[str, str], place: _Place) -> None:
        digested = DIGESTS.get(kind)
        if digested is None:
            return
        for row_id, digest in of_rows.items():
            known = self.digests.get((kind, row_id))
            if digested.newest or known is None:
                self.digests[kind, row_id] = _Digest(place, digest)
            elif known.digest[:DIGEST_CHARS] != digest[:DIGEST_CHARS]:
                problem = f"{digested.table} {row_id}: it was not as {known.event.type} wrote it"
                self.contradictions.append(_differs(place, problem))

    def first_of_rows(
        self, rows: Sequence[tuple[str, Row]], named: Sequence[ChainedEvent], keys: Sequence[str]
    ) -> ChainBreak | None:
        """Take the events that name some rows, and compare these with them. ``keys``: as :meth:`of_row` has them."""
        for event in named:
            self.add(event)
        for table, row in rows:
            for different in (*self.contradictions, *self.of_row(table, row, keys), *self.unaccounted(table, row)):
                return different
        return None

    async def first_difference(self, conn: Connection) -> ChainBreak | None:
        """Compare the rows that belong to no run; a table's rows are read in batches."""
        keys, seen = ("", secret_of(conn)), set[tuple[str, str]]()
        for name in (name for name, each in TABLES.items() if not each.of_run):
            async for row in _rows(conn, metadata.tables[name]):
                seen.add((name, _row_id(name, row)))
                is_erased = name == "grants" and row["run_id"] in self.erased_runs
                different = next(self.of_row(name, row, () if is_erased else (*keys, row.get("nonce", ""))), None)
                if different is not None:
                    return different
        return next(self.missing(seen), None)

    def of_row(self, table: str, row: Row, keys: Sequence[str]) -> Iterator[ChainBreak]:
        """Compare one row. ``keys``: with what its digests may be keyed; none: its content was erased."""
        row_id, named = _row_id(table, row), f"{table} {_row_id(table, row)}"
        expected = self.values.get((table, row_id))
        if expected is None and TABLES[table].is_accounted and TABLES[table].of_run == self.of_run:
            yield ChainBreak(run_id="", run_seq=0, problem=f"{named}: no event accounts for this row")
        for column, each in (expected or {}).items():
            if not _fits(each, row[column]):
                problem = f"{named}, {column}: it is not what {each.event.type} says"
                if not isinstance(each.source, InWords):
                    problem = f"{named}, {column}: it is {row[column]!r}; {each.event.type} says {each.value!r}"
                yield _differs(each.event, problem)
        for kind, digested in DIGESTS.items() if keys else ():
            logged = self.digests.get((kind, row_id)) if digested.table == table else None
            if logged is not None:
                changed = changed_column(kind, row, keys, logged.digest)
                if changed is not None:
                    yield _differs(logged.event, f"{named}, {changed}: it is not as {logged.event.type} wrote it")

    def unaccounted(self, table: str, row: Row, *, but: Collection[str] = ()) -> Iterator[ChainBreak]:
        """Yield columns with a value that must have a digest in the log, and have none. ``but``: kinds that need none."""
        row_id = _row_id(table, row)
        for kind, digested in DIGESTS.items():
            if digested.table == table and kind not in but and (kind, row_id) not in self.digests:
                column = next((name for name in digested.columns if row[name] is not None), None)
                if column is not None:
                    yield _differs(None, f"{table} {row_id}, {column}: no event accounts for it")

    def missing(self, seen: Collection[tuple[str, str]], *, but: Collection[str] = ()) -> Iterator[ChainBreak]:
        """Yield the rows that the log has events of, and that are not among those ``seen``. ``but``: ids that may lack."""
        of_digests = {(DIGESTS[kind].table, row_id): each.event for (kind, row_id), each in self.digests.items()}
        of_values = {row: next(iter(each.values())).event for row, each in self.values.items() if each}
        for (table, row_id), event in {**of_digests, **of_values}.items():
            is_there = (table, row_id) in seen or TABLES[table].may_go or (table, row_id) in self.optional
            if not is_there and row_id not in but:
                yield _differs(event, f"{table} {row_id}: the row is missing")


async def _rows(conn: Connection, table: Table) -> AsyncIterator[Row]:
    """Yield the rows of a table, in the order of its key; read in batches."""
    key = list(table.primary_key)
    query = select(table).order_by(*key).limit(READ_AT_ONCE)
    rest: ColumnElement[bool] = true()
    while rows := (await conn.execute(query.where(rest))).mappings().all():
        for row in rows:
            yield dict(row)
        rest = tuple_(*key) > tuple_(*(literal(rows[-1][each.name], each.type) for each in key))


def _value_of(source: Source, event: ChainedEvent, payload: Mapping[str, Any], before: _Expected | None) -> Any:
    """Return what an event says of a column."""
    match source:
        case InPayload(field=name):
            return payload.get(name, source.otherwise)
        case Interrupter():
            return (payload.get("by", UNKNOWN) or None) if payload.get("status") == "interrupted" else None
        case InWords(field=name):
            words = _payload(event.words or "{}")
            return words[name][1] if name in words else payload.get(name, UNKNOWN)
        case Always(value=value):
            return value
        case About():
            return event.created_at
        case OneMore():
            return UNKNOWN if before is None else before.value + 1


def _fits(expected: _Expected, stored: Any) -> bool:
    if not isinstance(expected.source, About):
        return bool(stored in expected.value if isinstance(expected.value, set) else stored == expected.value)
    try:
        return abs(datetime.fromisoformat(stored) - datetime.fromisoformat(expected.value)) <= A_TRANSACTION
    except (TypeError, ValueError):
        return False


def _digests_in(kind: str, payload: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for of_kind, named_by, name in CONTENT.get(kind, ()):
        if named_by in payload and name in payload:
            yield of_kind, {str(payload[named_by]): payload[name]}
    yield from payload.get("digests", {}).items()


def _row_id(table: str, row: Row) -> str:
    known = TABLES[table]
    return "/".join(str(row[name]) for name in known.key)[: known.key_chars]


def _differs(event: _Place | None, problem: str, run_id: str = "") -> ChainBreak:
    if event is None:
        return ChainBreak(run_id=run_id, run_seq=0, problem=problem)
    return ChainBreak(run_id=event.run_id, run_seq=event.run_seq, problem=problem)


def _payload(text: str) -> Mapping[str, Any]:
    value = _decoded(text)
    return value if isinstance(value, dict) else {}


def _decoded(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


# One run.


@dataclass(frozen=True, kw_only=True)
class _RunEvidence:
    """One run's rows, by table, and what its chain says of them.

    ``erased``: the newest event that says what was erased. ``was_changed``: an event of these that found a difference before.
    ``lacks_words``: events whose words are gone, though nothing says since then that they were erased.
    """

    run_id: str
    rows: Mapping[str, Sequence[Row]]
    ledger: Ledger
    whole_results: Mapping[str, str]
    worlds: Mapping[str, str]
    erased: tuple[_Place, object] | None
    was_changed: _Place | None
    lacks_words: _Place | None

    @cached_property
    def calls(self) -> Mapping[str, Call]:
        return {row["tool_call_id"]: Call(**row) for row in self.rows["calls"]}

    @cached_property
    def decisions(self) -> Mapping[str, Decision]:
        return {row["id"]: Decision(**row) for row in self.rows["decisions"]}

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """With what its digests are keyed: its nonce."""
        return tuple(str(row["nonce"]) for row in self.rows["runs"])

    def differences(self) -> Iterator[ChainBreak]:
        """Yield what differs."""
        yield from self.ledger.contradictions
        if self.lacks_words is not None:
            yield _differs(self.lacks_words, "its words are missing, and no event says that they were erased")
        keys = self.keys if self.erased is None else ()
        for table, rows in self.rows.items():
            for row in rows:
                yield from self.ledger.of_row(table, row, keys)
        if self.erased is not None:
            yield from self._since_erased(*self.erased)
            return
        seen = {(table, _row_id(table, row)) for table, rows in self.rows.items() for row in rows}
        ends, unplanned = self._ends(), self._unplanned()
        yield from self.ledger.missing(seen, but={*ends, *unplanned})
        yield from self._unaccounted({*ends, *unplanned})
        for related in (
            self._overrides(),
            self._children(),
            self._requests(),
            self._results(),
            self._steps(),
            self._closed_steps(ends),
            self._heads(),
        ):
            yield from related

    def rows_digest(self) -> str:
        """Return the digest of all rows whose content may be erased; of requests without what changes after their end."""
        no_claim = {"claimed_by": None, "claimed_until": None}
        rows = {**self.rows, "requests": [{**row, **no_claim} for row in self.rows["requests"]]}
        lines = {name: sorted(json.dumps(row, sort_keys=True) for row in rows[of]) for name, of in OF_ERASED.items()}
        return framed_sha256(json.dumps(lines, sort_keys=True, separators=(",", ":")))

    def _since_erased(self, erased: _Place, left: object) -> Iterator[ChainBreak]:
        """Compare the rows of a run with what erasing left of them."""
        if self.was_changed is not None:
            yield _differs(self.was_changed, "before this run's content was erased, a row was not as the log says")
        if left != self.rows_digest():
            yield _differs(erased, "a row is not as erasing the run's content left it")

    def _unaccounted(self, but: Collection[str]) -> Iterator[ChainBreak]:
        """Yield columns with a value that must have a digest in the log, and have none."""
        answered = dict(self._answers())
        for table, rows in self.rows.items():
            for row in (each for each in rows if _row_id(table, each) not in but):
                is_answered = table == "calls" and row["tool_call_id"] in answered
                for different in self.ledger.unaccounted(table, row, but={"result"} if is_answered else ()):
                    yield replace(different, run_id=self.run_id)

    def _overrides(self) -> Iterator[ChainBreak]:
        """Yield stored overrides that are not those of the digest which names them, if the run has any."""
        for digest in (row["world"] for row in self.rows["runs"] if row["world"]):
            stored = overrides.read(self.worlds.get(digest, ""))
            if stored is None or stored.digest != digest:
                yield _differs(None, f"worlds {digest}, content: it is not what was stored", self.run_id)

    def _children(self) -> Iterator[ChainBreak]:
        """Yield calls that a sub-agent is said to answer, though no event started them."""
        for call in self.calls.values():
            if call.child_run_id is not None and ("calls", call.tool_call_id) not in self.ledger.values:
                problem = f"calls {call.tool_call_id}, child_run_id: no event accounts for it"
                yield _differs(None, problem, self.run_id)

    def _requests(self) -> Iterator[ChainBreak]:
        """Compare what requests, decisions and approvals say of each other."""
        for row in self.rows["requests"]:
            request = Request(**row)
            if self._recomputed(request) not in {None, request.digest}:
                problem = f"requests {request.id}, digest: it is not that of the request's own call"
                yield _differs(None, problem, self.run_id)
            approvals = [each for each in self.rows["approvals"] if each["request_id"] == request.id]
            if request.approvals != len(approvals):
                problem = f"requests {request.id}, approvals: it is {request.approvals}; {len(approvals)} were given"
                yield _differs(None, problem, self.run_id)
            for approval in approvals:
                decision = self.decisions.get(approval["decision_id"])
                for name in RELATED["approvals"].split():
                    if decision is not None and approval[name] != getattr(decision, name):
                        named = f"approvals {approval['decision_id']}, {name}"
                        yield _differs(None, f"{named}: it is not that of its decision", self.run_id)

    def _results(self) -> Iterator[ChainBreak]:
        """Compare results with what people answered, and with the whole of which the model was shown a part."""
        answers = dict(self._answers())
        for call in self.calls.values():
            answer, named = answers.get(call.tool_call_id), f"calls {call.tool_call_id}"
            if answer is not None and call.result is not None and _result(call) != answer:
                yield _differs(None, f"{named}, result: it is not what a person answered", self.run_id)
            whole = None if call.whole_result is None else self.whole_results.get(call.whole_result, "")
            # Text that could not be stored as it was (U+FFFD) has the digest of what came.
            if whole is not None and "\ufffd" not in whole and result_digest(whole) != call.whole_result:
                problem = f"whole_results {call.whole_result}, text: it is not the one that was stored"
                yield _differs(None, f"{problem} for call {call.tool_call_id}", self.run_id)

    def _answers(self) -> Iterator[tuple[str, Ok]]:
        """Yield the results of questions by call: a person's answers, which the log has as their decisions.

        A question whose answer did not fit is asked again: its last answer comes last.
        """
        for row in sorted(self.rows["requests"], key=itemgetter("created_at")):
            decision = self.decisions.get(row["decision_id"] or "")
            if row["kind"] == "question" and row["status"] == "responded" and decision is not None:
                value = _decoded(decision.args or "")
                if value is not None:
                    yield row["tool_call_id"], Ok(value=as_object(value))

    def _end_of(self, step: Row) -> str:
        """Return the id of the message that closes a step."""
        return derived_id("msg", self.run_id, str(step["step"]), "results")

    def _ends(self) -> set[str]:
        """Return the messages that close steps and have no digest in the log, because they follow from the steps' calls."""
        return {each for each in map(self._end_of, self.rows["steps"]) if ("message", each) not in self.ledger.digests}

    def _unplanned(self) -> set[str]:
        """Return the message of a response whose step isn't planned: only its plan's event has a digest of it."""
        newest = max((row["step"] for row in self.rows["steps"]), default=0)
        is_known = ("steps", str(newest)) in self.ledger.values
        return set() if is_known else {derived_id("msg", self.run_id, str(newest), "assistant")}

    def _steps(self) -> Iterator[ChainBreak]:
        """Yield steps of which no event says that their model responded, but for the newest one that isn't planned."""
        *_earlier, newest = sorted(row["step"] for row in self.rows["steps"]) or [0]
        for row in self.rows["steps"]:
            is_open = row["step"] == newest and row["plan"] is None
            if ("steps", str(row["step"])) not in self.ledger.values and not is_open:
                yield _differs(None, f"steps {row['step']}: no event accounts for this row", self.run_id)

    def _heads(self) -> Iterator[ChainBreak]:
        """Yield a head that isn't the run's last message, or the one before a response whose calls are open."""
        own = {row["id"]: row["parent_id"] for row in self.rows["messages"]}
        last = own.keys() - set(own.values())
        heads = {*last, *(own[each] for each in last)}
        for row in self.rows["runs"]:
            if own and row["head_message_id"] not in heads:
                named = f"runs {self.run_id}, head_message_id"
                yield _differs(None, f"{named}: it is not the run's last message", self.run_id)

    def _closed_steps(self, ends: Collection[str]) -> Iterator[ChainBreak]:
        """Compare the messages that closed steps with the results of the steps' calls."""
        by_id = {row["id"]: row for row in self.rows["messages"]}
        for step in self.rows["steps"]:
            message_id = self._end_of(step)
            end, response = by_id.get(message_id), by_id.get(step["assistant_message_id"])
            if step["results_message_id"] != (None if end is None else message_id):
                problem = f"steps {step['step']}, results_message_id: it is not the message of its results"
                yield _differs(None, problem, self.run_id)
            elif end is not None and message_id in ends:
                for name in self._changed_in_end(end, response, step["step"]):
                    problem = f"messages {message_id}, {name}: it is not that of the results of step {step['step']}"
                    yield _differs(None, problem, self.run_id)

    def _changed_in_end(self, end: Row, response: Row | None, step: int) -> Iterator[str]:
        """Yield the columns of a results message that don't follow from the step's response and calls."""
        if response is None or end["parent_id"] != response["id"]:
            yield "parent_id"
            return
        yield from (name for name in ("conversation_id", "step") if end[name] != response[name])
        of_step = [each for each in self.calls.values() if each.step == step]
        expected = steps.results_message(messages.from_row(response), of_step, CLOSED_BY_REPAIR)
        if end["role"] != expected.role:
            yield "role"
        for name in ("parts", "provider_options"):
            try:
                same = getattr(messages.from_row({**end, "role": expected.role}), name) == getattr(expected, name)
            except ValueError:  # it cannot be read
                same = False
            if not same:
                yield name

    def _recomputed(self, request: Request) -> str | None:
        """Return the digest computed from the stored bytes; None where they cannot tell.

        A request about an outcome, and one that overruled an earlier verdict, carry the digest of the planned call.
        """
        call = self.calls.get(request.tool_call_id)
        if call is None:
            return ""
        if request.kind == "outcome" or '"overruled"' in call.verdict:
            return None
        return digest_of_shown(request, policy_version=call.policy_version)


def digest_of_shown(request: Request, *, policy_version: str) -> str | None:
    """Return the digest of the call that a request shows, computed from its bytes; None where they can't tell.

    Text that could not be stored as it was (U+FFFD) has the digest of what came. ``policy_version``: the call's.
    """
    if "\ufffd" in request.input:
        return None
    try:
        manifest = ToolManifest.model_validate_json(request.manifest)
    except ValidationError:
        return ""
    return call_digest(
        tool_name=request.tool_name,
        manifest_digest=manifest.digest,
        raw_input=request.input,
        run_id=request.run_id,
        tool_call_id=request.tool_call_id,
        policy_version=policy_version,
        nonce=request.nonce,
        defaults=request.defaults,
    )


async def _read(conn: Connection, run_ids: Sequence[str]) -> list[_RunEvidence]:
    """Read the rows of some runs, each table once, and their chains."""
    chains = {run_id: await _Chain.read(conn, run_id) for run_id in run_ids}
    names = [*(name for name, each in TABLES.items() if each.of_run), "grants"]
    rows: dict[str, dict[str, list[Row]]] = {run_id: {name: [] for name in names} for run_id in run_ids}
    for name in names:
        of_table = _queued(conn, chains) if name == "queued_messages" else _of_runs(conn, name, run_ids)
        async for run_id, row in of_table:
            rows[run_id][name].append(row)
    wholes, own = _named(rows, "calls", "whole_result"), _named(rows, "runs", "world")
    texts = await whole_results.of_digests(conn, wholes) if wholes else {}
    worlds = await overrides.of_digests(conn, own) if own else {}
    return [
        _RunEvidence(rows=rows[run_id], whole_results=texts, worlds=worlds, **vars(chains[run_id]))
        for run_id in run_ids
    ]


def _named(rows: Mapping[str, Mapping[str, Sequence[Row]]], table: str, column: str) -> list[str]:
    """Return the digests by which rows of a table name what is stored once."""
    return [row[column] for of_run in rows.values() for row in of_run[table] if row[column]]


async def _of_runs(conn: Connection, name: str, run_ids: Sequence[str]) -> AsyncIterator[tuple[str, Row]]:
    """Yield the rows of a table that belong to these runs, with their run."""
    table = metadata.tables[name]
    own: Column[Any] = table.c.id if name == "runs" else requests.c.run_id
    if name not in BY_REQUEST and name != "runs":
        own = table.c.run_id
    query = select(own, table)
    if name in BY_REQUEST:
        query = query.join(requests, requests.c.id == table.c.request_id)
    for row in await conn.execute(query.where(own.in_(run_ids))):
        yield row[0], dict(zip(table.c.keys(), row[1:], strict=True))


async def _queued(conn: Connection, chains: Mapping[str, _Chain]) -> AsyncIterator[tuple[str, Row]]:
    """Yield queued messages with the run whose chain has them, which another one may have taken; else with the run they name."""
    digests = [(run_id, *each) for run_id, chain in chains.items() for each in chain.ledger.digests]
    sent = {row_id: run_id for run_id, kind, row_id in digests if kind == "queued"}
    table = metadata.tables["queued_messages"]
    of_these = select(table).where(table.c.id.in_(sent) | table.c.run_id.in_(chains))
    rows = (await conn.execute(of_these)).mappings().all()
    unknown = {row["run_id"] for row in rows if row["id"] not in sent}
    elsewhere = await _sent_around(conn, unknown) if unknown else set()
    for row in rows:
        if row["id"] not in elsewhere or row["id"] in sent:
            yield sent.get(row["id"], row["run_id"]), dict(row)


async def _sent_around(conn: Connection, run_ids: Collection[str]) -> set[str]:
    """Return the ids of the messages that, by the log, were sent to a run of these runs' conversations."""
    around = select(runs.c.conversation_id).where(runs.c.id.in_(run_ids))
    chains = select(runs.c.id).where(runs.c.conversation_id.in_(around))
    queued = select(events.c.payload).where(events.c.run_id.in_(chains), events.c.type == "message.queued")
    return {_payload(payload).get("message_id", "") for payload in (await conn.execute(queued)).scalars()}


@dataclass
class _Chain:
    """A run's chain as it is read."""

    run_id: str
    ledger: Ledger = field(default_factory=lambda: Ledger(of_run=True))
    erased: tuple[_Place, object] | None = None
    was_changed: _Place | None = None
    lacks_words: _Place | None = None

    @classmethod
    async def read(cls, conn: Connection, run_id: str) -> _Chain:
        chain = cls(run_id)
        async for event in audit.every(conn, run_id=run_id):
            chain.add(event)
        return chain

    def add(self, event: ChainedEvent) -> None:
        """Take the chain's next event."""
        place = _Place(event.run_id, event.run_seq, event.type)
        self.ledger.add(event)
        if event.type == ERASED:
            payload = _payload(event.payload)
            self.erased, self.lacks_words = (place, payload.get("rows")), None
            if not payload.get("intact"):
                self.was_changed = self.was_changed or place
        elif event.lacks_words:
            self.lacks_words = self.lacks_words or place


def _result(call: Call) -> Any:
    try:
        return call.settled_result
    except ValidationError:
        return None
