"""What changes stored rows beside running runs: data keys are wrapped again when keys rotate, and earlier content is encrypted.

Both work in batches, each a transaction, and begin again where they stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import String, Table, bindparam, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from turngate.domain.errors import ConfigurationError
from turngate.store.connection import Connection
from turngate.store.encryption.key_ring import KeyRing
from turngate.store.encryption.places import PLACES
from turngate.store.tables import conversations, metadata
from turngate.store.texts import is_sealed

AT_ONCE: Final = 200
HELD_SECONDS: Final = 0.05
"""How long a conversation's row that a transaction holds is left to it."""
OWNERS: Final = ("conversation_id", "run_id", "request_id")
"""Columns that say to which conversation a row belongs."""
UNCHANGEABLE: Final = frozenset({"events"})
"""Tables whose rows the database lets no one change: what was there before stays as it is."""

_SET = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation"), conversations.c.data_key == bindparam("old"))
    .values(data_key=bindparam("new"))
)


_GIVE = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation"), conversations.c.data_key.is_(None))
    .values(data_key=bindparam("new", type_=String))
)


class Store(Protocol):
    """What is rewritten: a :class:`turngate.store.database.Database`."""

    @property
    def ring(self) -> KeyRing | None:
        """The keys that content is sealed with; None: it isn't."""

    def write(self) -> AbstractAsyncContextManager[Connection]:
        """Open one write transaction."""


@dataclass(frozen=True)
class Rotation:
    """What a rotation did. ``wrapped``: conversations' keys that were wrapped again. ``is_new``: by a new key of the ring."""

    wrapped: int
    is_new: bool


async def rotate(database: Store, ring: KeyRing, note: Callable[[int], None] = lambda _done: None) -> Rotation:
    """Make a new key of the ring, by the current service, and wrap every data key by it.

    Keys that the newest one of the ring doesn't wrap yet are wrapped by it instead: an earlier call was stopped, or a process
    that began before it has made conversations since. ``note`` gets how many are done.
    """
    async with database.write() as conn:
        await ring.load(conn)
        is_new = not await ring.is_replaced(conn)
        if is_new:
            await ring.replace(conn)
    done, last = 0, ""
    rest = (
        select(conversations.c.id, conversations.c.data_key)
        .where(~conversations.c.data_key.startswith(f"{ring.current}:"))
        .order_by(conversations.c.id)
        .limit(AT_ONCE)
    )
    while True:
        async with database.write() as conn:
            rows = (await conn.execute(rest.where(conversations.c.id > last))).all()
            for row in rows:
                new = ring.rewrapped(row.id, row.data_key)
                await conn.execute(_SET, {"conversation": row.id, "old": row.data_key, "new": new})
        if not rows:
            return Rotation(done, is_new)
        done, last = done + len(rows), rows[-1].id
        note(done)


@dataclass(frozen=True)
class Unsealed:
    """A table with rows that hold content as plain text. ``sealed``: how many hold it encrypted."""

    table: str
    plain: int
    sealed: int


async def unsealed(conn: Connection) -> list[Unsealed]:
    """Return, by table, how many rows hold content as plain text, and how many hold it encrypted."""
    counts = []
    for table in _tables():
        columns = _columns(table)
        plain = select(func.count()).select_from(table).where(or_(*map(_is_plain, columns)))
        sealed = select(func.count()).select_from(table).where(or_(*(is_sealed(column) for column in columns)))
        counts.append(
            Unsealed(table.name, (await conn.execute(plain)).scalar_one(), (await conn.execute(sealed)).scalar_one())
        )
    return counts


async def encrypt(database: Store, note: Callable[[str, int], None] = lambda _table, _done: None) -> int:
    """Encrypt what the tables hold as plain text. Returns how many rows. ``note`` gets the table, and how many are done.

    Conversations from before get a data key first.
    """
    await _give_keys(database)
    done = 0
    for table in _tables():
        if table.name in UNCHANGEABLE:
            continue
        while count := await _encrypt_some(database, table):
            done += count
            note(table.name, done)
    return done


async def _give_keys(database: Store) -> None:
    """Give each conversation without a data key one. A row that a transaction holds is left for the next round."""
    ring = database.ring
    if ring is None:
        raise ConfigurationError("this database isn't encrypted: run `turngate keys init`")
    without = select(conversations.c.id).where(conversations.c.data_key.is_(None)).limit(AT_ONCE)
    while True:
        async with database.write() as conn:
            ids = (await conn.execute(without.with_for_update(skip_locked=True))).scalars().all()
            if ids:
                keys = [{"conversation": each, "new": ring.new_data_key(each)} for each in ids]
                await conn.execute(_GIVE, keys)
                continue
            if (await conn.execute(without.limit(1))).first() is None:
                return
        await asyncio.sleep(HELD_SECONDS)


async def _encrypt_some(database: Store, table: Table) -> int:
    columns = _columns(table)
    names = [each.name for each in (*table.primary_key, *(table.c[name] for name in OWNERS if name in table.c))]
    query = select(table).where(or_(*map(_is_plain, columns))).limit(AT_ONCE).with_for_update()
    async with database.write() as conn:
        rows = (await conn.execute(query)).mappings().all()
        for row in rows:
            here = [name for name in dict.fromkeys(names) if row[name] is not None]
            same = [table.c[name] == bindparam(f"own_{name}") for name in here]
            plain = {each.name: row[each.name] for each in columns if row[each.name]}
            values: dict[str, Any] = {f"own_{name}": row[name] for name in here}
            change = update(table).where(*same).values({name: bindparam(f"new_{name}") for name in plain})
            await conn.execute(change, {**values, **{f"new_{name}": text for name, text in plain.items()}})
    return len(rows)


def _tables() -> list[Table]:
    names = {place.partition(".")[0] for place in PLACES}
    return [table for table in metadata.sorted_tables if table.name in names]


def _columns(table: Table) -> list[ColumnElement[Any]]:
    return [column for column in table.columns if f"{table.name}.{column.name}" in PLACES]


def _is_plain(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return (func.length(column) > 0) & ~is_sealed(column)
