"""What changes stored rows beside running runs: data keys are wrapped again when keys rotate, and earlier content is encrypted.

Both work in batches, each a transaction, and begin again where they stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import Column, RowMapping, String, Table, bindparam, delete, func, literal, or_, select, tuple_, update
from sqlalchemy.sql.elements import ColumnElement

from turngate.domain.errors import ConfigurationError
from turngate.store.connection import Connection
from turngate.store.encryption.key_ring import DEPLOYMENT, KeyRing
from turngate.store.encryption.places import HASHES, OF_DEPLOYMENT, PLACES
from turngate.store.storable import MARK
from turngate.store.tables import calls, conversations, metadata, runs, whole_results, worlds
from turngate.store.tables.content import TEXT_COLUMNS
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


SHARED: Final = ((whole_results, calls.c.whole_result), (worlds, runs.c.world))
"""Tables whose rows are named by the hash of their content, and what names them."""
_NAMING: Final = frozenset(
    f"{column.table.name}.{column.name}" for table, naming in SHARED for column in (table.c.digest, naming)
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
        columns = _sealed_columns(table)
        plain = select(func.count()).select_from(table).where(or_(*map(_is_plain, columns)))
        sealed = select(func.count()).select_from(table).where(or_(*(is_sealed(column) for column in columns)))
        counts.append(
            Unsealed(table.name, (await conn.execute(plain)).scalar_one(), (await conn.execute(sealed)).scalar_one())
        )
    return counts


async def encrypt(database: Store, note: Callable[[str, int], None] = lambda _table, _done: None) -> int:
    """Encrypt what the tables hold as plain text. Returns how many rows. ``note`` gets the table, and how many are done.

    Conversations from before get a data key first. What was written to them since the database's keys were made is under the
    deployment's key, and gets theirs.
    """
    await _give_keys(database)
    done = 0
    for table, naming in SHARED:
        while count := await _encrypt_names(database, table, naming):
            done += count
            note(table.name, done)
    for table in _tables():
        if table.name in UNCHANGEABLE:
            continue
        while count := await _encrypt_some(database, table):
            done += count
            note(table.name, done)
        if TEXT_COLUMNS[table.name].owner not in OF_DEPLOYMENT:
            await _give_to_owners(database, table)
    if database.ring is not None:
        async with database.write() as conn:
            await database.ring.end_plain(conn)
    return done


async def _give_keys(database: Store) -> None:
    """Give each conversation without a data key one. A row that a transaction holds is left for the next round."""
    ring = database.ring
    if ring is None:
        raise ConfigurationError("this database isn't encrypted: run `turngate keys init`")
    ring.accepts_plain = True  # in this process: it is what reads them
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


async def _encrypt_names(database: Store, table: Table, naming: Column[Any]) -> int:
    """Encrypt some hashes by which rows are named, together with what names them, so that both always agree."""
    query = select(table.c.digest).where(_is_plain(table.c.digest)).limit(AT_ONCE).with_for_update()
    is_it = table.c.digest == bindparam("plain", type_=String)
    of_rows = [*naming.table.primary_key]
    async with database.write() as conn:
        plain = (await conn.execute(query)).scalars().all()
        if not plain:
            return 0
        twins = select(table.c.digest).where(table.c.digest.in_(plain), is_sealed(table.c.digest))
        known = set((await conn.execute(twins)).scalars())
        for each in plain:
            change = delete(table) if each in known else update(table).values(digest=each)
            await conn.execute(change.where(is_it), {"plain": each})
        named = select(*of_rows, naming).where(naming.in_(plain), _is_plain(naming)).with_for_update()
        for row in (await conn.execute(named)).mappings().all():
            same = [column == row[column.name] for column in of_rows]
            await conn.execute(update(naming.table).where(*same).values({naming.name: row[naming.name]}))
    return len(plain)


async def _encrypt_some(database: Store, table: Table) -> int:
    columns = _columns(table)
    query = select(table).where(or_(*map(_is_plain, columns))).limit(AT_ONCE).with_for_update()
    async with database.write() as conn:
        rows = (await conn.execute(query)).mappings().all()
        await _write_again(conn, table, columns, rows)
    return len(rows)


async def _give_to_owners(database: Store, table: Table) -> None:
    """Encrypt with their conversations' keys what the deployment's key sealed, because they had none yet.

    What belongs to no conversation stays as it is.
    """
    columns = [each for each in _columns(table) if _place(each) in PLACES]
    keys = [*table.primary_key]
    heads = {each.name: f"{MARK}{table.name}.{each.name}:{DEPLOYMENT}" for each in columns}
    strays = [func.substr(each, 1, len(heads[each.name])) == literal(heads[each.name], String) for each in columns]
    query = select(table).where(or_(*strays)).order_by(*keys).limit(AT_ONCE).with_for_update()
    last: list[Any] | None = None
    while True:
        rest = query if last is None else query.where(tuple_(*keys) > tuple_(*(literal(each) for each in last)))
        async with database.write() as conn:
            rows = (await conn.execute(rest)).mappings().all()
            await _write_again(conn, table, columns, rows)
        if not rows:
            return
        last = [rows[-1][each.name] for each in keys]


async def _write_again(
    conn: Connection, table: Table, columns: Sequence[Column[Any]], rows: Sequence[RowMapping]
) -> None:
    """Write the texts of these columns as they were read: the connection encrypts them."""
    names = [each.name for each in (*table.primary_key, *(table.c[name] for name in OWNERS if name in table.c))]
    for row in rows:
        here = [name for name in dict.fromkeys(names) if row[name] is not None]
        same = [table.c[name] == bindparam(f"own_{name}") for name in here]
        texts = {each.name: row[each.name] for each in columns if row[each.name]}
        values: dict[str, Any] = {f"own_{name}": row[name] for name in here}
        change = update(table).where(*same).values({name: bindparam(f"new_{name}") for name in texts})
        await conn.execute(change, {**values, **{f"new_{name}": text for name, text in texts.items()}})


def _tables() -> list[Table]:
    names = {place.partition(".")[0] for place in (*PLACES, *HASHES)} - {"precedent_features"}
    return [table for table in metadata.sorted_tables if table.name in names]


def _sealed_columns(table: Table) -> list[Column[Any]]:
    return [column for column in table.columns if _place(column) in PLACES | HASHES]


def _columns(table: Table) -> list[Column[Any]]:
    """Return the columns that are encrypted, apart from what names rows (:data:`SHARED`)."""
    return [column for column in _sealed_columns(table) if _place(column) not in _NAMING]


def _place(column: Column[Any]) -> str:
    return f"{column.table.name}.{column.name}"


def _is_plain(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return (func.length(column) > 0) & ~is_sealed(column)
