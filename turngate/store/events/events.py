"""Events: append-only, one sequence for everyone, one hash chain per run. Audit, SSE and webhooks read the same rows."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self

from sqlalchemy import CTE, TextClause, bindparam, column, insert, select, text

from turngate.domain.digest import framed
from turngate.domain.errors import UnreadableContentError
from turngate.domain.runs.event_chain import ChainBreak, ChainCheck, ChainedEvent, ChainHead, chain_hash, words_digest
from turngate.store.clock import as_text, now
from turngate.store.connection import Connection, note
from turngate.store.sequences import MAX_NUMBER, NEWEST_EVENT, Numbered, take
from turngate.store.storable import StorableTexts, storable
from turngate.store.tables import event_chains, events, runs
from turngate.store.together import NO_WRITES, Writes, joins, parameters

NewEvent = tuple[str, Mapping[str, Any]]
"""Type (``noun.past_participle``) and JSON payload: ids and short words, never conversation content."""

SYSTEM: Final = "system"
"""The chain of events without a run: logins, grants, policy, users. It is used in place of a run id."""
FOR_ALL_READERS: Final = ("grant.", "policy.", "notification.", "schedule.", "hold.", "retention.", "drill.", "store.")
"""Type prefixes of its events for everyone who may read requests; the others show who logged in and how."""

WORDS: Final = ("message", "reason", "text")
"""Fields of a run's events that hold what a person, model or tool said: the payload has their digests, in a field ``words``,
and ``events.words`` the texts, each with a nonce, so that a text can be erased and not be guessed from what stays."""
ERASED: Final = "(erased)"
"""In place of erased text."""

CHECKED_AT_ONCE: Final = 1_000
"""How many events of a chain are read at once when it is checked."""

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_INSERT = insert(events)
SEVERAL_WORDS: Final = StorableTexts("events.words")
"""The type of several events' words."""
_AFTER = (
    select(events)
    .where(events.c.seq > bindparam("after"), events.c.seq <= bindparam("upto"))
    .order_by(events.c.seq)
    .limit(bindparam("most"))
)
_AFTER_OF_RUNS = _AFTER.where(events.c.run_id.in_(bindparam("run_ids", expanding=True)))
_UNCHANGED: Final = " AND event_count = :seen AND status = 'running' AND interrupted_at IS NULL"
"""Of a run's row: it is live, and has no event that the caller has not seen."""
# SQLite: numbers and the chain's end are taken in one statement. It has one writer, so what is read next to the counter is
# the newest.
_TAKE = (
    "UPDATE event_counter SET last_seq = last_seq + :more WHERE id = :sequence "
    "AND EXISTS (SELECT 1 FROM {chain} WHERE id = :run{condition}) RETURNING last_seq, "
    "(SELECT event_count FROM {chain} WHERE id = :run) AS run_seq, (SELECT event_hash FROM {chain} WHERE id = :run) AS previous"
)
_SET_END = "UPDATE {chain} SET event_count = :run_seq, event_hash = :last_hash{more} WHERE id = :run"
# PostgreSQL: all of it in one statement, because each is a trip to a server. So the server makes the hashes, from the end of
# the chain: as `chain_hash` does, with the frames of what is known here. The chain is locked first, then the counter, for
# which everyone waits; `FOR NO KEY UPDATE` reads the newest end, whatever was committed while this waited. Not `FOR UPDATE`:
# rows that refer to the run lock its key, so the transaction that wrote them would be waited for here.
_APPEND: Final = (
    (
        "chain",
        ("event_count", "event_hash"),
        "SELECT event_count, event_hash FROM {chain} WHERE id = :chain_id{condition} FOR NO KEY UPDATE",
    ),
    (
        "taken",
        ("last_seq",),
        (
            "UPDATE event_counter SET last_seq = last_seq + :more WHERE id = :sequence AND EXISTS (SELECT 1 FROM chain) "
            "RETURNING last_seq"
        ),
    ),
    (
        "prior",
        ("seq", "run_seq", "hash"),
        (
            "SELECT taken.last_seq - :more AS seq, chain.event_count AS run_seq, chain.event_hash AS hash "
            "FROM taken, chain"
        ),
    ),
    (
        "new",
        ("n", "type", "payload", "words", "frames"),
        (
            "SELECT n, type, payload, words, frames FROM unnest("
            "CAST(:types AS text[]), CAST(:payloads AS text[]), CAST(:words AS text[]), CAST(:frames AS bytea[])) "
            "WITH ORDINALITY AS each (type, payload, words, frames, n)"
        ),
    ),
    (
        "chained",
        ("n", "previous", "hash"),
        (
            "SELECT CAST(0 AS bigint), CAST('' AS text), CAST(hash AS text) FROM prior "
            "UNION ALL "
            "SELECT new.n, chained.hash, encode(sha256("
            "int8send(octet_length(chained.hash)) || convert_to(chained.hash, 'UTF8') || :chain_frame"
            " || int8send(octet_length(CAST(prior.run_seq + new.n AS text)))"
            " || convert_to(CAST(prior.run_seq + new.n AS text), 'UTF8') || new.frames), 'hex') "
            "FROM chained JOIN new ON new.n = chained.n + 1 CROSS JOIN prior"
        ),
    ),
    (
        "moved",
        ("one",),
        (
            "UPDATE {chain} SET event_count = event_count + :more, event_hash = newest.hash{more} "
            "FROM (SELECT hash FROM chained WHERE n = :more) AS newest WHERE {chain}.id = :chain_id RETURNING 1"
        ),
    ),
    (
        "appended",
        ("one",),
        (
            "INSERT INTO events (seq, run_id, run_seq, type, payload, words, created_at, previous_hash, hash) "
            "SELECT prior.seq + n, :chain_id, prior.run_seq + n, new.type, new.payload, new.words, :appended_at, "
            "chained.previous, chained.hash FROM prior, chained JOIN new USING (n) RETURNING 1"
        ),
    ),
)
"""Name, columns and SQL of each part."""


