"""Events: append-only, one sequence for everyone, one hash chain per run. Audit, SSE and webhooks read the same rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from turngate.domain.digest import framed_sha256
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.storable import storable
from turngate.store.tables import event_counter, events, runs

NewEvent = tuple[str, Mapping[str, Any]]
"""Type (``noun.past_participle``) and JSON payload: ids and short words, never conversation content."""

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_TAKE_SEQ = (
    update(event_counter)
    .where(event_counter.c.id == 1)
    .values(last_seq=event_counter.c.last_seq + bindparam("more"))
    .returning(event_counter.c.last_seq)
)
_TAKE_RUN_SEQ = (
    update(runs)
    .where(runs.c.id == bindparam("run"))
    .values(event_count=runs.c.event_count + bindparam("more"))
    .returning(runs.c.event_count, runs.c.event_hash)
)
_INSERT = insert(events)
_SET_HASH = update(runs).where(runs.c.id == bindparam("run")).values(event_hash=bindparam("last_hash"))


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


async def append(conn: Connection, run_id: str, new: Sequence[NewEvent]) -> None:
    """Append events to a run's chain, in order, within the caller's write transaction.

    Call it last in the transaction: the counter row is one lock for all writers, which is what lets a reader trust that
    no smaller sequence number appears after a larger one.
    """
    if not new:
        return
    seq = int((await conn.execute(_TAKE_SEQ, {"more": len(new)})).scalar_one()) - len(new)
    row = (await conn.execute(_TAKE_RUN_SEQ, {"run": run_id, "more": len(new)})).one()
    run_seq, previous = int(row.event_count) - len(new), str(row.event_hash)
    created_at = as_text(now())
    rows = []
    for kind, payload in new:
        seq, run_seq = seq + 1, run_seq + 1
        # Mended here, not by the column: the hash is over what is stored.
        text = storable(json.dumps(payload, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
        digest = chain_hash(previous, run_id, run_seq, kind, text, created_at)
        rows.append(
            {
                "seq": seq,
                "run_id": run_id,
                "run_seq": run_seq,
                "type": kind,
                "payload": text,
                "created_at": created_at,
                "previous_hash": previous,
                "hash": digest,
            }
        )
        previous = digest
    await conn.execute(_INSERT, rows)
    await conn.execute(_SET_HASH, {"run": run_id, "last_hash": previous})


def chain_hash(previous: str, run_id: str, run_seq: int, kind: str, payload: str, created_at: str) -> str:
    """Return the hash of one event: SHA-256 over length-prefixed fields, the previous hash first."""
    return framed_sha256(previous, run_id, str(run_seq), kind, payload, created_at)


async def after(
    conn: Connection,
    seq: int,
    *,
    run_id: str | None = None,
    run_ids: Sequence[str] | None = None,
    limit: int = 500,
) -> list[Event]:
    """Return events after ``seq`` (exclusive), oldest first; of one run, or of some, when they are given."""
    query = select(events).where(events.c.seq > seq).order_by(events.c.seq).limit(limit)
    if run_id is not None:
        query = query.where(events.c.run_id == run_id)
    if run_ids is not None:
        query = query.where(events.c.run_id.in_(run_ids))
    rows = (await conn.execute(query)).mappings()
    return [Event(**{**row, "payload": json.loads(row["payload"])}) for row in rows]


async def last_seq(conn: Connection) -> int:
    """Return the newest sequence number; 0 when there is no event."""
    return int((await conn.execute(select(event_counter.c.last_seq).where(event_counter.c.id == 1))).scalar_one())


async def first_break(conn: Connection, run_id: str) -> int | None:
    """Return the ``run_seq`` of the first event that does not fit the run's hash chain; None when the chain holds."""
    query = select(events).where(events.c.run_id == run_id).order_by(events.c.run_seq)
    previous, expected, last_seq = "", 1, 0
    for row in (await conn.execute(query)).mappings():
        digest = chain_hash(previous, run_id, expected, row["type"], row["payload"], row["created_at"])
        # `seq` is what readers go by and not in the hash: two events that swapped theirs would be told in the wrong order.
        in_order = row["seq"] > last_seq
        if not in_order or (row["run_seq"], row["previous_hash"], row["hash"]) != (expected, previous, digest):
            return expected
        previous, expected, last_seq = digest, expected + 1, row["seq"]
    head = (await conn.execute(select(runs.c.event_hash).where(runs.c.id == run_id))).scalar_one_or_none()
    return None if head in {previous, None} else expected
