"""Sequences of numbers given under a lock: no reader sees a smaller one after a larger one, and none is ever given again.

A key of the database's own promises neither. Each sequence is one row, which its first writer makes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from sqlalchemy import bindparam, select, text, update

from turngate.store.database import Connection
from turngate.store.tables import event_counter


class Numbered(IntEnum):
    """What is numbered, by its row of ``event_counter``."""

    EVENTS = 1
    PROGRESS = 2
    DELTAS = 3


MAX_NUMBER: Final = 2**53 - 1
"""The largest that every reader of JSON keeps exactly (RFC 8259, section 6). A million runs a day take eight million."""

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_TAKE = (
    update(event_counter)
    .where(event_counter.c.id == bindparam("sequence"))
    .values(last_seq=event_counter.c.last_seq + bindparam("more"))
    .returning(event_counter.c.last_seq)
)
# Two first writers are no trouble to each other.
_MAKE = text("INSERT INTO event_counter (id, last_seq) VALUES (:sequence, 0) ON CONFLICT DO NOTHING")
_EVERY = select(event_counter.c.id, event_counter.c.last_seq)
NEWEST_EVENT = select(event_counter.c.last_seq).where(event_counter.c.id == Numbered.EVENTS)
"""The number of the newest event, as a query or a part of one."""


async def take(conn: Connection, sequence: Numbered, more: int = 1) -> int:
    """Return the last of ``more`` new numbers. Until this transaction ends, no one else is given any of the sequence."""
    numbers = {"sequence": sequence.value, "more": more}
    last = (await conn.execute(_TAKE, numbers)).scalar_one_or_none()
    if last is None:
        await conn.execute(_MAKE, {"sequence": sequence.value})
        last = (await conn.execute(_TAKE, numbers)).scalar_one()
    return int(last)


async def newest(conn: Connection) -> dict[Numbered, int]:
    """Return sequence → its last number, for those that have begun."""
    return {Numbered(row.id): int(row.last_seq) for row in await conn.execute(_EVERY)}