def _typed(sql: str) -> TextClause:
    """Return a part of a statement; its words have the type of the column, by which they are encrypted."""
    part = text(sql)
    return part.bindparams(bindparam("words", type_=SEVERAL_WORDS)) if ":words" in sql else part


@dataclass(frozen=True)
class _Append:
    """The statements that append to a chain.

    ``take``, ``set_end`` (with their parameters' names): SQLite's. ``parts``: PostgreSQL's, the chain first.
    """

    take: TextClause
    take_names: tuple[str, ...]
    set_end: TextClause
    end_names: tuple[str, ...]
    parts: tuple[CTE, ...]

    @classmethod
    def to(cls, chain: str, *, condition: str = "", more: str = "") -> Self:
        """Build them. ``condition``: of the chain's row, else nothing is written. ``more``: assignments to its columns."""
        filled = {"chain": chain, "condition": condition, "more": more}
        parts = tuple(
            _typed(sql.format(**filled))
            .columns(*(column(each) for each in columns))
            .cte(name, recursive=name == "chained")
            for name, columns, sql in _APPEND
        )
        take, set_end = text(_TAKE.format(**filled)), text(_SET_END.format(**filled))
        return cls(take, tuple(parameters(take)), set_end, tuple(parameters(set_end)), parts)


_TO: Final = {chain.name: _Append.to(chain.name) for chain in (runs, event_chains)}
_AFTER_WRITE: Final = _Append.to(runs.name, condition=" AND EXISTS (SELECT 1 FROM write_0)")
"""PostgreSQL: with guarded writes (:class:`turngate.store.together.Together`)."""

# PostgreSQL: the first event of a run whose row is written in the same statement.
_BEGIN: Final = (
    text("UPDATE event_counter SET last_seq = last_seq + 1 WHERE id = :sequence RETURNING last_seq")
    .columns(column("last_seq"))
    .cte("taken"),
    text(
        "INSERT INTO events (seq, run_id, run_seq, type, payload, created_at, previous_hash, hash) "
        "SELECT taken.last_seq, :chain_id, 1, :type, :payload, :appended_at, '', :hash FROM taken RETURNING 1"
    )
    .columns(column("one"))
    .cte("appended"),
)


class Change:
    """What a run's row gets with its events, if the run is live and has no event that the caller has not seen.

    ``more``: assignments to the row's columns, such as ``, step = :at_step``. ``only_if``: what else has to be so, such as
    ``EXISTS (…)``. Their values are among those of the writes. Built once, like a statement.
    """

    def __init__(self, more: str = "", *, only_if: str = "TRUE") -> None:
        self.appends = _Append.to(runs.name, condition=f"{_UNCHANGED} AND {only_if}", more=more)


