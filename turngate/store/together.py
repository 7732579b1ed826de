"""Writes that go to the database together: one statement on PostgreSQL, where each takes a trip; one by one on SQLite.

The parts of such a statement see the database as it was before it, so no part may read or change what another one writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    CTE,
    ColumnElement,
    Insert,
    Select,
    Table,
    TextClause,
    Update,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    select,
    union_all,
)

from turngate.store.database import Connection

MOST_ROWS: Final = 8
"""Of one statement. A statement is built and prepared for each number of rows."""
Rows: TypeAlias = Mapping[Table, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Writes:
    """Writes with what they write. ``rows``, ``values``: as :meth:`Together.run` takes them."""

    together: Together
    rows: Rows
    values: Mapping[str, Any]

    async def run(self, conn: Connection, *, last: bool = False) -> list[int]:
        """Write. As :meth:`Together.run`."""
        return await self.together.run(conn, self.rows, self.values, last=last)


class Together:
    """Writes in this order. An insert is named by its table; an update has a parameter for each value.

    Updates share their parameters: what has the same name in two of them means the same. ``guarded``: unless the first of
    them, an update, changes a row, the others write nothing; nor is anything written that goes with them.
    """

    def __init__(self, *writes: Table | Update, guarded: bool = False) -> None:
        self._writes = writes
        self.guarded = guarded
        self._names = {write: parameters(write) for write in writes if isinstance(write, Update)}
        self._inserts = {write: insert(write) for write in writes if isinstance(write, Table)}
        self._joined: dict[tuple[Any, ...], Select[Any]] = {}

    async def run(self, conn: Connection, rows: Rows, values: Mapping[str, Any], *, last: bool = False) -> list[int]:
        """Write, and return how many rows each write inserted or changed.

        ``rows``: table → the rows to insert, all with the same columns. ``values``: parameters of the updates. ``last``: the
        transaction ends with it. Raises sqlalchemy's IntegrityError, and then nothing is written.
        """
        if joins(conn, rows):
            return await self.run_joined(conn, rows, values, last=last)
        counts: list[int] = []
        for write in self._writes:
            if isinstance(write, Update):
                own = {name: values[name] for name in self._names[write]}
                counts.append((await conn.execute(write, own)).rowcount)
                if self.guarded and counts == [0]:
                    return [0] * len(self._writes)
                continue
            if rows[write]:
                await conn.execute(self._inserts[write], list(rows[write]))
            counts.append(len(rows[write]))
        return counts

    async def run_joined(
        self,
        conn: Connection,
        rows: Rows,
        values: Mapping[str, Any],
        more: Sequence[CTE] = (),
        *,
        guard: CTE | None = None,
        last: bool = False,
    ) -> list[int]:
        """As :meth:`run`, as one statement. ``more``: more parts of it; the count of the last one is added.

        ``guard``: one of these parts, without a row of which nothing is written.
        """
        counts = tuple(1 if isinstance(write, Update) else len(rows[write]) for write in self._writes)
        shape = (*counts, more)
        if shape not in self._joined:
            self._joined[shape] = self._join(rows, more, guard)
        parameters = dict(values)
        for table, inserted in rows.items():
            for place, row in enumerate(inserted):
                parameters.update({_name(table, column, place): value for column, value in row.items()})
        run = conn.execute_last if last else conn.execute
        return [int(count) for count in (await run(self._joined[shape], parameters)).one()]

    def _join(self, rows: Rows, more: Sequence[CTE], guard: CTE | None) -> Select[Any]:
        """Return the statement for as many rows as these."""
        counts: list[Any] = []
        for place, write in enumerate(self._writes):
            if not isinstance(write, Update) and not rows[write]:
                counts.append(literal_column("0"))
                continue
            if isinstance(write, Update):
                part: Insert | Update = write if guard is None else write.where(_has_row(guard))
            else:
                part = _insert(write, rows[write], guard)
            written = part.returning(literal_column("1").label("one")).cte(f"write_{place}")
            if self.guarded and place == 0:
                guard = written
            counts.append(select(func.count()).select_from(written).scalar_subquery())
        if more:
            counts.append(select(func.count()).select_from(more[-1]).scalar_subquery())
        return select(*counts).add_cte(*more)


def _has_row(guard: CTE) -> ColumnElement[bool]:
    return exists(select(literal_column("1")).select_from(guard))


def joins(conn: Connection, rows: Rows) -> bool:
    """Tell whether writes of so many rows are one statement on this database."""
    return conn.dialect.name == "postgresql" and sum(len(each) for each in rows.values()) <= MOST_ROWS


def parameters(write: Update | TextClause) -> list[str]:
    """Return the names of the values that a write is run with."""
    return [str(bind.key) for bind in write.compile().binds.values() if bind.required]


def _insert(table: Table, rows: Sequence[Mapping[str, Any]], guard: CTE | None) -> Insert:
    # SELECT, not VALUES: SQLAlchemy keeps no compiled form of an insert of several rows, and compiling one takes milliseconds.
    columns = list(rows[0])
    each = [
        select(*(bindparam(_name(table, column, place), type_=table.c[column].type) for column in columns))
        for place in range(len(rows))
    ]
    if guard is not None:
        each = [row.where(_has_row(guard)) for row in each]
    return insert(table).from_select(columns, each[0] if len(each) == 1 else union_all(*each))


def _name(table: Table, column: str, place: int) -> str:
    return f"{table.name}_{column}_{place}"


NO_WRITES: Final = Writes(Together(), {}, {})