NO_CHANGE: Final = Change()


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event. ``seq``: place among all events, from 1. ``run_seq``: place within its run, from 1, no gaps."""

    seq: int
    run_id: str
    run_seq: int
    type: str
    payload: dict[str, Any]
    created_at: str
    previous_hash: str
    hash: str


@dataclass(frozen=True, kw_only=True)
class FirstEvent:
    """The first event of a run that has no row yet. Nothing is before it, so its hash is known before it is written."""

    run_id: str
    type: str
    payload: str
    created_at: str
    hash: str
    """The run's row is to have it, with an ``event_count`` of 1."""

    @classmethod
    def of(cls, run_id: str, new: NewEvent) -> Self:
        """Return it as it will be stored."""
        ((kind, payload, _words),) = _as_stored(run_id, [new])
        at = as_text(now())
        own_hash = chain_hash("", run_id, 1, kind, payload, at)
        return cls(run_id=run_id, type=kind, payload=payload, created_at=at, hash=own_hash)


def digests(**of_rows: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the field of an event that holds digests of the rows written with it: kind → id → digest; None: not written.

    ``turngate.store.evidence`` says which kinds there are, and compares.
    """
    written = {
        kind: {row_id: digest for row_id, digest in rows.items() if digest is not None}
        for kind, rows in of_rows.items()
    }
    return {"digests": written}


async def append(
    conn: Connection, run_id: str, new: Sequence[NewEvent], *, writes: Writes = NO_WRITES, last: bool = False
) -> list[int]:
    """Append events to a run's chain (or that of :data:`SYSTEM`), in order, within the caller's write transaction.

    Call it last in the transaction: the counter row is one lock for all writers, which is what lets a reader trust that
    no smaller sequence number appears after a larger one.

    ``writes``: what goes to the database just before them, and on PostgreSQL with them. They don't touch the chain's own row.
    If they are guarded and their first one changes nothing, nothing is appended. ``last``: nothing follows in the transaction.
    Returns what :meth:`turngate.store.together.Writes.run` does.
    """
    if not new:
        return await writes.run(conn, last=last)
    if run_id == SYSTEM and conn.dialect.name == "postgresql":
        # Logins hold the counter when they come here, so everyone takes it before this chain, or two would wait for each other.
        await take(conn, Numbered.EVENTS, 0)
    written = _as_stored(run_id, new)
    counts: list[int] = []
    if not joins(conn, writes.rows):
        counts = await writes.run(conn)
        if writes.together.guarded and counts[0] == 0:
            return counts
        writes = NO_WRITES
    appends = _TO[event_chains.name if run_id == SYSTEM else runs.name]
    if conn.dialect.name == "postgresql":
        if writes.together.guarded:
            appends = _AFTER_WRITE
        *joined, appended = await _append_in_one(conn, appends, run_id, written, writes, last=last)
        counts += joined
        if writes.together.guarded and joined[0] == 0:
            return counts
    else:
        appended = await _append_in_turn(conn, appends, run_id, written)
    if appended != len(new):
        raise LookupError(f"there is no chain of events {run_id!r}")
    _count(conn, new)
    return counts


async def append_unless_changed(
    conn: Connection, run_id: str, new: Sequence[NewEvent], *, seen: int, change: Change, writes: Writes
) -> bool:
    """Append the last of a transaction, with a change of the run's row; False, and nothing is written, if the run has changed.

    ``seen``: the run's number of events when the caller read what this follows from. Whatever changes a run appends an event
    to it in the same transaction; so all that was read is as it was. ``writes``: as those of :func:`append`, not guarded.
    """
    written, appends = _as_stored(run_id, new), change.appends
    values = {**writes.values, "seen": seen}
    if joins(conn, writes.rows):
        joined = replace(writes, values=values)
        appended = (await _append_in_one(conn, appends, run_id, written, joined, last=True))[-1]
    elif conn.dialect.name == "postgresql":  # too many rows for one statement
        return False
    else:
        appended = await _append_in_turn(conn, appends, run_id, written, replace(writes, values=values))
    if appended:
        _count(conn, new)
    return appended > 0


async def begin(conn: Connection, first: FirstEvent, writes: Writes, *, last: bool = False) -> None:
    """Append a run's first event, as :func:`append` does, after ``writes``, among them the run's row with the chain's end."""
    note(conn, first.type)
    if joins(conn, writes.rows):
        values = {
            "sequence": Numbered.EVENTS.value,
            "chain_id": first.run_id,
            "type": first.type,
            "payload": first.payload,
            "appended_at": first.created_at,
            "hash": first.hash,
        }
        *_written, appended = await writes.together.run_joined(
            conn, writes.rows, {**writes.values, **values}, _BEGIN, last=last
        )
        if appended == 0:
            raise LookupError("the sequence of events has no counter")
        return
    await writes.run(conn)
    place = {"seq": await take(conn, Numbered.EVENTS), "run_seq": 1, "previous_hash": ""}
    await conn.execute(_INSERT, {**vars(first), **place})


def _count(conn: Connection, new: Sequence[NewEvent]) -> None:
    if conn.facts is not None:
        conn.facts.extend(new)


@dataclass(frozen=True)
class _Stored:
    """An event as it is stored. ``words``: JSON, or None for most."""

    type: str
    payload: str
    words: str | None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.type, self.payload, self.words))


def _as_stored(run_id: str, new: Sequence[NewEvent]) -> list[_Stored]:
    """Return how each is stored. Made storable here, not by the column: the hash is over what is stored."""
    return [_stored(kind, payload, has_words=run_id != SYSTEM) for kind, payload in new]


def _stored(kind: str, payload: Mapping[str, Any], *, has_words: bool) -> _Stored:
    words = {name: payload[name] for name in WORDS if payload.get(name)} if has_words else {}
    # As it reads when it comes back: the digest is over that.
    read = {name: json.loads(_json(text)) for name, text in words.items() if isinstance(text, str)}
    apart = {name: (secrets.token_hex(8), text) for name, text in read.items()}
    if not apart:
        return _Stored(kind, _json(payload), None)
    digests_of_words = {name: words_digest(*each) for name, each in apart.items()}
    rest = {name: value for name, value in payload.items() if name not in apart}
    return _Stored(kind, _json({**rest, "words": digests_of_words}), _json(apart))


def _json(value: object) -> str:
    return storable(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")))


async def _append_in_one(
    conn: Connection, appends: _Append, run_id: str, new: Sequence[_Stored], writes: Writes, *, last: bool
) -> list[int]:
    """Append on PostgreSQL. Returns the writes' counts, then that of the events."""
    at = as_text(now())
    values = {
        "sequence": Numbered.EVENTS.value,
        "more": len(new),
        "chain_id": run_id,
        "chain_frame": framed(run_id),
        "types": [each.type for each in new],
        "payloads": [each.payload for each in new],
        "words": [each.words for each in new],
        "frames": [framed(each.type, each.payload, at) for each in new],
        "appended_at": at,
    }
    guard = appends.parts[0] if "seen" in writes.values else None
    values |= writes.values
    return await writes.together.run_joined(conn, writes.rows, values, appends.parts, guard=guard, last=last)


async def _append_in_turn(
    conn: Connection,
    appends: _Append,
    run_id: str,
    new: Sequence[_Stored],
    writes: Writes = NO_WRITES,
) -> int:
    """Append on SQLite after the writes, and return how many. ``writes``: with the values of the chain's own row."""
    values = {**writes.values, "sequence": Numbered.EVENTS.value, "run": run_id, "more": len(new)}
    row = (await conn.execute(appends.take, {name: values[name] for name in appends.take_names})).one_or_none()
    if row is None:
        return 0
    await writes.run(conn)
    seq, run_seq, previous = int(row.last_seq) - len(new), int(row.run_seq), str(row.previous)
    created_at = as_text(now())
    rows = []
    for kind, payload, words in new:
        seq, run_seq = seq + 1, run_seq + 1
        digest = chain_hash(previous, run_id, run_seq, kind, payload, created_at)
        rows.append(
            {
                "seq": seq,
                "run_id": run_id,
                "run_seq": run_seq,
                "type": kind,
                "payload": payload,
                "words": words,
                "created_at": created_at,
                "previous_hash": previous,
                "hash": digest,
            }
        )
        previous = digest
    await conn.execute(_INSERT, rows)
    end = {**values, "run_seq": run_seq, "last_hash": previous}
    await conn.execute(appends.set_end, {name: end[name] for name in appends.end_names})
    return len(rows)


async def after(
    conn: Connection,
    seq: int,
    *,
    upto: int = MAX_NUMBER,
    run_id: str | None = None,
    run_ids: Sequence[str] | None = None,
    limit: int = 500,
) -> list[Event]:
    """Return events after ``seq`` (exclusive), up to ``upto``, oldest first.

    ``run_id``, ``run_ids``: only of this run, or of these.
    """
    if run_id is not None:
        run_ids = [run_id]
    values = {"after": seq, "upto": upto, "most": limit}
    if run_ids is None:
        rows = await conn.execute(_AFTER, values)
    else:
        rows = await conn.execute(_AFTER_OF_RUNS, {**values, "run_ids": run_ids})
    return [loaded(row) for row in rows.mappings()]


async def before(conn: Connection, seq: int, moment: datetime) -> int:
    """Return the last event of those after ``seq`` that are all older than this; ``seq`` when the next one isn't."""
    last = await last_seq(conn)
    younger = select(events.c.seq - 1).where(
        events.c.seq > seq, events.c.seq <= last, events.c.created_at > as_text(moment)
    )
    first = (await conn.execute(younger.order_by(events.c.seq).limit(1))).scalar_one_or_none()
    return last if first is None else int(first)


async def of_live_runs(conn: Connection, kinds: Collection[str], *, after: int, upto: int) -> list[Event]:
    """Return the events of these types after ``after`` (exclusive), up to ``upto``, whose runs still run, oldest first."""
    live = select(events).join(runs, runs.c.id == events.c.run_id).where(runs.c.status == "running")
    query = live.where(events.c.seq > after, events.c.seq <= upto, events.c.type.in_(kinds)).order_by(events.c.seq)
    return [loaded(row) for row in (await conn.execute(query)).mappings()]


async def newest(conn: Connection, run_id: str, kind: str, *, limit: int) -> list[Event]:
    """Return the newest events of this type of one run, newest first."""
    query = select(events).where(events.c.run_id == run_id, events.c.type == kind)
    rows = await conn.execute(query.order_by(events.c.run_seq.desc()).limit(limit))
    return [loaded(row) for row in rows.mappings()]


def loaded(row: Mapping[Any, Any]) -> Event:
    """Return an event of its row, decoded, with its words; :data:`ERASED` in place of those that were erased."""
    payload, texts = json.loads(row["payload"]), json.loads(row["words"] or "{}")
    digests_of_words = payload.pop("words", None)
    if isinstance(digests_of_words, dict):
        payload |= {name: texts[name][1] if name in texts else ERASED for name in digests_of_words}
    return Event(**{name: value for name, value in row.items() if name != "words"} | {"payload": payload})


async def last_seq(conn: Connection) -> int:
    """Return the newest sequence number; 0 when there is no event."""
    return int((await conn.execute(NEWEST_EVENT)).scalar_one())


async def chain_break(conn: Connection, run_id: str) -> ChainBreak | None:
    """Return the first break in the chain of a run (or that of :data:`SYSTEM`); None if the chain is intact."""
    check = ChainCheck(run_id)
    query = select(events).where(events.c.run_id == run_id).order_by(events.c.run_seq).limit(CHECKED_AT_ONCE)
    count, last = CHECKED_AT_ONCE, 0
    while count == CHECKED_AT_ONCE:
        try:
            rows = (await conn.execute(query.where(events.c.run_seq > last))).mappings().all()
        except UnreadableContentError as unreadable:
            return ChainBreak(run_id=run_id, run_seq=last + 1, problem=str(unreadable))
        for row in rows:
            broken = check.add(ChainedEvent(**row))
            if broken is not None:
                return broken
        count, last = len(rows), int(rows[-1]["run_seq"]) if rows else last
        await asyncio.sleep(0)  # SQLite runs on the loop, and a chain may be long
    head = await chain_head(conn, run_id)
    return None if head is None else check.close(head)


async def chain_head(conn: Connection, run_id: str) -> ChainHead | None:
    """Return the length and newest hash that are stored apart from the events; None: there is no such chain."""
    for chain in (runs, event_chains):
        query = select(chain.c.event_count, chain.c.event_hash).where(chain.c.id == run_id)
        row = (await conn.execute(query)).one_or_none()
        if row is not None:
            return ChainHead(run_id=run_id, length=int(row.event_count), hash=str(row.event_hash))
    return None


async def store_head(conn: Connection, run_id: str) -> None:
    """Store the head of a run that is about to be removed, so that its events can always be checked."""
    own = select(runs.c.id, runs.c.event_count, runs.c.event_hash).where(runs.c.id == run_id)
    await conn.execute(insert(event_chains).from_select(["id", "event_count", "event_hash"], own))
